"""The prefix cache of one model: look a sequence up, keep what a running one computes.

Knows nothing about batches, text or HTTP. Owned by the engine thread; the disk answers through
callbacks on that same thread. No failure of the cache leaves this module: it is a miss.
"""

from collections.abc import Callable, Sequence
from typing import Any

from omlx.cache.block import Chain
from omlx.cache.codec import LayerSlice, Payload
from omlx.cache.hashing import TokenArray, common_prefix, compute_block_hash
from omlx.cache.lookup import Hit, Lookup, Tiers
from omlx.cache.memory import Entry
from omlx.storage.layout import BlockHash, BlockKey


class PrefixCache:
    """Finds the longest stored prefix of a sequence, to the token, and stores what is computed."""

    def __init__(self, tiers: Tiers, *, clock: Callable[[], float]) -> None:
        self._tiers = tiers
        self._memory = tiers.memory
        self._writeback = tiers.writeback
        self._clock = clock
        self.block_size = tiers.block_size
        self.blocks_stored = 0

    def look_up(self, tokens: TokenArray, done: Callable[[Hit], None]) -> None:
        """Find what is stored of `tokens`; `done` gets it, now or after the disk has answered."""
        Lookup(self._tiers, tokens, done).start()

    def restore(self, hit: Hit) -> list[Any]:
        """Layer caches that hold what was found, in the form of a live row's."""
        return self._tiers.codec.restore(hit.parts)

    def missing(self, chain: Chain, num_cached: int) -> tuple[int, int] | None:
        """The stretch [start, end) of a row that completes blocks not kept yet; None without any.

        `num_cached` is how many tokens of `chain.tokens` the row's state covers. Blocks that
        another row has stored meanwhile are taken over. Mutates `chain`.
        """
        size = self.block_size
        while (len(chain.names) + 1) * size <= num_cached:
            name = self._next_name(chain)
            if self._memory.get(name) is None:
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

    def store(self, chain: Chain, layers: Sequence[LayerSlice], num_tokens: int) -> None:
        """Keep the next full blocks of a row: `layers` covers `num_tokens` of them, a multiple of
        the block size. Mutates `chain`."""
        size = self.block_size
        for payload in self._tiers.codec.pack(layers, [size] * (num_tokens // size)):
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
        if not 0 < len(rest) < self.block_size:
            return None
        for child in self._memory.children(self._tiers.parent(chain.names, len(chain.names))):
            if common_prefix(child.tokens, rest) == len(rest):
                return None
        return start, num_cached

    def store_tail(self, chain: Chain, layers: Sequence[LayerSlice], num_tokens: int) -> None:
        """Keep the short last block of a row; `layers` covers its `num_tokens` tokens."""
        start = len(chain.names) * self.block_size
        tokens = chain.tokens[start : start + num_tokens]
        parent = self._tiers.parent(chain.names, len(chain.names))
        name = compute_block_hash(
            self._tiers.root, chain.names[-1] if chain.names else None, tokens
        )
        if self._memory.get(name) is None:
            (payload,) = self._tiers.codec.pack(layers, [num_tokens])
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
            self._writeback.superseded(entry, by=key.name)
        entry = Entry(key, tokens.copy(), payload)
        self.blocks_stored += 1
        self._writeback.added(entry, self._clock())
        self._writeback.leaving(self._memory.add(entry))

    def hurry(self, chain: Chain) -> None:
        """Write what is kept of an aborted sequence at once."""
        names = [*chain.names]
        tails = self._memory.children(self._tiers.parent(names, len(names)))
        self._writeback.hurry([*names, *(tail.key.name for tail in tails)])

    def tick(self, *, is_busy: bool = False) -> float | None:
        """Write what has been idle long enough; seconds until there is more, None for never."""
        return self._writeback.tick(self._clock(), is_busy=is_busy)

    def flush(self, timeout_s: float) -> bool:
        """Write all that is not on disk yet; False when the limit came first."""
        return self._writeback.flush(timeout_s)
