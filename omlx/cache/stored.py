"""Sequences as a store has them, put together from the token ids of its blocks.

Knows nothing about requests, and changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from omlx.cache.hashing import (
    TokenArray,
    chain_hashes,
    common_prefix,
    compute_block_hash,
    compute_root_hash,
    token_array,
    tokens_of_bytes,
)
from omlx.cache.salting import salted_root
from omlx.storage.children import Child
from omlx.storage.fs import FileSystem
from omlx.storage.layout import BlockHash, BlockKey, BlockKind, RootHash, root_name
from omlx.storage.peek import Peek, RootFile, root_files

_MAX_FOLLOWED_BLOCKS = 64


@dataclass(frozen=True, slots=True)
class Names:
    """A prompt as a chain of names: its full blocks, then that of a rest of so many tokens."""

    blocks: Sequence[BlockHash]
    rest: BlockHash | None
    rest_count: int


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A stored sequence that begins as a prompt does, and goes on otherwise after `parent`."""

    parent: Sequence[BlockHash]
    child: Child
    tokens: TokenArray


@dataclass(frozen=True, slots=True)
class Match:
    """How many leading tokens of a prompt could be taken, and what goes on otherwise.

    Where a model has recurrent layers, that ends at a snapshot, though `num_stored` are stored.
    """

    num_tokens: int
    num_stored: int
    neighbour: Neighbour | None


def roots_of(
    directory: Path, fs: FileSystem, *, model: str, fingerprint: str | None
) -> list[tuple[RootHash, RootFile]]:
    """The roots of a model in a cache directory; those of another state of it are left out."""
    found: list[tuple[RootHash, RootFile]] = []
    for file in root_files(directory, fs):
        if (
            fingerprint is None
            and file.model != model
            or fingerprint not in (None, file.fingerprint)
        ):
            continue
        try:
            root = compute_root_hash(file.fingerprint, file.layout)
        except ValueError:
            continue
        if root_name(root) == file.root16:
            found.append((root, file))
    return found


class StoredSequences:
    """The sequences of one root, as its files have them."""

    def __init__(
        self,
        directory: Path,
        root: RootHash,
        fs: FileSystem,
        *,
        block_size: int,
        sections: str = "",
        salt: str = "",
    ) -> None:
        """`sections` is what the root's layout says of its blocks; `salt` is that of those who
        stored the sequences."""
        self._peek = Peek(directory, root, fs)
        self._root = salted_root(root, salt)
        self._block_size = block_size
        kinds = {part.partition(".")[0] for part in sections.split(";")}
        self._has_states = "state" in kinds
        self._has_blocks = kinds != {"state"}

    def names(self, tokens: TokenArray) -> Names:
        """The chain of a prompt, as far as a cache may serve it."""
        limit = max(0, len(tokens) - 1)
        blocks = chain_hashes(self._root, tokens[:limit], self._block_size)
        rest = tokens[len(blocks) * self._block_size : limit]
        name = self._name(blocks, rest) if len(rest) else None
        return Names(blocks, name, len(rest))

    def tokens_of(self, names: Names) -> TokenArray:
        """The token ids of a chain, from its beginning as far as its blocks are there."""
        size = self._block_size
        parts: list[TokenArray] = []
        for idx, name in enumerate(names.blocks):
            found = self._peek.tokens(BlockKey(self._parent(names.blocks[:idx]), name, size))
            if found is None:
                return _joined(parts)
            parts.append(tokens_of_bytes(found))
        for child in self._peek.children(self._parent(names.blocks)):
            if self.is_rest(names, names.blocks, child):
                parts.append(_tokens(child)[: names.rest_count])
                break
        return _joined(parts)

    def is_rest(self, names: Names, parent: Sequence[BlockHash], child: Child) -> bool:
        """Whether a block after `parent` begins with the rest of a chain."""
        if names.rest is None or child.key.count < names.rest_count:
            return False
        return self._name(parent, _tokens(child)[: names.rest_count]) == names.rest

    def match(self, tokens: TokenArray) -> Match:
        """What of a prompt is stored now."""
        names, size = self.names(tokens), self._block_size
        if not self._has_blocks:
            snapshot = self._snapshot(tokens, names)
            return Match(snapshot, snapshot, None)
        num_blocks = 0
        for idx, name in enumerate(names.blocks):
            if not self._peek.has(BlockKey(self._parent(names.blocks[:idx]), name, size)):
                break
            num_blocks += 1
        parent = names.blocks[:num_blocks]
        rest = tokens[num_blocks * size : max(0, len(tokens) - 1)]
        children = self._peek.children(self._parent(parent))
        blocks = [child for child in children if child.key.kind is BlockKind.BLOCK]
        takes = [(common_prefix(_tokens(child), rest), child.key.count) for child in blocks]
        most = max((take for take, _ in takes), default=0)
        is_end = most == len(rest) or any(take == count == most for take, count in takes)
        found = None if is_end else self.neighbour(tokens, parent, own=names)
        num_stored = num_blocks * size + most
        num_tokens = num_stored
        if self._has_states:
            num_tokens = self._snapshot(tokens[: num_stored + 1], names)
        return Match(num_tokens, num_stored, found)

    def _snapshot(self, tokens: TokenArray, names: Names) -> int:
        """After how many tokens of a prompt, without its last, the deepest snapshot was taken."""
        size = self._block_size
        parents = [BlockHash(self._root), *names.blocks]
        starts = {parent: idx * size for idx, parent in enumerate(parents)}
        deepest = 0
        for child in self._peek.states(parents):
            start = starts[child.key.parent]
            rest = tokens[start : max(0, len(tokens) - 1)]
            if common_prefix(_tokens(child), rest) == child.key.count:
                deepest = max(deepest, start + child.key.count)
        return deepest

    def neighbour(
        self,
        tokens: TokenArray,
        parent: Sequence[BlockHash],
        *,
        own: Names,
        nearest: BlockHash | None = None,
    ) -> Neighbour | None:
        """The stored sequence that shares the most with a prompt after the blocks `parent`.

        `tokens` are what is known of the prompt. A block that is known by name to be `nearest`
        comes first; blocks of the prompt itself, and such as it only continues, don't count.
        """
        start = len(parent) * self._block_size
        best: tuple[int, Child] | None = None
        for child in self._peek.children(self._parent(parent)):
            if self._is_own(child, parent, own):
                continue
            rest = tokens[start:]
            take = common_prefix(_tokens(child), rest)
            if take == min(child.key.count, len(rest)) and child.key.name != nearest:
                continue
            if child.key.name == nearest:
                take = child.key.count
            if best is None or take > best[0]:
                best = take, child
        if best is None:
            return None
        followed = self._followed(tokens[:start], [*parent, best[1].key.name], best[1])
        return Neighbour(parent, best[1], followed)

    def _is_own(self, child: Child, parent: Sequence[BlockHash], own: Names) -> bool:
        idx = len(parent)
        if idx < len(own.blocks):
            return child.key.name == own.blocks[idx]
        return self.is_rest(own, parent, child)

    def _followed(self, head: TokenArray, chain: list[BlockHash], child: Child) -> TokenArray:
        """A sequence from its beginning through a block and on, along the longest that follow."""
        parts = [head, _tokens(child)]
        for _ in range(_MAX_FOLLOWED_BLOCKS):
            children = self._peek.children(self._parent(chain))
            if not children:
                break
            child = max(children, key=lambda one: one.key.count)
            parts.append(_tokens(child))
            chain.append(child.key.name)
        return _joined(parts)

    def _parent(self, blocks: Sequence[BlockHash]) -> BlockHash:
        return blocks[-1] if blocks else BlockHash(self._root)

    def _name(self, parent: Sequence[BlockHash], tokens: TokenArray) -> BlockHash:
        return compute_block_hash(self._root, parent[-1] if parent else None, tokens)


def _tokens(child: Child) -> TokenArray:
    return tokens_of_bytes(child.tokens)


def _joined(parts: Sequence[TokenArray]) -> TokenArray:
    return np.concatenate(parts) if parts else token_array([])
