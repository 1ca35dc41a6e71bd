"""How much memory there is for an engine.

Knows nothing about what the memory is used for.
"""

import mlx.core as mx
import psutil

_TIER_MAX_BYTES = 16 * 10**9
_TIER_SHARE = 4  # the memory tier gets one part in so many of the ceiling


def ceiling_bytes() -> int:
    """What models and caches may take together: the working set of the GPU, else all memory."""
    info = mx.device_info()
    for key in ("max_recommended_working_set_size", "total_memory", "memory_size"):
        if mx.default_device().type == mx.DeviceType.gpu and key in info:
            return int(info[key])
    return psutil.virtual_memory().total


def auto_tier_bytes() -> int:
    """The default budget of the memory tier."""
    return min(ceiling_bytes() // _TIER_SHARE, _TIER_MAX_BYTES)


def auto_prefill_chunk() -> int:
    """The default number of tokens of one prefill step: a CPU must not hold others up for long."""
    return 2048 if mx.default_device().type == mx.DeviceType.gpu else 256
