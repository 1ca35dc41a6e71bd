"""One look-up on its way through the memory tier, the disk's index and the disk.

Knows nothing about storing. Owned by the engine thread.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from omlx.cache.block import Chain
from omlx.cache.codec import Codec
from omlx.cache.hashing import TokenArray, chain_hashes, common_prefix
from omlx.cache.io import DiskTier, Found, ReadJob
from omlx.cache.leaves import Payload
from omlx.cache.memory import Entry, MemoryTier
from omlx.cache.snapshots import Snapshots
from omlx.cache.trail import Trail, TrailNotes
from omlx.cache.writeback import WriteBack
from omlx.storage.layout import BlockHash, BlockKey, RootHash


@dataclass(frozen=True, slots=True)
class Tiers:
    """The parts of one model's cache; `disk` is None where it is off."""

    root: RootHash
    codec: Codec
    memory: MemoryTier[Payload]
    writeback: WriteBack
    disk: DiskTier | None
    block_size: int
    snapshots: Snapshots[Payload]

    def parent(self, names: Sequence[BlockHash], index: int) -> BlockHash:
        """The parent of block `index` of a chain; the first one's is the root."""
        return names[index - 1] if index else BlockHash(self.root)


@dataclass(frozen=True, slots=True)
class Hit:
    """What a look-up found: `parts` are payloads with how many of their tokens to take, `states`
    the snapshot after them where the model has recurrent layers."""

    parts: tuple[tuple[Payload, int], ...]
    from_memory: int
    from_disk: int
    chain: Chain
    states: Payload | None = None
    trail: Trail | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens that need no prefill."""
        return self.from_memory + self.from_disk


_InMemory = tuple[Entry[Payload], int]


class Lookup:
    """Finds the longest stored prefix of `tokens`, to the token, and gives it to `done`.

    The last token is never taken from the cache: its logits are needed.
    """

    def __init__(self, tiers: Tiers, tokens: TokenArray, done: Callable[[Hit], None]) -> None:
        self._tiers = tiers
        self._tokens = tokens
        self._done = done
        self._limit = len(tokens) - 1
        self._names = chain_hashes(tiers.root, tokens, tiers.block_size)
        self._notes = TrailNotes(tiers.root, tokens, self._names, block_size=tiers.block_size)
        self._parts: list[tuple[Payload, int]] = []
        self._used: list[BlockKey] = []
        self._num_full = 0
        self._from_memory = 0

    def start(self) -> None:
        """Begin; `done` is called before this returns or after the disk has answered."""
        tiers, size = self._tiers, self._tiers.block_size
        usable = self._limit // size
        while self._num_full < usable:
            entry = tiers.memory.get(self._names[self._num_full])
            if entry is None:
                break
            self._take(entry.key, entry.payload, size)
            self._num_full += 1
        partial = self._best_in_memory()
        self._from_memory = self._num_full * size + (partial[1] if partial else 0)
        if tiers.disk is None or self._from_memory == self._limit:
            self._finish(partial)
            return
        keys = [
            BlockKey(tiers.parent(self._names, i), self._names[i], size)
            for i in range(self._num_full, usable)
        ]
        rest = self._tokens[self._num_full * size : self._limit]
        parent = tiers.parent(self._names, self._num_full)
        tiers.disk.find(keys, parent, rest, lambda found: self._found(found, keys, partial))

    def _take(self, key: BlockKey, payload: Payload, take: int) -> None:
        self._parts.append((payload, take))
        self._used.append(key)

    def _best_in_memory(self) -> _InMemory | None:
        tiers = self._tiers
        rest = self._tokens[self._num_full * tiers.block_size : self._limit]
        best: _InMemory | None = None
        for entry in tiers.memory.children(tiers.parent(self._names, self._num_full)):
            take = common_prefix(entry.tokens, rest)
            self._notes.met(entry.key, start=self._num_full * tiers.block_size, take=take)
            if take > (best[1] if best else 0) and tiers.codec.can_cut(entry.key.count, take):
                best = entry, take
        return best

    def _found(self, found: Found, keys: list[BlockKey], partial: _InMemory | None) -> None:
        tiers, size = self._tiers, self._tiers.block_size
        if found.nearest is not None:
            start = (self._num_full + found.num_blocks) * size
            self._notes.met(found.nearest.key, start=start, take=found.nearest.take)
        chosen = found.partial
        if chosen is not None and not tiers.codec.can_cut(chosen.key.count, chosen.take):
            chosen = None
        in_memory = partial[1] if partial else 0
        if not found.num_blocks and (chosen.take if chosen else 0) <= in_memory:
            self._finish(partial)
            return
        assert tiers.disk is not None
        self._from_memory = self._num_full * size
        wanted = [
            (key, self._tokens[self._from_memory + i * size :][:size], size)
            for i, key in enumerate(keys[: found.num_blocks])
        ]
        if chosen is not None:
            wanted.append((chosen.key, chosen.tokens, chosen.take))
        landings = [tiers.codec.allocate(key.count) for key, _, _ in wanted]
        jobs = [
            ReadJob(key, tokens.tobytes(), landing.sections())
            for (key, tokens, _), landing in zip(wanted, landings, strict=True)
        ]

        def landed(results: list[bool]) -> None:
            for (key, tokens, take), landing, is_good in zip(
                wanted, landings, results, strict=True
            ):
                if not is_good:
                    break
                self._land(key, tokens, landing.payload(), take)
            if results[0]:
                self._finish(None)
            else:
                self._from_memory += in_memory
                self._finish(partial)

        tiers.disk.read(jobs, landed)

    def _land(self, key: BlockKey, tokens: TokenArray, payload: Payload, take: int) -> None:
        """Use a block that was read, and keep it in memory."""
        tiers = self._tiers
        self._take(key, payload, take)
        if take == tiers.block_size:
            self._num_full += 1
        if tiers.memory.get(key.name) is None:
            entry = Entry(key, tokens.copy(), payload, is_on_disk=True)
            tiers.writeback.leaving(tiers.memory.add(entry))

    def _finish(self, partial: _InMemory | None) -> None:
        tiers = self._tiers
        if partial is not None:
            self._take(partial[0].key, partial[0].payload, partial[1])
        total = sum(take for _, take in self._parts)
        tiers.memory.touch([key.name for key in self._used])
        if tiers.disk is not None and self._used:
            tiers.disk.touch(self._used[::-1])
        chain = Chain(self._tokens, list(self._names[: self._num_full]))
        from_memory = min(self._from_memory, total)
        trail = self._notes.trail(self._num_full)
        hit = Hit(tuple(self._parts), from_memory, total - from_memory, chain, trail=trail)
        self._done(hit)
