"""The prefix cache of one model: look a sequence up, keep what a running one computes.

Knows nothing about batches, text or HTTP. Owned by the engine thread; the disk answers through
callbacks on that same thread. No failure of the cache leaves this module: it is a miss.
"""

from collections.abc import Callable, Sequence
from typing import Any

from omlx.cache.block import Chain
from omlx.cache.hashing import TokenArray, common_prefix, compute_block_hash
from omlx.cache.leaves import Payload
from omlx.cache.lookup import Hit, Lookup, Tiers
from omlx.cache.memory import Entry
from omlx.cache.snapshots import outdated
from omlx.cache.statelookup import StateLookup
from omlx.storage.layout import BlockHash, BlockKey, BlockKind


class PrefixCache:
    """Finds the longest stored prefix of a sequence, to the token, and stores what is computed."""

    def __init__(
        self,
        tiers: Tiers,
        *,
        clock: Callable[[], float],
        snapshot_interval: int = 4096,
    ) -> None:
        self._tiers = tiers
        self._memory = tiers.memory
        self._writeback = tiers.writeback
        self._clock = clock
        self._snapshot_interval = snapshot_interval
        self.block_size = tiers.block_size
        self.blocks_stored = 0

    def look_up(self, tokens: TokenArray, done: Callable[[Hit], None]) -> None:
        """Find what is stored of `tokens`; `done` gets it, now or after the disk has answered."""
        if self._tiers.codec.has_states:
            StateLookup(self._tiers, tokens, done).start()
        else:
            Lookup(self._tiers, tokens, done).start()

    def restore(self, hit: Hit) -> list[Any]:
        """Layer caches that hold what was found, in the form of a live row's."""
        return self._tiers.codec.restore(hit.parts, hit.states)

    def missing(self, chain: Chain, num_cached: int) -> tuple[int, int] | None:
        """The stretch [start, end) of a row that completes blocks not kept yet; None without any.

        `num_cached` is how many tokens of `chain.tokens` the row's state covers. Blocks that
        another row has stored meanwhile are taken over. Mutates `chain`.
        """
        size = self.block_size
        while (len(chain.names) + 1) * size <= num_cached:
            name = self._next_name(chain)
            if self._memory.get(name) is None and self._tiers.codec.has_blocks:
                start = len(chain.names) * size
                return start, num_cached // size * size
            chain.names.append(name)
        return None

    def _next_name(self, chain: Chain) -> BlockHash:
        index, size = len(chain.names), self.block_size
        return compute_block_hash(
            self._tiers.root,
            chain.names[-1] if chain.names else None,
            chain.tokens[index * size : (index + 1) * size],
        )

    def store(self, chain: Chain, caches: Sequence[Any], num_tokens: int) -> None:
        """Keep the next full blocks of a row, `num_tokens` in all, a multiple of the block size;
        `caches` are its layer caches. Mutates `chain`."""
        size = self.block_size
        counts = [size] * (num_tokens // size)
        for payload in self._tiers.codec.pack(caches, len(chain.names) * size, counts):
            start = len(chain.names) * size
            parent = self._tiers.parent(chain.names, len(chain.names))
            name = self._next_name(chain)
            chain.names.append(name)
            if self._memory.get(name) is None:
                self._keep(
                    BlockKey(parent, name, size), chain.tokens[start : start + size], payload
                )
        self._memory.touch(chain.names)

    def missing_tail(self, chain: Chain, num_cached: int) -> tuple[int, int] | None:
        """The stretch after the last full block if no stored block covers it; else None."""
        start = len(chain.names) * self.block_size
        rest = chain.tokens[start:num_cached]
        if not 0 < len(rest) < self.block_size or not self._tiers.codec.has_blocks:
            return None
        for child in self._memory.children(self._tiers.parent(chain.names, len(chain.names))):
            is_same = common_prefix(child.tokens, rest) == len(rest)
            if is_same and self._tiers.codec.can_cut(child.key.count, len(rest)):
                return None
        return start, num_cached

    def store_tail(self, chain: Chain, caches: Sequence[Any], num_tokens: int) -> None:
        """Keep the short last block of a row, `num_tokens` long; `caches` are its layer caches."""
        start = len(chain.names) * self.block_size
        tokens = chain.tokens[start : start + num_tokens]
        parent = self._tiers.parent(chain.names, len(chain.names))
        name = compute_block_hash(
            self._tiers.root, chain.names[-1] if chain.names else None, tokens
        )
        if self._memory.get(name) is None:
            for payload in self._tiers.codec.pack(caches, start, [num_tokens]):
                self._keep(BlockKey(parent, name, num_tokens), tokens, payload)
        self._memory.touch([*chain.names, name])

    def _keep(self, key: BlockKey, tokens: TokenArray, payload: Payload) -> None:
        superseded = [
            child.key
            for child in self._memory.children(key.parent)
            if child.key.count < key.count
            and common_prefix(child.tokens, tokens) == len(child.tokens)
        ]
        for old in superseded:
            entry = self._memory.remove(old.name)
            assert entry is not None
            self._writeback.superseded(entry, by=key)
        entry = Entry(key, tokens.copy(), payload)
        self.blocks_stored += 1
        self._writeback.added(entry, self._clock())
        self._writeback.leaving(self._memory.add(entry))

    def wants_snapshot(self, chain: Chain, position: int, *, is_end: bool) -> bool:
        """Whether recurrent state after `position` tokens is to be kept: at ends and at times."""
        if not self._tiers.codec.has_states or not position:
            return False
        last = chain.snapshots[-1][0] if chain.snapshots else 0
        return position > last and (is_end or position - last >= self._snapshot_interval)

    def store_snapshot(self, chain: Chain, caches: Sequence[Any], position: int) -> None:
        """Keep the recurrent state of a row whose `caches` cover exactly `position` tokens.

        Older ones of the row that are too close are let go. Mutates `chain`.
        """
        size = self.block_size
        index = (position - 1) // size
        if len(chain.names) < position // size:
            return  # blocks on the way are not kept, so it could never be used
        parent = self._tiers.parent(chain.names, index)
        tokens = chain.tokens[index * size : position]
        name = compute_block_hash(self._tiers.root, parent if index else None, tokens)
        key = BlockKey(parent, name, len(tokens), BlockKind.STATE)
        snapshots = self._tiers.snapshots
        is_new = snapshots.get(key) is None
        if is_new:
            payload = self._tiers.codec.pack_states(caches, position)
            if payload is None:
                return
            entry = Entry(key, tokens.copy(), payload)
            self._writeback.added(entry, self._clock())
            self._writeback.leaving(snapshots.add(entry))
        snapshots.touch(key)
        chain.snapshots.append((position, key))
        if not is_new:
            return
        for old in outdated(chain.snapshots):
            chain.snapshots.remove(old)
            gone = snapshots.remove(old[1])
            if gone is not None:
                self._writeback.superseded(gone, by=key)
            else:
                self._writeback.outdated(old[1], by=key)

    def hurry(self, chain: Chain) -> None:
        """Write what is kept of an aborted sequence at once."""
        names = chain.names
        entries = [entry for name in names if (entry := self._memory.get(name)) is not None]
        entries += self._memory.children(self._tiers.parent(names, len(names)))
        keys = [entry.key for entry in entries]
        self._writeback.hurry([*keys, *(key for _, key in chain.snapshots)])

    def tick(self, *, is_busy: bool = False) -> float | None:
        """Write what has been idle long enough; seconds until there is more, None for never."""
        return self._writeback.tick(self._clock(), is_busy=is_busy)

    def flush(self, timeout_s: float) -> bool:
        """Write all that is not on disk yet; False when the limit came first."""
        return self._writeback.flush(timeout_s)
