"""Which recurrent states of a running sequence are kept, and their way into the cache.

Knows nothing about look-ups. Owned by the engine thread.
"""

from collections.abc import Callable, Sequence
from typing import Any

from omlx.cache.block import Chain
from omlx.cache.hashing import compute_block_hash
from omlx.cache.lookup import Tiers
from omlx.cache.memory import Entry
from omlx.cache.policy import StorePolicy
from omlx.cache.snapshots import NEWEST, last_within, outdated
from omlx.storage.layout import BlockKey, BlockKind


class StateStore:
    """Takes snapshots of rows: at the head's end, where it is stable, at times, at ends."""

    def __init__(self, tiers: Tiers, *, clock: Callable[[], float], interval: int) -> None:
        self._tiers = tiers
        self._writeback = tiers.writeback
        self._clock = clock
        self._interval = interval

    def wants(self, chain: Chain, position: int, *, is_end: bool) -> bool:
        """Whether the state after `position` tokens is to be kept."""
        if not self._tiers.codec.has_states or not position:
            return False
        last = chain.snapshots[-1][0] if chain.snapshots else 0
        is_place = is_end or position in (chain.head, chain.stable)
        is_place = is_place or position - last >= self._interval
        return position > last and is_place

    def store(self, chain: Chain, caches: Sequence[Any], position: int) -> None:
        """Keep the state of a row whose `caches` cover exactly `position` tokens.

        Older ones of the row that are too close are let go. Mutates `chain`.
        """
        size = self._tiers.block_size
        index = (position - 1) // size
        if len(chain.names) < position // size:
            return  # blocks on the way are not kept, so it could never be used
        parent = self._tiers.parent(chain.names, index, chain.salt)
        tokens = chain.tokens[index * size : position]
        name = compute_block_hash(self._tiers.root, parent, tokens)
        key = BlockKey(parent, name, len(tokens), BlockKind.STATE)
        snapshots = self._tiers.snapshots
        known = snapshots.get(key)
        if known is None:
            payload = self._tiers.codec.pack_states(caches, position)
            if payload is None:
                return
            entry = Entry(key, tokens.copy(), payload)
            entry.is_memory_only = chain.policy is StorePolicy.MEMORY
            self._writeback.added(entry, self._clock())
            self._writeback.leaving(snapshots.add(entry))
        elif chain.policy is StorePolicy.ALL:
            self._writeback.claim(known, self._clock())
        snapshots.touch(key)
        chain.snapshots.append((position, key))
        if known is None:
            self._drop_outdated(chain, by=key)
            self._leave_to_disk(chain)

    def _drop_outdated(self, chain: Chain, *, by: BlockKey) -> None:
        is_private = chain.policy is StorePolicy.MEMORY
        for position, key in outdated(chain.snapshots, chain.head, chain.stable):
            entry = self._tiers.snapshots.get(key)
            if is_private and (entry is None or not entry.is_memory_only):
                continue  # it belongs on disk, and the newer one does not
            chain.snapshots.remove((position, key))
            self._tiers.snapshots.remove(key)
            if entry is None or not entry.is_memory_only:
                self._writeback.outdated(key, by=by)

    def _leave_to_disk(self, chain: Chain) -> None:
        """Of those that stay, others go on from the first, the head's, the stable one and the
        newest; of the rest files are enough, so that one long prompt doesn't fill the memory."""
        kept = {chain.head, last_within(chain.snapshots, chain.stable)}
        rest = [key for position, key in chain.snapshots[1:-NEWEST] if position not in kept]
        self._writeback.hurry(rest)
        for key in rest:
            entry = self._tiers.snapshots.get(key)
            if entry is not None and entry.is_on_disk:
                self._tiers.snapshots.remove(key)
