"""How much memory there is for an engine.

Knows nothing about what the memory is used for.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import mlx.core as mx
import psutil

from omlx.engine.admission import Admission
from omlx.engine.buffers import FreedBuffers
from omlx.engine.footprint import footprint_bytes
from omlx.engine.heap import c_library_trim
from omlx.engine.request import MemoryUse

_TIER_MAX_BYTES = 16 * 10**9
_RESERVES = MappingProxyType({"safe": 4, "balanced": 8, "aggressive": 20})  # one part in so many
_TIER_SHARE = 4  # the memory tier gets one part in so many of the ceiling
_KEPT_SHARE = 16  # freed buffers may take one part in so many of the ceiling,
_KEPT_SHARE_CUDA = 4  # and of memory that nobody else needs: a piece of a prompt frees gigabytes
_QUEUE_SHARE = 8  # writes in flight get one part in so many of what is free
_QUEUE_MAX_BYTES = 4 << 30
_QUEUE_LOOK_S = 5.0


def _is_gpu() -> bool:
    return mx.default_device().type == mx.DeviceType.gpu


def ceiling_bytes() -> int:
    """What models and caches may take together: the working set of the GPU, else all memory."""
    info = mx.device_info()
    for key in ("max_recommended_working_set_size", "total_memory", "memory_size"):
        if _is_gpu() and key in info:
            return int(info[key])
    total = psutil.virtual_memory().total
    return min(total, _cgroup_bytes() or total)


def limit_bytes(wanted: int | str) -> int:
    """What an engine may take: so many bytes, or what a tier leaves of the ceiling and, where the
    memory is the system's, of what others leave now; never more than the ceiling."""
    ceiling = ceiling_bytes()
    if isinstance(wanted, int):
        return min(wanted, ceiling)
    limit = ceiling - ceiling // _RESERVES[wanted]
    if _is_gpu():
        return limit
    return min(limit, _available_bytes() + psutil.Process().memory_info().rss)


def memory_use(admission: Admission, buffers: FreedBuffers) -> Callable[[Sequence[int]], MemoryUse]:
    """What rows of so many tokens need beside what there is, and what is measured."""
    is_system = not _is_gpu() or mx.metal.is_available()

    def use(lengths: Sequence[int]) -> MemoryUse:
        active, freed = buffers.active_bytes, buffers.freed_bytes
        process = footprint_bytes() if is_system else active + freed
        return replace(
            admission.use(lengths), active_bytes=active, freed_bytes=freed, process_bytes=process
        )

    return use


def _cgroup_bytes(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """The limit of the control group that a container sees as its root; None without one."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = (root / name).read_text().strip()
        except OSError:
            continue
        if text.isdecimal():
            return int(text)
    return None


class PeakMeter:
    """How much more memory a step takes than was held before it. Engine thread only."""

    def __init__(self) -> None:
        self._before = 0

    def begin(self) -> None:
        """A step begins (mutates)."""
        self._before = mx.get_active_memory()
        mx.reset_peak_memory()

    def end(self) -> int:
        """It is over; its bytes."""
        return max(0, mx.get_peak_memory() - self._before)


def auto_tier_bytes() -> int:
    """The default budget of the memory tier."""
    return min(ceiling_bytes() // _TIER_SHARE, _TIER_MAX_BYTES)


def kept_bytes() -> int:
    """How many bytes of freed buffers are kept for reuse."""
    is_cuda = _is_gpu() and mx.cuda.is_available()
    return ceiling_bytes() // (_KEPT_SHARE_CUDA if is_cuda else _KEPT_SHARE)


def keep_buffers() -> None:
    """Have mlx keep so many on a CPU as well, where it keeps few of its own accord: memory that the
    system has to find anew takes longer than to fill it from an SSD."""
    if not _is_gpu():
        mx.set_cache_limit(kept_bytes())


def freed_buffers(clock: Callable[[], float]) -> FreedBuffers:
    """Those of mlx's allocator."""
    return FreedBuffers(
        mx,
        kept_bytes(),
        is_metal=_is_gpu() and mx.metal.is_available(),
        clock=clock,
        trim=c_library_trim(),
    )


def auto_prefill_chunk() -> int:
    """The default number of tokens of one prefill step: a CPU must not hold others up for long."""
    return 2048 if _is_gpu() else 256


def auto_warm_up_s() -> float:
    """How long an engine may warm up: a CPU has few kernels to compile, and long steps."""
    return 5.0 if _is_gpu() else 2.0


def _available_bytes() -> int:
    return psutil.virtual_memory().available


class QueueLimit:
    """How many bytes of writes may be in flight: a share of the free memory, looked at at times."""

    def __init__(
        self, clock: Callable[[], float], available: Callable[[], int] = _available_bytes
    ) -> None:
        self._clock = clock
        self._available = available
        self._looked_at: float | None = None
        self._bytes = 0

    def __call__(self) -> int:
        """The limit of this moment; what is over stays in memory until there is room."""
        now = self._clock()
        if self._looked_at is None or now - self._looked_at >= _QUEUE_LOOK_S:
            self._looked_at = now
            self._bytes = min(self._available() // _QUEUE_SHARE, _QUEUE_MAX_BYTES)
        return self._bytes
