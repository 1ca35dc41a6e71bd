"""One look-up on its way through the memory tier, the disk's index and the disk.

Knows nothing about storing. Owned by the engine thread.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from omlx.cache.block import Chain
from omlx.cache.codec import Codec
from omlx.cache.cost import LoadCost
from omlx.cache.finding import Found
from omlx.cache.hashing import TokenArray, chain_hashes, common_prefix
from omlx.cache.io import DiskTier
from omlx.cache.leaves import Payload
from omlx.cache.memory import Entry, MemoryTier
from omlx.cache.reading import Piece, Reading, gaps
from omlx.cache.salting import salted_root
from omlx.cache.snapshots import Snapshots
from omlx.cache.trail import Trail, TrailNotes
from omlx.cache.writeback import WriteBack
from omlx.storage.layout import BlockHash, BlockKey, RootHash

MAX_FINDS = 3
"""How often a look-up asks what the disk has: once it is read, what it was told of may be bad, or a
longer block may have taken its place."""


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
    cost: LoadCost = field(default_factory=LoadCost)

    @property
    def readable(self) -> DiskTier | None:
        """The disk tier, if it may be read."""
        return self.disk if self.cost.may_load else None

    def parent(self, names: Sequence[BlockHash], index: int, salt: str = "") -> BlockHash:
        """The parent of block `index` of a chain; the first one's is the root of its salt."""
        return names[index - 1] if index else BlockHash(salted_root(self.root, salt))

    def in_memory(
        self, tokens: TokenArray, names: Sequence[BlockHash], most: int, first: BlockHash
    ) -> list[Piece]:
        """The first full blocks of a sequence as far as memory holds them, at most so many; `first`
        is the parent of the first one."""
        size = self.block_size
        found: list[Piece] = []
        for i, (parent, name) in enumerate(zip([first, *names], names[:most], strict=False)):
            own = tokens[i * size : (i + 1) * size]
            entry = self.memory.find(name, parent, own)
            if entry is None:
                break
            found.append(Piece(entry.key, entry.tokens, entry.payload))
        return found


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


def whole(piece: Piece) -> Payload:
    """The payload of a piece that was found or read."""
    assert piece.payload is not None
    return piece.payload


def keep(tiers: Tiers, piece: Piece, first: BlockHash) -> None:
    """Have the memory tier hold what was read of a block of a sequence that begins at `first`."""
    payload, name = whole(piece), piece.key.name
    entry = tiers.memory.get(name)
    if entry is None:
        if piece.is_from_disk:
            entry = Entry(piece.key, piece.tokens.copy(), payload, is_on_disk=True)
            tiers.writeback.leaving(tiers.memory.add(entry, first))
        return
    joined = tiers.codec.joined(entry.payload, payload)
    if joined.nbytes > entry.payload.nbytes:
        tiers.writeback.leaving(tiers.memory.replace(name, joined))


def tail_of(cover: Sequence[tuple[Piece, int]], block_size: int) -> BlockKey | None:
    """The short block that a cover ends with, where it is taken whole."""
    key, take = (cover[-1][0].key, cover[-1][1]) if cover else (None, 0)
    return key if key is not None and take == key.count < block_size else None


class Lookup:
    """Finds the longest stored prefix of `tokens`, to the token, and gives it to `done`.

    The last token is never taken from the cache: its logits are needed.
    """

    def __init__(
        self, tiers: Tiers, tokens: TokenArray, done: Callable[[Hit], None], *, salt: str = ""
    ) -> None:
        self._tiers = tiers
        self._tokens = tokens
        self._done = done
        self._salt = salt
        self._limit = len(tokens) - 1
        root = salted_root(tiers.root, salt)
        self._parents = [BlockHash(root), *chain_hashes(root, tokens, tiers.block_size)]
        self._names = self._parents[1:]
        self._notes = TrailNotes(
            tiers.root, tokens, self._names, block_size=tiers.block_size, first=root
        )
        self._cover: list[tuple[Piece, int]] = []  # with how many of their tokens to take
        self._num_in_memory = 0  # full blocks
        self._num_finds = 0
        self._partial: tuple[Piece, int] | None = None  # what memory has after those

    def start(self) -> None:
        """Begin; `done` is called before this returns or after the disk has answered."""
        size = self._tiers.block_size
        most = self._limit // size
        blocks = self._tiers.in_memory(self._tokens, self._names, most, self._parents[0])
        self._go_on([(block, size) for block in blocks])

    def _go_on(self, at_hand: list[tuple[Piece, int]]) -> None:
        """These full blocks can be used: find what continues them."""
        tiers, size = self._tiers, self._tiers.block_size
        self._cover = at_hand
        self._num_in_memory = len(at_hand)
        self._partial = self._best_in_memory()
        in_memory = self._num_in_memory * size + (self._partial[1] if self._partial else 0)
        is_all = in_memory == self._limit or self._num_finds == MAX_FINDS
        if tiers.readable is None or is_all:
            self._read(self._with_partial())
            return
        self._num_finds += 1
        places = range(self._num_in_memory, self._limit // size)
        keys = [BlockKey(self._parents[i], self._names[i], size) for i in places]
        rest = self._tokens[self._num_in_memory * size : self._limit]
        parent = self._parents[self._num_in_memory]
        tiers.readable.find(keys, parent, rest, lambda found: self._found(found, keys))

    def _best_in_memory(self) -> tuple[Piece, int] | None:
        tiers = self._tiers
        rest = self._tokens[self._num_in_memory * tiers.block_size : self._limit]
        best: tuple[Piece, int] | None = None
        for entry in tiers.memory.children(self._parents[self._num_in_memory]):
            take = common_prefix(entry.tokens, rest)
            self._notes.met(entry.key, start=self._num_in_memory * tiers.block_size, take=take)
            if take > (best[1] if best else 0) and tiers.codec.can_cut(entry.key.count, take):
                best = Piece(entry.key, entry.tokens, entry.payload), take
        return best

    def _with_partial(self) -> list[tuple[Piece, int]]:
        """What memory has of the sequence."""
        full = self._cover[: self._num_in_memory]
        return full if self._partial is None else [*full, self._partial]

    def _found(self, found: Found, keys: list[BlockKey]) -> None:
        tiers, size = self._tiers, self._tiers.block_size
        if found.nearest is not None:
            start = (self._num_in_memory + found.num_blocks) * size
            self._notes.met(found.nearest.key, start=start, take=found.nearest.take)
        chosen = found.partial
        if chosen is not None and not tiers.codec.can_cut(chosen.key.count, chosen.take):
            chosen = None
        in_memory = self._partial[1] if self._partial else 0
        if not found.num_blocks and (chosen.take if chosen else 0) <= in_memory:
            self._read(self._with_partial())
            return
        cover = list(self._cover)
        for key in keys[: found.num_blocks]:
            tokens = self._tokens[len(cover) * size :][:size]
            cover.append((Piece(key, tokens, is_from_disk=True), size))
        if chosen is not None:
            cover.append((Piece(chosen.key, chosen.tokens, is_from_disk=True), chosen.take))
        num_bytes = sum(gap.num_bytes(tiers.codec) for gap in gaps(tiers.codec, cover))
        num_tokens = sum(take for _, take in cover[self._num_in_memory :]) - in_memory
        is_worth = tiers.cost.is_worth_loading(num_bytes, num_tokens)
        self._read(cover if is_worth else self._with_partial())

    def _read(self, cover: list[tuple[Piece, int]]) -> None:
        """Read what is missing of `cover`, which is then what was found."""
        self._cover = cover
        missing = gaps(self._tiers.codec, cover)
        if not missing:
            self._finish()
            return
        tiers = self._tiers
        assert tiers.disk is not None
        tiers.memory.touch([piece.key.name for piece, _ in cover])
        Reading(
            tiers.disk,
            tiers.codec,
            tiers.cost,
            missing,
            arrived=lambda piece: keep(tiers, piece, self._parents[0]),
            done=self._ended,
        ).start()

    def _ended(self, bad: Piece | None) -> None:
        if bad is None:
            self._finish()
            return
        idx = next(i for i, (piece, _) in enumerate(self._cover) if piece is bad)
        if bad.payload is not None:  # its windows can't be had any more
            self._tiers.memory.remove(bad.key.name)
        self._go_on(self._cover[:idx])

    def _finish(self) -> None:
        tiers, size = self._tiers, self._tiers.block_size
        used = [piece.key for piece, _ in self._cover]
        tiers.memory.touch([key.name for key in used])
        if tiers.disk is not None and used:
            tiers.disk.touch(used[::-1])
        total = sum(take for _, take in self._cover)
        own = takewhile(lambda part: not part[0].is_from_disk, self._cover)
        from_memory = sum(take for _, take in own)
        num_full = sum(take == size for _, take in self._cover)
        names, tail = list(self._names[:num_full]), tail_of(self._cover, size)
        chain = Chain(self._tokens, names, tail=tail, salt=self._salt)
        trail = self._notes.trail(num_full)
        parts = tuple((whole(piece), take) for piece, take in self._cover)
        self._done(Hit(parts, from_memory, total - from_memory, chain, trail=trail))
