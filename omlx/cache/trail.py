"""What a look-up meets on its way: where a sequence leaves what is stored, and what goes on there.

Knows nothing about tiers or payloads; it only notes, so that a miss can be explained afterwards.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from omlx.cache.hashing import TokenArray, compute_block_hash
from omlx.storage.layout import BlockHash, BlockKey, RootHash


@dataclass(frozen=True, slots=True)
class Trail:
    """The first `shared` tokens of a sequence are stored; `nearest` goes on from there otherwise.

    `names` are its full blocks as far as the cache may serve it, `rest` is the name of what
    follows them. `nearest` is None where no stored sequence goes on: there is only new input. A
    model with recurrent layers `needs_snapshot`: it can go on from one only, which may lie before.
    """

    root: RootHash
    block_size: int
    names: tuple[BlockHash, ...]
    rest: BlockHash | None
    shared: int
    nearest: BlockHash | None
    needs_snapshot: bool = False


class TrailNotes:
    """Collects what one look-up meets; for one thread."""

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
        self._root = root
        self._first = first or root
        self._block_size = block_size
        limit = max(0, len(tokens) - 1)
        self._limit = limit
        self._names = tuple(names[: limit // block_size])
        self._rest = tokens[len(self._names) * block_size : limit]
        self._best = (0, True)
        self._nearest: BlockHash | None = None

    def met(self, key: BlockKey, *, start: int, take: int) -> None:
        """A stored block that begins at token `start` shares `take` tokens there (mutates)."""
        found = (start + take, take == key.count)
        if found > self._best:
            self._best = found
            self._nearest = None if take == key.count else key.name

    def trail(self, num_blocks: int, *, snapshot: int | None = None) -> Trail:
        """What was noted, given that so many full blocks were found, and the deepest snapshot at
        that token where a model needs one."""
        num_found = max(num_blocks * self._block_size, snapshot or 0)
        shared, _ = self._best
        is_noted = shared >= num_found and shared < self._limit
        parent = self._names[-1] if self._names else None
        rest = compute_block_hash(self._first, parent, self._rest) if len(self._rest) else None
        return Trail(
            root=self._root,
            block_size=self._block_size,
            names=self._names,
            rest=rest,
            shared=max(shared, num_found),
            nearest=self._nearest if is_noted else None,
            needs_snapshot=snapshot is not None,
        )
