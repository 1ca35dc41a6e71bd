"""Between the rows of a batch and the prefix cache: what is restored into one and kept of it.

Knows nothing about queues or events. Engine thread only.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from omlx.cache.block import Chain
from omlx.cache.hashing import token_array
from omlx.cache.lookup import Hit
from omlx.cache.policy import StorePolicy
from omlx.cache.prefix import PrefixCache
from omlx.engine.row import Row

_LEAST_HEAD = 64  # tokens; fewer are computed sooner than a snapshot is read


class SlicedBatch(Protocol):
    """What the keeper needs of a batch; see omlx.engine.batch.Batch."""

    def settle(self, row_id: str) -> None: ...
    def num_cached(self, row_id: str) -> int: ...
    def caches(self, row_id: str) -> list[Any]: ...
    def owns_caches(self, row_id: str) -> bool: ...


class Keeper:
    """`prefix` is None for a model without a cache: every look-up then finds nothing."""

    def __init__(self, batch: SlicedBatch, prefix: PrefixCache | None) -> None:
        self._batch = batch
        self._prefix = prefix

    def look_up(
        self, tokens: Sequence[int], done: Callable[[Hit], None], *, salt: str = ""
    ) -> None:
        """Find what is stored of a prompt; `done` is called now or once the disk has answered."""
        array = token_array(tokens)
        if self._prefix is None:
            done(Hit((), 0, 0, Chain(array)))
        else:
            self._prefix.look_up(array, done, salt=salt)

    def restore(self, row: Row) -> list[Any] | None:
        """Layer caches of what was found for a row, and let go of its payloads."""
        hit = row.hit
        if self._prefix is None or hit is None:
            return None
        hit.chain.head, hit.chain.stable = self.stops_of(row)
        self._prefix.claim(hit.chain)
        if not hit.num_tokens:
            return None
        caches = self._prefix.restore(hit)
        row.forget_parts()
        return caches

    def keep(
        self, row: Row, num_cached: int, *, is_end: bool, final: list[Any] | None = None
    ) -> None:
        """Store the blocks that a row has completed, and at an end the tail as well.

        `final` are the layer caches of a row that has left the batch. The tail of one that goes
        on is held.
        """
        self._keep(row, num_cached, is_end=is_end, final=final, goes_on=final is None)

    def _keep(
        self,
        row: Row,
        num_cached: int,
        *,
        is_end: bool,
        final: list[Any] | None,
        goes_on: bool,
    ) -> None:
        prefix, chain = self._prefix, row.chain
        if prefix is None or chain is None or chain.policy is StorePolicy.OFF:
            return
        has_new_blocks = num_cached // prefix.block_size > len(chain.names)
        has_snapshot = prefix.states.wants(chain, num_cached, is_end=is_end)
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
        chain.is_own = final is not None or self._batch.owns_caches(row.id)
        if stretch is not None:
            prefix.store(chain, caches, stretch[1] - stretch[0])
        tail = prefix.missing_tail(chain, num_cached) if is_end else None
        if tail is not None:
            prefix.store_tail(chain, caches, tail[1] - tail[0], is_held=goes_on)
        if has_snapshot:
            prefix.states.store(chain, caches, num_cached)

    def keep_preempted(self, row: Row) -> None:
        """Store what a row in the batch has computed, for when it comes back."""
        num_cached = self._batch.num_cached(row.id)
        if num_cached:
            self._keep(row, num_cached, is_end=True, final=None, goes_on=False)

    def keep_aborted(self, row: Row) -> None:
        """Store what an aborted row in the batch has computed, on disk at once."""
        if self._prefix is None or row.chain is None:
            return
        self._batch.settle(row.id)  # the device computes what is launched in any case
        num_cached = self._batch.num_cached(row.id)
        if num_cached:
            self._keep(row, num_cached, is_end=True, final=None, goes_on=False)
            self._prefix.hurry(row.chain)

    def release(self, row: Row) -> None:
        """A row is over, or begins anew: what was held of it may be written."""
        if self._prefix is not None and row.chain is not None:
            self._prefix.release(row.chain)

    def stops_of(self, row: Row) -> tuple[int, int]:
        """Where the prefill of a row has to stop for a snapshot: at its head, and where it is
        stable; 0 for nowhere."""
        if self._prefix is None or not self._prefix.has_states:
            return 0, 0
        places = (row.request.head, row.request.stable)
        head, stable = (place if place >= _LEAST_HEAD else 0 for place in places)
        return head, stable

    def tick(self, *, is_busy: bool) -> float | None:
        """Upkeep between two steps, `is_busy` while the batch has rows; seconds until there is more
        to do, None for never."""
        return None if self._prefix is None else self._prefix.tick(is_busy=is_busy)

    def drop(self, row: Row) -> bool:
        """Remove what fed a row, and what it has stored, from every tier; False without a cache."""
        if self._prefix is None or row.chain is None:
            return False
        row.chain.tokens = token_array(row.all_tokens())
        self._prefix.drop(row.chain)
        return True
