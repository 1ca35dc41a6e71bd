"""One look-up for a model with recurrent layers: it ends at a snapshot.

Knows nothing about storing. Owned by the engine thread.
"""

from collections.abc import Callable, Sequence

from omlx.cache.block import Chain
from omlx.cache.codec import Codec
from omlx.cache.finding import Found
from omlx.cache.hashing import TokenArray, chain_hashes, common_prefix
from omlx.cache.leaves import Payload
from omlx.cache.lookup import MAX_FINDS, Hit, Tiers, keep, tail_of, whole
from omlx.cache.memory import Entry
from omlx.cache.reading import Gap, Piece, Reading, gaps
from omlx.cache.salting import salted_root
from omlx.cache.stops import Stops
from omlx.storage.layout import BlockHash, BlockKey


class StateLookup:
    """Finds the deepest usable snapshot of `tokens` and gives it, with its blocks, to `done`.

    A snapshot counts if what other layers keep for the tokens before it is there too. The last
    token is never taken from the cache: its logits are needed.
    """

    def __init__(
        self, tiers: Tiers, tokens: TokenArray, done: Callable[[Hit], None], *, salt: str = ""
    ) -> None:
        self._tiers = tiers
        self._tokens = tokens
        self._done = done
        self._limit = len(tokens) - 1
        self._salt = salt
        self._root = salted_root(tiers.root, salt)
        self._parents = [BlockHash(self._root), *chain_hashes(self._root, tokens, tiers.block_size)]
        self._names = self._parents[1:]
        self._num_finds = 0
        self._begin()

    def _begin(self) -> None:
        tiers, size = self._tiers, self._tiers.block_size
        self._stops = Stops(
            tiers.root, self._tokens, self._names, block_size=size, first=self._root
        )
        self._blocks: list[Piece] = []
        self._partials: list[Piece] = []

    def start(self) -> None:
        """Begin; `done` is called before this returns or after the disk has answered."""
        tiers = self._tiers
        usable = self._limit // tiers.block_size
        if tiers.codec.has_blocks:
            self._blocks = tiers.in_memory(self._tokens, self._names, usable, self._parents[0])
            parent = self._parents[len(self._blocks)]
            entries = tiers.memory.children(parent)
            self._partials = [Piece(e.key, e.tokens, e.payload) for e in entries]
            for entry in entries:
                self._stops.met(entry.key, entry.tokens, len(self._blocks))
        for index in range(usable + 1):
            for entry in tiers.snapshots.children(self._parents[index]):
                is_ours = self._stops.add(entry.key, entry.payload)
                if not tiers.codec.has_blocks and not is_ours:
                    self._stops.met(entry.key, entry.tokens, index)
        deepest = self._stops.deepest
        if tiers.readable is None or (deepest == self._limit and self._cover(deepest) is not None):
            self._choose()
            return
        self._num_finds += 1
        pairs = zip(self._parents, self._names[:usable], strict=False)
        keys = [BlockKey(parent, name, tiers.block_size) for parent, name in pairs]
        tiers.readable.find(
            keys,
            self._parents[0],
            self._tokens[: self._limit],
            lambda found: self._found_states(found, keys),
            needs_blocks=False,
            needs_states=True,
        )

    def _found_states(self, found: Found, keys: list[BlockKey]) -> None:
        tiers, size = self._tiers, self._tiers.block_size
        for key in found.states:
            self._stops.add(key, None)
        if not tiers.codec.has_blocks:
            self._choose()
            return
        assert tiers.readable is not None
        known = len(self._blocks)
        tiers.readable.find(
            keys[known:],
            self._parents[known],
            self._tokens[known * size : self._limit],
            lambda found: self._found_blocks(found, keys[known:]),
            needs_states=True,
        )

    def _found_blocks(self, found: Found, keys: list[BlockKey]) -> None:
        size = self._tiers.block_size
        for key in found.states:
            self._stops.add(key, None)
        if found.num_blocks:
            self._partials = []
        for key in keys[: found.num_blocks]:
            start = len(self._blocks) * size
            tokens = self._tokens[start : start + size]
            self._blocks.append(Piece(key, tokens, is_from_disk=True))
        if found.nearest is not None:
            self._stops.met(found.nearest.key, found.nearest.tokens, len(self._blocks))
        if found.partial is not None:
            partial = found.partial
            self._partials.append(Piece(partial.key, partial.tokens, is_from_disk=True))
        self._choose()

    def _cover(self, position: int) -> list[tuple[Piece, int]] | None:
        """The blocks that hold exactly `position` tokens, with what to take; None: not there."""
        codec, size = self._tiers.codec, self._tiers.block_size
        if not codec.has_blocks:
            return []
        index, rest = divmod(position, size)
        if index > len(self._blocks):
            return None
        full = [(block, size) for block in self._blocks[:index]]
        if not rest:
            return full
        last = self._blocks[index : index + 1] or self._partials
        wanted = self._tokens[index * size : position]
        fitting = [
            piece
            for piece in last
            if common_prefix(piece.tokens, wanted) == rest and codec.can_cut(piece.key.count, rest)
        ]
        if not fitting:
            return None
        return [*full, (min(fitting, key=lambda piece: piece.payload is None), rest)]

    def _choose(self) -> None:
        """Use the deepest snapshot that is covered, or read what is missing for it first."""
        candidates = [
            (snapshot, cover, _missing(self._tiers.codec, snapshot, cover))
            for snapshot in self._stops.deepest_first()
            if (cover := self._cover(snapshot.position)) is not None
        ]
        at_hand = next((s.position for s, _, missing in candidates if not missing), 0)
        for snapshot, cover, missing in candidates:
            if not missing:
                self._finish(snapshot, cover)
                return
            if self._is_worth(missing, snapshot.position - at_hand):
                self._read(missing)
                return
        trail = self._stops.trail(len(self._blocks))
        self._done(Hit((), 0, 0, Chain(self._tokens, salt=self._salt), trail=trail))

    def _is_worth(self, missing: Sequence[Gap], num_tokens: int) -> bool:
        tiers = self._tiers
        num_bytes = sum(gap.num_bytes(tiers.codec) for gap in missing)
        return tiers.cost.is_worth_loading(num_bytes, num_tokens)

    def _read(self, missing: Sequence[Gap]) -> None:
        tiers = self._tiers
        assert tiers.disk is not None

        def arrived(piece: Piece) -> None:
            if not piece.position:
                keep(tiers, piece, self._parents[0])

        def ended(bad: Piece | None) -> None:
            if bad is not None:
                self._forget(bad)
            if bad is not None and self._num_finds < MAX_FINDS:
                self._begin()
                self.start()
            else:
                self._choose()

        tiers.memory.touch([block.key.name for block in self._blocks])
        Reading(tiers.disk, tiers.codec, tiers.cost, missing, arrived=arrived, done=ended).start()

    def _forget(self, piece: Piece) -> None:
        """A bad file: neither it nor what needs it is there."""
        if piece.position:
            self._stops.remove(piece)
            return
        if piece.payload is not None:  # its windows can't be had any more
            self._tiers.memory.remove(piece.key.name)
        if piece in self._blocks:
            del self._blocks[self._blocks.index(piece) :]
            self._partials = []
        elif piece in self._partials:
            self._partials.remove(piece)

    def _finish(self, snapshot: Piece, cover: list[tuple[Piece, int]]) -> None:
        tiers, size = self._tiers, self._tiers.block_size
        parts: list[tuple[Payload, int]] = []
        from_memory = snapshot.position
        if snapshot.is_from_disk and not cover:
            from_memory = 0
        for index, (piece, take) in enumerate(cover):
            parts.append((whole(piece), take))
            if piece.is_from_disk:
                from_memory = min(from_memory, index * size)
        if tiers.snapshots.get(snapshot.key) is None:
            entry = Entry(snapshot.key, snapshot.tokens.copy(), whole(snapshot))
            entry.is_on_disk = snapshot.is_from_disk
            tiers.writeback.leaving(tiers.snapshots.add(entry))
        used = [piece.key for piece, _ in cover]
        tiers.memory.touch([key.name for key in used])
        tiers.snapshots.touch(snapshot.key)
        if tiers.disk is not None:
            tiers.disk.touch([snapshot.key, *reversed(used)])
        position = snapshot.position
        names = list(self._names[: position // size])
        chain = Chain(self._tokens, names, self._stops.until(position), salt=self._salt)
        chain.tail = tail_of(cover, size)
        from_disk, states = position - from_memory, snapshot.payload
        trail = self._stops.trail(len(self._blocks))
        self._done(Hit(tuple(parts), from_memory, from_disk, chain, states=states, trail=trail))


def _missing(codec: Codec, snapshot: Piece, cover: Sequence[tuple[Piece, int]]) -> list[Gap]:
    """What has to be read for a snapshot and the blocks before it."""
    missing = gaps(codec, cover)
    if snapshot.payload is None:
        missing.insert(0, Gap(snapshot, range(len(codec.state_specs()))))
    return missing
