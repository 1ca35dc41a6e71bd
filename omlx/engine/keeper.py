"""Between the rows of a batch and the prefix cache: what is restored into one and kept of it.

Knows nothing about queues or events. Engine thread only.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from omlx.cache.block import Chain
from omlx.cache.hashing import token_array
from omlx.cache.lookup import Hit
from omlx.cache.prefix import PrefixCache
from omlx.engine.row import Row


class SlicedBatch(Protocol):
    """What the keeper needs of a batch; see omlx.engine.batch.Batch."""

    def num_cached(self, row_id: str) -> int: ...
    def caches(self, row_id: str) -> list[Any]: ...


class Keeper:
    """`prefix` is None for a model without a cache: every look-up then finds nothing."""

    def __init__(self, batch: SlicedBatch, prefix: PrefixCache | None) -> None:
        self._batch = batch
        self._prefix = prefix

    def look_up(self, tokens: Sequence[int], done: Callable[[Hit], None]) -> None:
        """Find what is stored of a prompt; `done` is called now or once the disk has answered."""
        array = token_array(tokens)
        if self._prefix is None:
            done(Hit((), 0, 0, Chain(array)))
        else:
            self._prefix.look_up(array, done)

    def restore(self, row: Row) -> list[Any] | None:
        """Layer caches of what was found for a row, and let go of its payloads."""
        hit = row.hit
        if self._prefix is None or hit is None or not hit.num_tokens:
            return None
        caches = self._prefix.restore(hit)
        row.forget_parts()
        return caches

    def keep(
        self, row: Row, num_cached: int, *, is_end: bool, final: list[Any] | None = None
    ) -> None:
        """Store the blocks that a row has completed, and at an end the tail as well.

        `final` are the layer caches of a row that has left the batch.
        """
        prefix, chain = self._prefix, row.chain
        if prefix is None or chain is None:
            return
        has_new_blocks = num_cached // prefix.block_size > len(chain.names)
        has_snapshot = prefix.wants_snapshot(chain, num_cached, is_end=is_end)
        if not (is_end or has_new_blocks or has_snapshot):
            return
        if num_cached > len(chain.tokens):  # a prompt's array is there from its look-up
            chain.tokens = token_array(row.all_tokens())
        stretch = prefix.missing(chain, num_cached)
        caches = final
        if caches is None and (stretch or is_end or has_snapshot):
            caches = self._batch.caches(row.id)
        if caches is None:
            return
        if stretch is not None:
            prefix.store(chain, caches, stretch[1] - stretch[0])
        tail = prefix.missing_tail(chain, num_cached) if is_end else None
        if tail is not None:
            prefix.store_tail(chain, caches, tail[1] - tail[0])
        if has_snapshot:
            prefix.store_snapshot(chain, caches, num_cached)

    def keep_aborted(self, row: Row) -> None:
        """Store what an aborted row in the batch has computed, on disk at once."""
        num_cached = self._batch.num_cached(row.id)
        if num_cached and self._prefix is not None and row.chain is not None:
            self.keep(row, num_cached, is_end=True)
            self._prefix.hurry(row.chain)

    def tick(self, *, is_busy: bool) -> float | None:
        """Upkeep between two steps, `is_busy` while the batch has rows; seconds until there is more
        to do, None for never."""
        return None if self._prefix is None else self._prefix.tick(is_busy=is_busy)
