"""One look-up for a model with recurrent layers: it ends at a snapshot.

Knows nothing about storing. Owned by the engine thread.
"""

from collections.abc import Callable
from dataclasses import dataclass

from omlx.cache.block import Chain
from omlx.cache.hashing import TokenArray, chain_hashes, common_prefix, compute_block_hash
from omlx.cache.io import Found, ReadJob
from omlx.cache.leaves import Payload
from omlx.cache.lookup import Hit, Tiers
from omlx.cache.memory import Entry
from omlx.storage.layout import BlockHash, BlockKey


@dataclass(slots=True, eq=False)
class _Piece:
    """A block or snapshot that was found; `payload` is None until it is read from disk."""

    key: BlockKey
    tokens: TokenArray
    payload: Payload | None = None
    is_from_disk: bool = False
    position: int = 0  # of a snapshot


class StateLookup:
    """Finds the deepest usable snapshot of `tokens` and gives it, with its blocks, to `done`.

    A snapshot counts if what other layers keep for the tokens before it is there too. The last
    token is never taken from the cache: its logits are needed.
    """

    def __init__(self, tiers: Tiers, tokens: TokenArray, done: Callable[[Hit], None]) -> None:
        self._tiers = tiers
        self._tokens = tokens
        self._done = done
        self._limit = len(tokens) - 1
        self._names = chain_hashes(tiers.root, tokens, tiers.block_size)
        self._places = {BlockHash(tiers.root): 0}
        self._places.update((name, i + 1) for i, name in enumerate(self._names))
        self._blocks: list[_Piece] = []
        self._partials: list[_Piece] = []
        self._snapshots: dict[BlockKey, _Piece] = {}

    def start(self) -> None:
        """Begin; `done` is called before this returns or after the disk has answered."""
        tiers, size = self._tiers, self._tiers.block_size
        usable = self._limit // size
        while tiers.codec.has_blocks and len(self._blocks) < usable:
            entry = tiers.memory.get(self._names[len(self._blocks)])
            if entry is None:
                break
            self._blocks.append(_Piece(entry.key, entry.tokens, entry.payload))
        parent = tiers.parent(self._names, len(self._blocks))
        if tiers.codec.has_blocks:
            entries = tiers.memory.children(parent)
            self._partials = [_Piece(e.key, e.tokens, e.payload) for e in entries]
        for index in range(usable + 1):
            for entry in tiers.snapshots.children(tiers.parent(self._names, index)):
                self._add(entry.key, entry.payload)
        deepest = max((s.position for s in self._snapshots.values()), default=0)
        if tiers.disk is None or (deepest == self._limit and self._cover(deepest) is not None):
            self._choose()
            return
        keys = [BlockKey(tiers.parent(self._names, i), self._names[i], size) for i in range(usable)]
        tiers.disk.find(
            keys,
            BlockHash(tiers.root),
            self._tokens[: self._limit],
            lambda found: self._found_states(found, keys),
            needs_blocks=False,
            needs_states=True,
        )

    def _add(self, key: BlockKey, payload: Payload | None) -> None:
        """Take a snapshot into account if it is one of this very sequence."""
        size = self._tiers.block_size
        index = self._places.get(key.parent)
        if index is None:
            return
        position = index * size + key.count
        tokens = self._tokens[index * size : position]
        parent = key.parent if index else None
        is_ours = compute_block_hash(self._tiers.root, parent, tokens) == key.name
        if position <= self._limit and key.count <= size and is_ours:
            piece = _Piece(key, tokens, payload, payload is None, position)
            self._snapshots.setdefault(key, piece)

    def _found_states(self, found: Found, keys: list[BlockKey]) -> None:
        tiers, size = self._tiers, self._tiers.block_size
        for key in found.states:
            self._add(key, None)
        if not tiers.codec.has_blocks:
            self._choose()
            return
        assert tiers.disk is not None
        known = len(self._blocks)
        tiers.disk.find(
            keys[known:],
            tiers.parent(self._names, known),
            self._tokens[known * size : self._limit],
            lambda found: self._found_blocks(found, keys[known:]),
            needs_states=True,
        )

    def _found_blocks(self, found: Found, keys: list[BlockKey]) -> None:
        size = self._tiers.block_size
        for key in found.states:
            self._add(key, None)
        if found.num_blocks:
            self._partials = []
        for key in keys[: found.num_blocks]:
            start = len(self._blocks) * size
            tokens = self._tokens[start : start + size]
            self._blocks.append(_Piece(key, tokens, is_from_disk=True))
        if found.partial is not None:
            partial = found.partial
            self._partials.append(_Piece(partial.key, partial.tokens, is_from_disk=True))
        self._choose()

    def _cover(self, position: int) -> list[tuple[_Piece, int]] | None:
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
        for snapshot in sorted(self._snapshots.values(), key=lambda s: -s.position):
            cover = self._cover(snapshot.position)
            if cover is None:
                continue
            missing = [p for p in (snapshot, *(b for b, _ in cover)) if p.payload is None]
            if missing:
                self._read(missing)
            else:
                self._finish(snapshot, cover)
            return
        self._done(Hit((), 0, 0, Chain(self._tokens)))

    def _read(self, missing: list[_Piece]) -> None:
        tiers = self._tiers
        assert tiers.disk is not None
        codec = tiers.codec
        landings = [
            codec.allocate_states(p.position) if p.position else codec.allocate(p.key.count)
            for p in missing
        ]
        jobs = [
            ReadJob(piece.key, piece.tokens.tobytes(), landing.sections())
            for piece, landing in zip(missing, landings, strict=True)
        ]

        def landed(results: list[bool]) -> None:
            for piece, landing, is_good in zip(missing, landings, results, strict=True):
                if is_good:
                    piece.payload = landing.payload()
                else:
                    self._forget(piece)
            self._choose()

        tiers.disk.read(jobs, landed)

    def _forget(self, piece: _Piece) -> None:
        """A bad file: neither it nor what needs it is there."""
        if piece.position:
            del self._snapshots[piece.key]
        elif piece in self._blocks:
            del self._blocks[self._blocks.index(piece) :]
            self._partials = []
        elif piece in self._partials:
            self._partials.remove(piece)

    def _finish(self, snapshot: _Piece, cover: list[tuple[_Piece, int]]) -> None:
        tiers, size = self._tiers, self._tiers.block_size
        parts: list[tuple[Payload, int]] = []
        from_memory = snapshot.position
        if snapshot.is_from_disk and not cover:
            from_memory = 0
        for index, (piece, take) in enumerate(cover):
            assert piece.payload is not None
            parts.append((piece.payload, take))
            if piece.is_from_disk:
                from_memory = min(from_memory, index * size)
                if tiers.memory.get(piece.key.name) is None:
                    entry = Entry(piece.key, piece.tokens.copy(), piece.payload, is_on_disk=True)
                    tiers.writeback.leaving(tiers.memory.add(entry))
        assert snapshot.payload is not None
        if tiers.snapshots.get(snapshot.key) is None:
            entry = Entry(snapshot.key, snapshot.tokens.copy(), snapshot.payload)
            entry.is_on_disk = snapshot.is_from_disk
            tiers.writeback.leaving(tiers.snapshots.add(entry))
        used = [piece.key for piece, _ in cover]
        tiers.memory.touch([key.name for key in used])
        tiers.snapshots.touch(snapshot.key)
        if tiers.disk is not None:
            tiers.disk.touch([snapshot.key, *reversed(used)])
        position = snapshot.position
        known = sorted(
            ((s.position, s.key) for s in self._snapshots.values() if s.position <= position),
            key=lambda pair: pair[0],
        )
        chain = Chain(self._tokens, list(self._names[: position // size]), known)
        from_disk = position - from_memory
        self._done(Hit(tuple(parts), from_memory, from_disk, chain, states=snapshot.payload))
