"""What an engine does with memory: how much of it is kept for reuse."""

import mlx.core as mx

from omlx.engine.memory import ceiling_bytes, keep_buffers, kept_bytes


def test_a_cpu_keeps_freed_buffers_as_a_gpu_does() -> None:
    before = mx.set_cache_limit(1 << 25)
    try:
        keep_buffers()
        limit = mx.set_cache_limit(1 << 25)
    finally:
        mx.set_cache_limit(before)
    is_cpu = mx.default_device().type == mx.DeviceType.cpu
    assert limit == (kept_bytes() if is_cpu else 1 << 25)
    assert 0 < kept_bytes() <= ceiling_bytes() // 4
