"""Looks into a store beside its owners: what roots there are, and the token ids of blocks.

Knows nothing about models. It changes nothing, and takes what vanishes as not there.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from omlx.storage.blockfile import read_tokens
from omlx.storage.children import Child, ChildLister
from omlx.storage.description import as_object, read_description
from omlx.storage.fs import FileSystem
from omlx.storage.layout import (
    BLOCKS,
    BlockHash,
    BlockKey,
    BlockKind,
    RootHash,
    block_name,
    block_path,
    is_root_name,
    root_name,
)
from omlx.storage.record import BadBlock


@dataclass(frozen=True, slots=True)
class RootFile:
    """What a root's own file says of it; `root16` is the name of its folder."""

    root16: str
    model: str
    fingerprint: str
    layout: Mapping[str, str]


def root_files(directory: Path, fs: FileSystem) -> list[RootFile]:
    """The roots in a cache directory that say what they are."""
    found: list[RootFile] = []
    with suppress(OSError):
        for name in sorted(filter(is_root_name, fs.names(directory / BLOCKS))):
            described = read_description(fs, directory, name)
            layout = as_object(described.get("layout"))
            match described:
                case {"model": str(model), "fingerprint": str(fingerprint)} if layout:
                    words = {key: str(value) for key, value in layout.items()}
                    found.append(RootFile(name, model, fingerprint, words))
                case _:
                    pass
    return found


class Peek:
    """The blocks of one root as far as files have them; for one thread."""

    def __init__(self, directory: Path, root: RootHash, fs: FileSystem) -> None:
        self._directory = directory
        self._root = root
        self._fs = fs
        self._children = ChildLister(fs, directory, root)

    def has(self, key: BlockKey) -> bool:
        """Whether there is a file of such a block."""
        try:
            return self._fs.stat(block_path(self._directory, self._root, key)).is_file
        except OSError:
            return False

    def tokens(self, key: BlockKey) -> bytes | None:
        """The token ids of a block as u32, little; None where there is no good file of it.

        A state that was taken at its end tells them as well.
        """
        for kind in BlockKind:
            found = self._tokens(replace(key, kind=kind))
            if found is not None:
                return found
        return None

    def _tokens(self, key: BlockKey) -> bytes | None:
        path = block_path(self._directory, self._root, key)
        try:
            header, tokens = read_tokens(self._fs, path, block_name(key), root_name(self._root))
        except (OSError, BadBlock):
            return None
        return tokens if header.key == key else None

    def children(self, parent: BlockHash) -> Sequence[Child]:
        """The blocks and tails that continue a block, the newest first, each once.

        Where there is only a state that was taken at the end of one, that is it.
        """
        try:
            children, _ = self._children.of(parent)
        except OSError:
            return []
        found: dict[BlockHash, Child] = {}
        for child in children:
            known = found.get(child.key.name)
            if known is None or known.key.kind is BlockKind.STATE:
                found[child.key.name] = child
        return list(found.values())

    def states(self, parents: Sequence[BlockHash]) -> Sequence[Child]:
        """The states that were taken within or at the end of what continues any of `parents`."""
        try:
            children, _ = self._children.states_of(parents)
        except OSError:
            return []
        return children
