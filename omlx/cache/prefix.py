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
from omlx.cache.policy import StorePolicy
from omlx.cache.salting import salted_root
from omlx.cache.statelookup import StateLookup
from omlx.cache.statestore import StateStore
from omlx.cache.way import Way
from omlx.storage.layout import BlockHash, BlockKey


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
        self.states = StateStore(tiers, clock=clock, interval=snapshot_interval)
        self.block_size = tiers.block_size
        self.has_states = tiers.codec.has_states
        self.blocks_stored = 0

    def look_up(self, tokens: TokenArray, done: Callable[[Hit], None], *, salt: str = "") -> None:
        """Find what is stored of `tokens`; `done` gets it, now or after the disk has answered."""
        kind = StateLookup if self.has_states else Lookup
        kind(self._tiers, tokens, done, salt=salt).start()

    def restore(self, hit: Hit) -> list[Any]:
        """Layer caches that hold what was found, in the form of a live row's."""
        return self._tiers.codec.restore(hit.parts, hit.states)

    def claim(self, chain: Chain) -> None:
        """Have what a sequence found in memory written, where others wanted it on no disk; its own
        tokens are all that it tells (mutates)."""
        for name in chain.names:
            self._claim(chain, self._memory.get(name))
        for _, key in chain.snapshots:
            self._claim(chain, self._tiers.snapshots.get(key))

    def _claim(self, chain: Chain, entry: Entry[Payload] | None) -> None:
        if entry is not None and chain.policy is StorePolicy.ALL:
            self._writeback.claim(entry, self._clock())

    def missing(self, chain: Chain, num_cached: int) -> tuple[int, int] | None:
        """The stretch [start, end) of a row that completes blocks not kept yet; None without any.

        `num_cached` is how many tokens of `chain.tokens` the row's state covers. Blocks that
        another row has stored meanwhile are taken over. Mutates `chain`.
        """
        size = self.block_size
        while (len(chain.names) + 1) * size <= num_cached:
            name = self._next_name(chain)
            entry = self._memory.get(name)
            if entry is None and self._tiers.codec.has_blocks:
                start = len(chain.names) * size
                return start, num_cached // size * size
            self._claim(chain, entry)
            chain.names.append(name)
        return None

    def _parent(self, chain: Chain) -> BlockHash:
        """What the next block of a chain continues."""
        return self._tiers.parent(chain.names, len(chain.names), chain.salt)

    def _next_name(self, chain: Chain) -> BlockHash:
        index, size = len(chain.names), self.block_size
        return compute_block_hash(
            self._tiers.root,
            self._parent(chain),
            chain.tokens[index * size : (index + 1) * size],
        )

    def store(self, chain: Chain, caches: Sequence[Any], num_tokens: int) -> None:
        """Keep the next full blocks of a row, `num_tokens` in all, a multiple of the block size;
        `caches` are its layer caches. Mutates `chain`."""
        size, codec = self.block_size, self._tiers.codec
        counts, start = [size] * (num_tokens // size), len(chain.names) * self.block_size
        for payload in codec.pack(caches, start, counts, is_own=chain.is_own):
            start = len(chain.names) * size
            parent = self._parent(chain)
            name = self._next_name(chain)
            chain.names.append(name)
            entry = self._memory.get(name)
            if entry is None:
                tokens = chain.tokens[start : start + size]
                self._keep(chain, Entry(BlockKey(parent, name, size), tokens.copy(), payload))
            self._claim(chain, entry)
        self._memory.touch(chain.names)

    def missing_tail(self, chain: Chain, num_cached: int) -> tuple[int, int] | None:
        """The stretch after the last full block if no stored block covers it; else None."""
        start = len(chain.names) * self.block_size
        rest = chain.tokens[start:num_cached]
        if not 0 < len(rest) < self.block_size or not self._tiers.codec.has_blocks:
            return None
        for child in self._memory.children(self._parent(chain)):
            is_same = common_prefix(child.tokens, rest) == len(rest)
            if not is_same or not self._tiers.codec.can_cut(child.key.count, len(rest)):
                continue
            if child.key.count == len(rest):
                self._claim(chain, child)
            if not child.is_memory_only or chain.policy is StorePolicy.MEMORY:
                return None
        return start, num_cached

    def store_tail(
        self, chain: Chain, caches: Sequence[Any], num_tokens: int, *, is_held: bool = False
    ) -> None:
        """Keep the short last block of a row, `num_tokens` long; `caches` are its layer caches.

        One that is held is found, but not written before `release`. Mutates `chain`.
        """
        start = len(chain.names) * self.block_size
        tokens = chain.tokens[start : start + num_tokens]
        parent = self._parent(chain)
        name = compute_block_hash(self._tiers.root, parent, tokens)
        key = BlockKey(parent, name, num_tokens)
        if self._memory.get(name) is None:
            for payload in self._tiers.codec.pack(caches, start, [num_tokens], is_own=chain.is_own):
                self._keep(chain, Entry(key, tokens.copy(), payload), is_held=is_held)
                chain.tail = key
                chain.held = key if is_held else None
        self._memory.touch([*chain.names, name])

    def release(self, chain: Chain) -> None:
        """The row is over: what was held of it may be written (mutates)."""
        if chain.held is not None:
            self._writeback.release(chain.held, self._clock())
            chain.held = None

    def _keep(self, chain: Chain, entry: Entry[Payload], *, is_held: bool = False) -> None:
        entry.is_memory_only = chain.policy is StorePolicy.MEMORY
        self._supersede(chain, entry)
        self.blocks_stored += 1
        self._writeback.added(entry, self._clock(), is_held=is_held)
        self._writeback.leaving(self._memory.add(entry, self._tiers.parent((), 0, chain.salt)))

    def _supersede(self, chain: Chain, entry: Entry[Payload]) -> None:
        """Let go of shorter blocks that a new one holds, but not of such as belong on disk for one
        that doesn't."""
        key, tail = entry.key, chain.tail
        is_elsewhere = tail is not None and self._memory.get(tail.name) is None
        for child in self._memory.children(key.parent):
            is_held = (
                child.key.count < key.count
                and common_prefix(child.tokens, entry.tokens) == child.key.count
            )
            if is_held and (child.is_memory_only or not entry.is_memory_only):
                self._memory.remove(child.key.name)
                self._writeback.superseded(child, by=key)
        if tail is not None and tail != key and is_elsewhere and not entry.is_memory_only:
            self._writeback.outdated(tail, by=key)
        chain.tail = None

    def hurry(self, chain: Chain) -> None:
        """Write what is kept of an aborted sequence at once."""
        names = chain.names
        entries = [entry for name in names if (entry := self._memory.get(name)) is not None]
        entries += self._memory.children(self._parent(chain))
        keys = [entry.key for entry in entries]
        if chain.tail is not None:
            keys.append(chain.tail)
        self._writeback.hurry([*keys, *(key for _, key in chain.snapshots)])

    def give_up(self, num_bytes: int) -> None:
        """Drop so many bytes from memory, blocks before snapshots and those used longest ago first;
        what is dirty is written (mutates)."""
        rest = max(0, num_bytes - self._memory.used_bytes)
        self._writeback.leaving(self._memory.shrink(num_bytes))
        self._writeback.leaving(self._tiers.snapshots.shrink(rest))

    def tick(self, *, is_busy: bool = False) -> float | None:
        """Write what has been idle long enough; seconds until there is more, None for never."""
        return self._writeback.tick(self._clock(), is_busy=is_busy)

    @property
    def num_unwritten(self) -> int:
        """Blocks that are not on disk yet and should be."""
        return self._writeback.num_unwritten

    def flush(self, timeout_s: float) -> bool:
        """Write all that is not on disk yet; False when the limit came first."""
        return self._writeback.flush(timeout_s)

    def drop(self, chain: Chain) -> None:
        """Remove what a look-up of the sequence could use from every tier, since it can't be
        trusted; others that share it only miss it. Mutates `chain`."""
        tiers = self._tiers
        root = salted_root(tiers.root, chain.salt)
        way = Way(root, chain.tokens, tiers.block_size)
        tiers.writeback.drop(way)
        for parent in way.parents:
            for entry in tiers.memory.children(parent):
                if way.has(entry.key, entry.tokens):
                    tiers.memory.remove(entry.key.name)
            for entry in tiers.snapshots.children(parent):
                if way.has(entry.key, entry.tokens):
                    tiers.snapshots.remove(entry.key)
        if tiers.disk is not None:
            tiers.disk.drop(way)
        chain.names.clear()
        chain.snapshots.clear()
        chain.tail = None
