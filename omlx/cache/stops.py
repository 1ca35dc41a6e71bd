"""Where a sequence may go on in a model with recurrent layers: the snapshots on its way.

Knows nothing about where they are, or about the blocks they need.
"""

from collections.abc import Sequence

from omlx.cache.hashing import TokenArray, common_prefix, compute_block_hash
from omlx.cache.leaves import Payload
from omlx.cache.reading import Piece
from omlx.cache.trail import Trail, TrailNotes
from omlx.storage.layout import BlockHash, BlockKey, RootHash


class Stops:
    """The snapshots of one sequence as they are found, and what else is met; for one thread."""

    def __init__(
        self,
        root: RootHash,
        tokens: TokenArray,
        names: Sequence[BlockHash],
        *,
        block_size: int,
        first: RootHash | None = None,
    ) -> None:
        """`names` are all full blocks of `tokens`; the last token is never served. `first` is the
        root with their salt."""
        self._first = first or root
        self._tokens = tokens
        self._limit = len(tokens) - 1
        self._block_size = block_size
        self._places = {BlockHash(self._first): 0}
        self._places.update((name, i + 1) for i, name in enumerate(names))
        self._notes = TrailNotes(root, tokens, names, block_size=block_size, first=first)
        self._snapshots: dict[BlockKey, Piece] = {}

    def add(self, key: BlockKey, payload: Payload | None) -> bool:
        """Take a snapshot into account if it is one of this very sequence; whether it is."""
        size = self._block_size
        index = self._places.get(key.parent)
        if index is None:
            return False
        position = index * size + key.count
        tokens = self._tokens[index * size : position]
        parent = key.parent if index else None
        is_ours = compute_block_hash(self._first, parent, tokens) == key.name
        if position <= self._limit and key.count <= size and is_ours:
            piece = Piece(key, tokens, payload, payload is None, position)
            self._snapshots.setdefault(key, piece)
        return is_ours

    def remove(self, snapshot: Piece) -> None:
        """A snapshot is not there after all."""
        del self._snapshots[snapshot.key]

    def met(self, key: BlockKey, tokens: TokenArray, index: int) -> None:
        """A block of these tokens goes on where block `index` of the sequence begins."""
        start = index * self._block_size
        take = common_prefix(tokens, self._tokens[start : self._limit])
        self._notes.met(key, start=start, take=take)

    def deepest_first(self) -> list[Piece]:
        """The snapshots, the deepest first."""
        return sorted(self._snapshots.values(), key=lambda snapshot: -snapshot.position)

    @property
    def deepest(self) -> int:
        """After how many tokens the deepest one was taken."""
        return max((snapshot.position for snapshot in self._snapshots.values()), default=0)

    def until(self, position: int) -> list[tuple[int, BlockKey]]:
        """The snapshots up to a position, in order, as a chain has them."""
        known = reversed(self.deepest_first())
        return [(one.position, one.key) for one in known if one.position <= position]

    def trail(self, num_blocks: int) -> Trail:
        """Where the sequence leaves what is stored, if so many of its full blocks are."""
        return self._notes.trail(num_blocks, snapshot=self.deepest)
