"""How much memory the machine has for the weights of all models together.

Knows nothing about models; never imports mlx.
"""

from collections.abc import Callable
from pathlib import Path

import psutil

from omlx.engine.blas import has_cuda

_AUTO_SHARE = 0.9  # the rest is for the system, caches and prefills
_CGROUP = Path("/sys/fs/cgroup/memory.max")


def total_bytes(cgroup: Path = _CGROUP) -> int:
    """The memory of this machine, or of the container that it is to whoever runs in one."""
    total = psutil.virtual_memory().total
    try:
        text = cgroup.read_text("ascii").strip()
    except (OSError, ValueError):
        return total
    return min(total, int(text)) if text.isdecimal() else total


def weights_limit(
    setting: int | str,
    *,
    total: Callable[[], int] = total_bytes,
    is_cuda: Callable[[], bool] = has_cuda,
) -> int | None:
    """The bytes that `models.max_memory` allows; "auto" knows no limit for a CUDA device."""
    if isinstance(setting, int):
        return setting
    return None if is_cuda() else int(total() * _AUTO_SHARE)
