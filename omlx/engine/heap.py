"""How glibc's heap is set up, and how it gives memory back; nothing elsewhere.

Knows nothing about arrays. Other than the heap of the process, those that glibc makes for threads
keep up to 64 MB each at their top, whatever they are told (mallopt(3), malloc_trim(3)).
"""

import ctypes
import os
import sys
from collections.abc import Callable, Mapping

from omlx.engine.footprint import footprint_bytes

_VARIABLE = "MALLOC_ARENA_MAX"
_M_ARENA_MAX = -8  # malloc.h
_WORTH_BYTES = 1_000_000


def with_one_heap(env: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process whose threads share one heap, unless it says otherwise."""
    return {_VARIABLE: "1", **env}


def share_one_heap() -> None:
    """Have threads that start from now on share one heap, unless the environment says otherwise."""
    mallopt = _function("mallopt")
    if mallopt is not None and _VARIABLE not in os.environ:
        mallopt(_M_ARENA_MAX, 1)


def c_library_trim() -> Callable[[], bool]:
    """Has glibc give back the free memory that it holds; tells whether that was worth it."""
    malloc_trim = _function("malloc_trim")
    if malloc_trim is None:
        return lambda: False

    def trim() -> bool:
        before = footprint_bytes()
        malloc_trim(0)
        return before - footprint_bytes() > _WORTH_BYTES

    return trim


def _function(name: str) -> Callable[..., int] | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        return getattr(ctypes.CDLL(None), name)
    except (OSError, AttributeError):  # another C library
        return None
