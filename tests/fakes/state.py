"""State that follows from the token prefix alone, in the place of a model's keys and values.

Position i holds a checksum of tokens 0..i, so state of the right token after a wrong prefix shows.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.models.cache import KVCache, RotatingKVCache

from omlx.cache.leaves import Leaf

LEAVES = (Leaf((0,), "k", 2, 1, "F32"), Leaf((0,), "v", 2, 3, "F32"))
BYTES_PER_TOKEN = 2 * (1 + 3) * 4
WINDOW_BYTES_PER_TOKEN = 2 * 4
_ODD = np.uint64(0x9E3779B97F4A7C15)


def checksums(tokens: Sequence[int] | np.ndarray) -> np.ndarray:
    """One number a position, 20 bits of a sum of mixed tokens and places; exact in float32."""
    places = np.arange(1, len(tokens) + 1, dtype=np.uint64)
    mixed = np.asarray(tokens, dtype=np.uint64) + places * _ODD
    for shift in (30, 27, 31):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * _ODD
    return (np.cumsum(mixed, dtype=np.uint64) >> np.uint64(44)).astype(np.float32)


def leaves(window: int = 0) -> tuple[Leaf, ...]:
    """Those of a model with one layer, or with a second one that sees `window` tokens."""
    own = (Leaf((1,), name, 1, 1, "F32", window) for name in "kv")
    return (*LEAVES, *own) if window else LEAVES


def caches(tokens: Sequence[int], window: int = 0) -> list[Any]:
    """The layer caches of a row that has seen `tokens` and moves no window on."""
    row = mx.array(checksums(tokens)).reshape(1, 1, -1, 1)
    keys = mx.concatenate([row, row + 0.5], axis=1)
    values = mx.concatenate([keys, keys + 1, keys + 2], axis=3)
    cache = KVCache()
    cache.keys, cache.values, cache.offset = keys, values, len(tokens)
    if not window:
        return [cache]
    ring = (row + 2, row + 3, len(tokens), 0, window, len(tokens))
    return [cache, RotatingKVCache.from_state(ring)]


def holds(restored: Sequence[Any], tokens: Sequence[int], window: int = 0) -> bool:
    """Whether restored layer caches are exactly the state after `tokens`."""
    wanted = caches(tokens, window)
    if [c.offset for c in restored] != [len(tokens)] * len(wanted):
        return False
    pairs = list(zip(restored[0].keys_and_values(), wanted[0].keys_and_values(), strict=True))
    if window:
        last = [a[:, :, -window:] for a in wanted[1].state[:2]]
        pairs += zip(restored[1].state[:2], last, strict=True)
    return all(np.array_equal(np.array(held), np.array(right)) for held, right in pairs)
