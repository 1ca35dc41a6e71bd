"""Tokens out of the layer caches of a row, in the form of blocks.

Knows nothing about models or payloads. Engine thread only.
"""

from collections.abc import Sequence
from typing import Any, cast

import mlx.core as mx
from mlx_lm.models.cache import KVCache, RotatingKVCache

from omlx.cache.mover import Mover


class Stretch:
    """Keys and values of one plain cache in the order of their tokens, [first, end).

    Of a cache that keeps all of them it begins at `start`.
    """

    def __init__(self, cache: Any, start: int) -> None:
        self._arrays: dict[str, mx.array] = {}
        self._whole: dict[str, mx.array] = {}
        self.first = self.end = 0
        kind = cast(type[object], type(cache))
        if kind is KVCache:
            self._whole = {"k": cache.keys, "v": cache.values}
            self._arrays = {"k": cache.keys[:, :, start:], "v": cache.values[:, :, start:]}
            self.first, self.end = start, cache.offset
        elif kind is RotatingKVCache:
            keys, values, end, keep, _, place = cache.state
            assert keep == 0
            self.end = int(end)
            self._arrays = {
                "k": _in_order(keys, self.end, place),
                "v": _in_order(values, self.end, place),
            }
            self.first = self.end - int(self._arrays["k"].shape[2])

    def get(self, name: str, total: int) -> mx.array:
        """Tokens [first, total) of keys or values, [heads, tokens, width]."""
        return self._arrays[name][0, :, : total - self.first]

    def buffer(self, name: str) -> mx.array | None:
        """The whole buffer [1, heads, room, width] of a cache that keeps all tokens."""
        return self._whole.get(name)


class Cut:
    """Cuts tokens out of a group of leaves, each given by its stretch and name; by a kernel where
    one is faster and the buffers are those of the row (`is_own`)."""

    def __init__(
        self,
        own: Sequence[tuple[Stretch, str]],
        total: int,
        dtype: str,
        mover: Mover,
        *,
        is_own: bool,
    ) -> None:
        self.first = own[0][0].first
        self._own, self._total, self._dtype, self._mover = own, total, dtype, mover
        self._stack: Any = None
        buffers = [row.buffer(name) for row, name in own] if is_own else []
        self._buffers = [one for one in buffers if one is not None]
        if len(self._buffers) < len(own) or len({one.shape for one in self._buffers}) > 1:
            self._buffers = []

    def tokens(self, begin: int, end: int) -> mx.array:
        """Those from `begin` to `end`, in the form of blocks, in storage of their own."""
        if self._buffers:
            found = self._mover.gather(self._buffers, begin, end, dtype=self._dtype)
            if found is not None:
                return found
        if self._stack is None:
            stack = mx.stack([row.get(name, self._total) for row, name in self._own])
            self._stack = self._mover.packed(stack)
        return mx.contiguous(self._stack[:, :, begin - self.first : end - self.first, :])


def _in_order(ring: mx.array, offset: int, place: int) -> mx.array:
    """A ring whose next token goes to `place`, oldest token first, without unused room."""
    if place == ring.shape[2]:
        return ring
    if place < offset:
        return mx.concatenate([ring[:, :, place:], ring[:, :, :place]], axis=2)
    return ring[:, :, :place]
