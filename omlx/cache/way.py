"""A sequence as its tiers have it: which blocks and snapshots a look-up of it could use.

Knows nothing about tiers or files. Any thread may ask.
"""

from collections.abc import Sequence

from omlx.cache.hashing import TokenArray, chain_hashes, common_prefix
from omlx.storage.layout import BlockHash, BlockKey, BlockKind, RootHash


class Way:
    """`parents` are what its blocks continue, in order: the root, then each of its full blocks."""

    def __init__(self, root: RootHash, tokens: TokenArray, block_size: int) -> None:
        names = chain_hashes(root, tokens, block_size)
        self._tokens = tokens
        self.parents: Sequence[BlockHash] = (BlockHash(root), *names)
        self._starts = {parent: i * block_size for i, parent in enumerate(self.parents)}
        pairs = zip(self.parents, names, strict=False)
        self.full_blocks = tuple(BlockKey(parent, name, block_size) for parent, name in pairs)

    def has(self, key: BlockKey, tokens: TokenArray) -> bool:
        """Whether a block of these tokens begins on the way, or a snapshot lies on it."""
        start = self._starts.get(key.parent)
        if start is None:
            return False
        shared = common_prefix(tokens, self._tokens[start:])
        return shared == key.count if key.kind is BlockKind.STATE else shared > 0
