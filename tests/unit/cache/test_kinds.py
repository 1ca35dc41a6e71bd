"""Windows, recurrent state and lists of caches: their block form, cuts, snapshots and look-ups."""

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import (
    ArraysCache,
    CacheList,
    ChunkedKVCache,
    KVCache,
    RotatingKVCache,
)

from omlx.cache.codec import Codec, UncacheableError
from omlx.cache.memory import Entry
from omlx.cache.snapshots import Snapshots, outdated
from omlx.storage.layout import BlockHash, BlockKey, BlockKind
from tests.fakes.blocks import MANY

W = 16


def feed(cache: Any, start: int, end: int, piece: int) -> Any:
    """Keys and values that say their position, in pieces."""
    for a in range(start, end, piece):
        row = mx.arange(a, min(end, a + piece)).astype(mx.float32).reshape(1, 1, -1, 1)
        cache.update_and_fetch(row, row + 0.5)
    mx.eval(cache.keys, cache.values)
    return cache


def window(length: int, piece: int = 8, size: int = W) -> Any:
    return feed(RotatingKVCache(size), 0, length, piece)


def held(cache: Any) -> list[float]:
    """The positions that a restored ring holds, oldest first."""
    keys, values, offset, _, _, place = cache.state
    assert place == keys.shape[2]
    np.testing.assert_array_equal(np.array(values), np.array(keys) + 0.5)
    assert offset - keys.shape[2] == keys[0, 0, 0, 0].item()
    return np.array(keys).reshape(-1).tolist()


def state(*values: float | None) -> Any:
    slots = [None if v is None else mx.full((1, 2, 3), v) for v in values]
    return ArraysCache.from_state((slots, None, None))


@pytest.mark.parametrize("piece", [1, 3, 8])
@pytest.mark.parametrize("length", [1, 7, 8, 15, 16, 17, 24, 31, 40])
def test_a_window_is_restored_from_its_last_tokens(length: int, piece: int) -> None:
    codec = Codec.from_caches([window(1)])
    parts = []
    cache = RotatingKVCache(W)
    for start in range(0, length, 8):
        end = min(length, start + 8)
        feed(cache, start, end, piece)
        (payload,) = codec.pack([cache], start, [end - start])
        parts.append((payload, end - start))
    (restored,) = codec.restore(parts)
    assert held(restored) == list(range(max(0, length - W), length))


@pytest.mark.parametrize("take", [1, 5, 8])
def test_a_block_within_the_window_may_be_cut(take: int) -> None:
    codec = Codec.from_caches([window(1)])
    assert codec.can_cut(8, take)
    parts = [(p, 8) for p in codec.pack([window(16, 16)], 0, [8, 8])]
    (restored,) = codec.restore([parts[0], (parts[1][0], take)])
    assert held(restored) == list(range(8 + take))


def test_a_block_longer_than_the_window_stores_its_end_only() -> None:
    codec = Codec.from_caches([window(1, size=4)])
    assert not codec.can_cut(8, 7)
    assert codec.can_cut(8, 8)
    assert codec.can_cut(4, 3)
    assert [spec.shape for spec in codec.specs(8)] == [(2, 1, 4, 1)]
    (payload,) = codec.pack([window(8, size=4)], 0, [8])
    (tail,) = codec.pack([feed(window(8, size=4), 8, 11, 8)], 8, [3])
    (restored,) = codec.restore([(payload, 8), (tail, 2)])
    assert held(restored) == [6, 7, 8, 9]
    with pytest.raises(AssertionError):
        codec.restore([(payload, 7)])


def test_a_window_that_has_moved_on_is_not_stored() -> None:
    codec = Codec.from_caches([window(1)])
    assert codec.pack([window(48)], 0, [8, 8]) == []
    with pytest.raises(AssertionError, match="covers"):
        codec.pack([window(8)], 8, [8])


def test_state_and_lists_of_caches_come_back() -> None:
    kv = feed(KVCache(), 0, 5, 5)
    caches = [CacheList(state(1.0, None, 2.0), kv), state(3.0)]
    codec = Codec.from_caches(caches)
    assert (codec.has_blocks, codec.has_states, codec.is_sliceable) == (True, True, False)
    snapshot = codec.pack_states(caches, 5)
    assert snapshot is not None
    (payload,) = codec.pack(caches, 0, [5])
    both, alone = codec.restore([(payload, 5)], snapshot)
    assert type(both) is CacheList
    assert type(alone) is ArraysCache
    first, middle, last = both.caches[0].cache
    assert middle is None
    assert [a[0, 0, 0].item() for a in (first, last, alone.cache[0])] == [1, 2, 3]
    assert both.caches[1].offset == 5
    with pytest.raises(AssertionError):
        codec.restore([(payload, 4)], snapshot)


def test_a_snapshot_of_another_position_or_form_is_not_taken() -> None:
    kv = feed(KVCache(), 0, 5, 5)
    codec = Codec.from_caches([state(1.0, None), kv])
    assert codec.pack_states([state(1.0, None), kv], 4) is None
    assert codec.pack_states([state(1.0, 2.0), kv], 5) is None
    assert codec.pack_states([state(None, None), kv], 5) is None
    odd = ArraysCache.from_state(([mx.zeros((1, 9)), None], None, None))
    assert codec.pack_states([odd, kv], 5) is None


def test_the_layout_names_every_kind() -> None:
    """Golden: it is part of the root hash, so a change makes every stored block a miss."""
    codec = Codec.from_caches([CacheList(state(1.0, None), window(1)), feed(KVCache(), 0, 1, 1)])
    assert codec.layout()["sections"] == (
        "kv.0=F32[2,1,count,1]:1k,1v;window.0=F32[2,1,min(16,count),1]:0.1k,0.1v;"
        "state.0=F32[1,2,3]:0.0s0of2"
    )
    assert [s.name for s in codec.specs(4)] == ["kv.0", "window.0"]
    assert [(s.name, s.shape) for s in codec.state_specs()] == [("state.0", (1, 2, 3))]


class OddArrays(ArraysCache):
    """Might keep more than its slots."""


@pytest.mark.parametrize(
    "cache",
    [OddArrays(1), ChunkedKVCache(8), RotatingKVCache(8, keep=2), ArraysCache(2)],
    ids=lambda cache: type(cache).__name__,
)
def test_what_is_not_known_is_refused_inside_a_list_too(cache: Any) -> None:
    with pytest.raises(UncacheableError, match=r"layer 0\.1"):
        Codec.from_caches([CacheList(feed(KVCache(), 0, 1, 1), cache)])


def key(position: int) -> BlockKey:
    name = BlockHash(position.to_bytes(32, "big"))
    return BlockKey(BlockHash(bytes(32)), name, 1, BlockKind.STATE)


class Bytes:
    nbytes = 10


def test_the_least_recently_used_snapshot_goes_first() -> None:
    kept: Snapshots[Bytes] = Snapshots(20)
    entries = [Entry(key(i), np.zeros(1, np.uint32), Bytes()) for i in range(4)]
    assert kept.add(entries[0]) == kept.add(entries[1]) == []
    kept.touch(key(0))
    assert kept.add(entries[2]) == [entries[1]]
    assert {e.key for e in kept.children(key(0).parent)} == {key(0), key(2)}
    assert (kept.used_bytes, len(kept), kept.evicted) == (20, 2, 1)
    small: Snapshots[Bytes] = Snapshots(5)
    assert small.add(entries[3]) == [entries[3]]
    assert Snapshots(MANY).remove(key(9)) is None


@pytest.mark.parametrize(
    ("positions", "gone"),
    [
        ([], []),
        ([4, 8, 12], []),
        ([4, 8, 12, 16], [8]),
        ([4096, 8192, 12288, 16384, 16999], [8192]),
        ([4096, 12288, 13000, 14000, 15000], [13000]),
    ],
)
def test_the_first_the_newest_and_one_every_8192_stay(
    positions: list[int], gone: list[int]
) -> None:
    assert [p for p, _ in outdated([(p, key(p)) for p in positions])] == gone
