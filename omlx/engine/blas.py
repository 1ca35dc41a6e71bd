"""Which BLAS an engine process on Linux CPU is started with.

Knows nothing about mlx but this: its CPU wheel links a reference BLAS, whose symbols a preloaded
one replaces; measured 8 to 20 times the prefill rate with OpenBLAS.
"""

import ctypes.util
import importlib.metadata
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from omlx.errors import EngineError


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def has_cuda(is_installed: Callable[[str], bool] = _is_installed) -> bool:
    """Whether mlx computes on a CUDA device here."""
    return any(is_installed(name) for name in ("mlx-cuda", "mlx-cuda-12", "mlx-cuda-13"))


def preload_library(
    setting: str,
    *,
    platform: str = sys.platform,
    find_library: Callable[[str], str | None] = ctypes.util.find_library,
    is_installed: Callable[[str], bool] = _is_installed,
) -> str | None:
    """The library to preload for `engine.blas`: "auto" finds the system's OpenBLAS, "off" none."""
    if setting == "off" or not platform.startswith("linux"):
        return None
    if setting != "auto":
        if not Path(setting).is_file():
            raise EngineError(
                f"engine.blas names {setting}, which is not a file",
                hint='give the path of a BLAS library, or "auto", or "off"',
            )
        return setting
    if has_cuda(is_installed):
        return None
    return find_library("openblas")


def with_preload(env: Mapping[str, str], library: str | None) -> dict[str, str]:
    """The environment of an engine process, with `library` first in LD_PRELOAD."""
    result = dict(env)
    if library is not None:
        result["LD_PRELOAD"] = os.pathsep.join(filter(None, [library, env.get("LD_PRELOAD")]))
    return result
