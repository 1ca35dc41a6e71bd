"""Layer caches to payloads and back: exact, owned, and in the form of a live cache."""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import (
    ChunkedKVCache,
    KVCache,
    QuantizedKVCache,
    RotatingKVCache,
)

from omlx.cache.codec import Codec, UncacheableError
from omlx.cache.leaves import Leaf, Payload

LayerSlice = tuple[mx.array, mx.array]
DTYPES = [mx.float32, mx.float16, mx.bfloat16]


def random_layers(
    num_tokens: int, widths: Sequence[tuple[int, int]], dtype: mx.Dtype = mx.float32, heads: int = 2
) -> list[LayerSlice]:
    """One stretch of a row: keys and values of the given widths for each layer."""
    mx.random.seed(num_tokens)
    layers = [
        (
            mx.random.normal((1, heads, num_tokens, dk)).astype(dtype),
            mx.random.normal((1, heads, num_tokens, dv)).astype(dtype),
        )
        for dk, dv in widths
    ]
    mx.eval(layers)
    return layers


def live_caches(layers: Sequence[LayerSlice]) -> list[KVCache]:
    caches = [KVCache() for _ in layers]
    for cache, (keys, values) in zip(caches, layers, strict=True):
        cache.update_and_fetch(keys, values)
    return caches


def same(a: mx.array, b: mx.array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bool(mx.array_equal(a, b).item())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "widths",
    [[(8, 8)], [(8, 4)], [(8, 8), (8, 8)], [(8, 4), (4, 8), (16, 2)]],
    ids=["equal", "unequal", "two layers", "mixed layers"],
)
def test_pack_and_restore(widths: list[tuple[int, int]], dtype: mx.Dtype) -> None:
    layers = random_layers(10, widths, dtype)
    codec = Codec.from_caches(live_caches(layers))
    payloads = codec.pack(live_caches(layers), 0, [4, 4, 2])
    assert [p.count for p in payloads] == [4, 4, 2]
    for takes in ([4, 4, 2], [4, 4, 1], [4, 3], [1]):
        caches = codec.restore(list(zip(payloads, takes, strict=False)))
        for cache, (keys, values) in zip(caches, layers, strict=True):
            assert cache.offset == sum(takes)
            assert same(cache.keys_and_values()[0], keys[:, :, : sum(takes)])
            assert same(cache.keys_and_values()[1], values[:, :, : sum(takes)])


def test_layers_of_different_dtypes_keep_them() -> None:
    layers = random_layers(3, [(4, 4)], mx.float16) + random_layers(3, [(4, 4)], mx.bfloat16)
    codec = Codec.from_caches(live_caches(layers))
    caches = codec.restore([(codec.pack(live_caches(layers), 0, [3])[0], 3)])
    for cache, (keys, values) in zip(caches, layers, strict=True):
        assert same(cache.keys_and_values()[0], keys)
        assert same(cache.keys_and_values()[1], values)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("zero_copy", [True, False])
def test_bytes_out_and_in_again(dtype: mx.Dtype, *, zero_copy: bool) -> None:
    layers = random_layers(6, [(8, 4), (8, 4)], dtype)
    codec = Codec.from_caches(live_caches(layers))
    codec.is_zero_copy = zero_copy
    (payload,) = codec.pack(live_caches(layers), 0, [6])
    landing = codec.allocate(6, range(len(codec.specs(6))))
    sections = landing.sections()
    assert [spec for spec, _ in sections] == codec.specs(6)
    for (spec, target), view in zip(sections, codec.read_views(payload), strict=True):
        assert (view.format, view.ndim) == ("B", 1)
        assert len(target) == len(view) == spec.nbytes
        target[:] = view
    arrived = landing.payload()
    assert arrived.count == 6
    for a, b in zip(arrived.arrays, payload.arrays, strict=True):
        assert same(a, b)


def test_a_payload_is_not_touched_by_what_happens_to_its_source() -> None:
    """P5: the live cache goes on and is overwritten; what was stored stays."""
    layers = random_layers(8, [(8, 4)])
    (cache,) = live_caches(layers)
    codec = Codec.from_caches([cache])
    payloads = codec.pack([cache], 0, [4, 4])
    before = [[np.array(a) for a in p.arrays] for p in payloads]
    cache.update_and_fetch(*random_layers(300, [(8, 4)])[0])
    cache.keys[..., :8, :] = 0
    cache.values[..., :8, :] = 0
    mx.eval(cache.keys, cache.values)
    for payload, arrays in zip(payloads, before, strict=True):
        for array, old in zip(payload.arrays, arrays, strict=True):
            np.testing.assert_array_equal(np.array(array), old)


@pytest.mark.parametrize("widths", [[(64, 64)], [(64, 32)]], ids=["one group", "two groups"])
@pytest.mark.parametrize("heads", [1, 2])
def test_a_payload_holds_its_own_bytes_and_no_more(
    widths: list[tuple[int, int]], heads: int
) -> None:
    """P5: a block must keep neither the buffer that it was cut from alive nor its neighbour."""
    count, slack = 1024, 8 * 16_384  # mlx rounds allocations up
    layers = random_layers(8 * count, widths, heads=heads)
    source = sum(a.nbytes for pair in layers for a in pair)
    codec = Codec.from_caches(live_caches(random_layers(1, widths, heads=heads)))
    exact = count * codec.bytes_per_token
    assert exact > 2 * slack
    before = mx.get_active_memory() - source
    rows = [KVCache.from_state((k, v, 8 * count)) for k, v in layers]
    payloads = codec.pack(rows, 64, [count, count])
    mx.synchronize()
    del layers, rows
    assert [p.nbytes for p in payloads] == [exact, exact]
    assert exact == sum(spec.nbytes for spec in codec.specs(count))
    assert abs(mx.get_active_memory() - before - 2 * exact) <= slack
    payloads.pop()
    assert abs(mx.get_active_memory() - before - exact) <= slack


def test_a_restored_cache_does_not_change_the_block() -> None:
    """P5 the other way: a row that goes on from a block leaves the block as it was."""
    layers = random_layers(4, [(4, 4)])
    codec = Codec.from_caches(live_caches(layers))
    (payload,) = codec.pack(live_caches(layers), 0, [4])
    before = [np.array(a) for a in payload.arrays]
    batch = type(codec.restore([(payload, 4)])[0]).merge(codec.restore([(payload, 4)]))
    batch.update_and_fetch(*random_layers(3, [(4, 4)])[0])
    batch.keys[..., :4, :] = 0
    mx.eval(batch.keys, batch.values)
    for array, old in zip(payload.arrays, before, strict=True):
        np.testing.assert_array_equal(np.array(array), old)


@pytest.mark.parametrize(
    "cache",
    [RotatingKVCache(16, keep=4), QuantizedKVCache(), ChunkedKVCache(16)],
    ids=lambda c: type(c),
)
def test_a_class_without_a_block_form_is_named(cache: Any) -> None:
    good = live_caches(random_layers(1, [(64, 64)]))
    cache.update_and_fetch(*random_layers(1, [(64, 64)])[0])
    with pytest.raises(UncacheableError, match=rf"{type(cache).__name__} \(layer 1\)"):
        Codec.from_caches([*good, cache])


def test_a_subclass_is_not_taken_for_its_parent() -> None:
    class OddCache(KVCache):
        """Might keep more than keys and values."""

    with pytest.raises(UncacheableError, match="OddCache"):
        Codec.from_caches([OddCache()])


def test_state_in_an_unknown_form_is_refused() -> None:
    empty = KVCache()
    with pytest.raises(UncacheableError, match="layer 0 keeps its k"):
        Codec.from_caches([empty])
    odd = KVCache()
    odd.update_and_fetch(mx.zeros((1, 1, 1, 4)), mx.zeros((1, 1, 1, 4), dtype=mx.int32))
    with pytest.raises(UncacheableError, match="layer 0 keeps its v"):
        Codec.from_caches([odd])
    with pytest.raises(UncacheableError, match="no state"):
        Codec.from_caches([])


@pytest.mark.parametrize("num_tokens", [1, 255, 256, 257, 640])
def test_a_restored_cache_has_the_buffer_of_a_live_one(num_tokens: int) -> None:
    """Prefilled in steps on a grid of 256, as the engine does, then more."""
    layers = random_layers(num_tokens, [(4, 2), (4, 2)])
    live = [KVCache() for _ in layers]
    for start in range(0, num_tokens, 256):
        for cache, (k, v) in zip(live, layers, strict=True):
            cache.update_and_fetch(k[:, :, start : start + 256], v[:, :, start : start + 256])
    codec = Codec.from_caches(live_caches(layers))
    (payload,) = codec.pack(live_caches(layers), 0, [num_tokens])
    restored = codec.restore([(payload, num_tokens)])
    step = random_layers(1, [(4, 2), (4, 2)])
    for _ in range(2):
        for a, b, more in zip(restored, live, step, strict=True):
            assert type(a) is type(b)
            assert (a.keys.shape, a.values.shape) == (b.keys.shape, b.values.shape)
            assert a.offset == b.offset
            assert same(a.keys_and_values()[0], b.keys_and_values()[0])
            assert same(a.keys_and_values()[1], b.keys_and_values()[1])
            a.update_and_fetch(*more)
            b.update_and_fetch(*more)


def test_rows_of_different_lengths_are_restored_side_by_side() -> None:
    layers = random_layers(9, [(4, 2)])
    codec = Codec.from_caches(live_caches(layers))
    payloads = codec.pack(live_caches(layers), 0, [4, 4, 1])
    parts = list(zip(payloads, [4, 4, 1], strict=True))
    rows = [codec.restore(parts)[0], codec.restore(parts[:1])[0]]
    batch = type(rows[0]).merge(rows)
    for index, length in enumerate([9, 4]):
        alone = batch.extract(index)
        assert same(alone.keys[:, :, :length], layers[0][0][:, :, :length])
        assert same(alone.values[:, :, :length], layers[0][1][:, :, :length])


def test_the_layout_says_what_the_bytes_mean() -> None:
    """Golden: it is part of the root hash, so a change makes every stored block a miss."""
    codec = Codec(
        [Leaf((0,), "k", 2, 8, "F16"), Leaf((0,), "v", 2, 4, "F16"), Leaf((1,), "k", 2, 8, "F16")]
        + [Leaf((1,), "v", 2, 4, "F32")]
    )
    assert codec.layout() == {
        "sections": "kv.0=F16[2,2,count,8]:0k,1k;kv.1=F16[1,2,count,4]:0v;kv.2=F32[1,2,count,4]:1v"
    }
    shapes = [(s.name, s.dtype, s.shape) for s in codec.specs(16)]
    assert shapes == [
        ("kv.0", "F16", (2, 2, 16, 8)),
        ("kv.1", "F16", (1, 2, 16, 4)),
        ("kv.2", "F32", (1, 2, 16, 4)),
    ]
    assert codec.bytes_per_token == 2 * 2 * 8 * 2 + 2 * 4 * 2 + 2 * 4 * 4


def test_a_payload_counts_all_its_arrays() -> None:
    payload = Payload(2, (mx.zeros((2, 3), dtype=mx.float16), mx.zeros((5,), dtype=mx.float32)))
    assert payload.nbytes == 2 * 3 * 2 + 5 * 4


def test_a_device_with_memory_of_its_own_is_never_read_in_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    layers = random_layers(6, [(8, 4)], mx.float32)
    assert Codec.from_caches(live_caches(layers)).is_zero_copy
    monkeypatch.setattr(mx, "default_device", lambda: mx.Device(mx.gpu, 0))
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    assert not Codec.from_caches(live_caches(layers)).is_zero_copy
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    assert Codec.from_caches(live_caches(layers)).is_zero_copy
