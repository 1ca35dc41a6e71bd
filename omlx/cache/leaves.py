"""What a model keeps for its tokens, array by array, and the payloads that hold it.

Knows nothing about mlx or the cache classes of mlx-lm.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

Path = tuple[int, ...]  # the layer, then the place in each list of caches inside it
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Leaf:
    """Keys or values of one layer, `heads` heads of `width`; `window` is 0 where all are kept."""

    path: Path
    name: str
    heads: int
    width: int
    dtype: str
    window: int = 0


@dataclass(frozen=True, slots=True)
class StateLeaf:
    """One slot of a recurrent layer: an array [1, *shape] that every token changes."""

    path: Path
    slot: int
    num_slots: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Payload:
    """The state of one block: one array [leaves, heads, count, width] per group of equal leaves.

    Of a snapshot: one array [leaves, *shape] a group, and `count` is its position. The arrays are
    being computed or are there, and own their storage: a payload holds exactly its bytes. None
    stands for windows that were not needed and so not read.
    """

    count: int
    arrays: tuple[Any, ...]  # of mlx

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(a.nbytes for a in self.arrays if a is not None)


def group(kinds: Iterable[T]) -> list[tuple[T, list[int]]]:
    """The places of equal kinds, in the order in which each comes first."""
    places: dict[T, list[int]] = {}
    for i, kind in enumerate(kinds):
        places.setdefault(kind, []).append(i)
    return list(places.items())
