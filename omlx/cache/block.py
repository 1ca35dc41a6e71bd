"""The values that the cache passes around: a payload's size, a running sequence's block table.

Knows nothing about what a payload holds.
"""

from dataclasses import dataclass, field
from typing import Protocol

from omlx.cache.hashing import TokenArray
from omlx.cache.policy import StorePolicy
from omlx.storage.layout import BlockHash, BlockKey


class HasBytes(Protocol):
    """A payload: state of one block, opaque but for its size."""

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        ...


@dataclass(slots=True)
class Chain:
    """The growing block table of one running sequence: what is stored of it so far.

    `snapshots` are those of recurrent state on its way, with their positions, in order; the one
    after `head` tokens is of use to other sequences, and the last one within the first `stable`
    tokens to a later prompt of the same conversation. `tail` is the short block that it ends with,
    where one is stored, and `held` one that it does not want to be written yet.
    Only chains of one `salt` share blocks. `is_own` says that the layer caches that it is stored
    from next have buffers of their own, not views of others'.
    """

    tokens: TokenArray
    names: list[BlockHash] = field(default_factory=list[BlockHash])
    snapshots: list[tuple[int, BlockKey]] = field(default_factory=list[tuple[int, BlockKey]])
    tail: BlockKey | None = None
    held: BlockKey | None = None
    head: int = 0
    stable: int = 0
    policy: StorePolicy = StorePolicy.ALL
    salt: str = ""
    is_own: bool = False
