"""The stored blocks that continue a block, with their token ids: a listing, cached.

Knows nothing about budgets; what it finds broken it hands back to its caller.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from omlx.storage.blockfile import read_tokens
from omlx.storage.fs import FileSystem
from omlx.storage.layout import (
    BlockHash,
    BlockName,
    RootHash,
    parse_block_name,
    root_name,
    shard_dir,
)
from omlx.storage.record import BadBlock

MAX_CHILDREN = 64
_MAX_CACHED = 4096

_Seen = tuple[Path, float, int]


@dataclass(frozen=True, slots=True)
class Child:
    """A stored block that continues another: a full block or a tail; `tokens` as u32, little."""

    name: BlockHash
    count: int
    tokens: bytes
    size: int
    mtime: float


class ChildLister:
    """Lists children from one shard and the newest headers; any thread may call it."""

    def __init__(self, fs: FileSystem, directory: Path, root: RootHash) -> None:
        self._fs = fs
        self._directory = directory
        self._root = root
        self._lock = threading.Lock()
        self._cached: OrderedDict[_Seen, tuple[BlockHash, Child]] = OrderedDict()

    def of(self, parent: BlockHash) -> tuple[list[Child], list[tuple[Path, BadBlock | OSError]]]:
        """The children of `parent`, newest first, and the files that can't be read; OSError."""
        shard = shard_dir(self._directory, self._root, parent)
        children: list[Child] = []
        bad: list[tuple[Path, BadBlock | OSError]] = []
        for seen, name in self._newest(shard, parent.hex()[:16]):
            try:
                found, child = self._child(seen, name)
            except FileNotFoundError:
                continue
            except (BadBlock, OSError) as error:
                bad.append((seen[0], error))
                continue
            if found == parent:  # not another whose name begins alike
                children.append(child)
        return children, bad

    def _newest(self, shard: Path, parent16: str) -> list[tuple[_Seen, BlockName]]:
        try:
            filenames = self._fs.names(shard)
        except FileNotFoundError:
            return []
        found: list[tuple[_Seen, BlockName]] = []
        for filename in filenames:
            name = parse_block_name(filename)
            if name is None or name.parent16 != parent16:
                continue
            try:
                status = self._fs.stat(shard / filename)
            except FileNotFoundError:
                continue
            found.append(((shard / filename, status.mtime, status.size), name))
        found.sort(key=lambda item: (item[0][1], item[1].name32), reverse=True)
        return found[:MAX_CHILDREN]

    def _child(self, seen: _Seen, name: BlockName) -> tuple[BlockHash, Child]:
        with self._lock:
            if seen in self._cached:
                self._cached.move_to_end(seen)
                return self._cached[seen]
        path, mtime, size = seen
        header, tokens = read_tokens(self._fs, path, name, root_name(self._root))
        found = header.key.parent, Child(header.key.name, header.key.count, tokens, size, mtime)
        with self._lock:
            self._cached[seen] = found
            if len(self._cached) > _MAX_CACHED:
                self._cached.popitem(last=False)
        return found
