"""The stored blocks and states that continue a block, with their token ids: a listing, cached.

Knows nothing about budgets; what it finds broken it hands back to its caller.
"""

import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Set
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from omlx.storage.blockfile import read_tokens
from omlx.storage.fs import FileSystem
from omlx.storage.layout import (
    BlockHash,
    BlockKey,
    BlockKind,
    BlockName,
    RootHash,
    parse_block_name,
    root_name,
    shard_dir,
)
from omlx.storage.record import BadBlock
from omlx.storage.watch import is_settled

MAX_CHILDREN = 64
_MAX_CACHED = 4096

_Seen = tuple[Path, float, int]
_Bad = list[tuple[Path, BadBlock | OSError]]


@dataclass(frozen=True, slots=True)
class Child:
    """A stored block, tail or state that continues a block; `tokens` as u32, little."""

    key: BlockKey
    tokens: bytes
    size: int
    mtime: float


@dataclass(frozen=True, slots=True)
class _StateNames:
    """The states of a shard by their names, and when they were read."""

    mtime: float
    at: float
    names: tuple[BlockName, ...]


class ChildLister:
    """Lists children from shards and the newest headers; any thread may call it."""

    def __init__(
        self,
        fs: FileSystem,
        directory: Path,
        root: RootHash,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._fs = fs
        self._directory = directory
        self._root = root
        self._clock = clock
        self._lock = threading.Lock()
        self._cached: OrderedDict[_Seen, Child] = OrderedDict()
        self._states: dict[Path, _StateNames] = {}

    def of(self, parent: BlockHash) -> tuple[list[Child], _Bad]:
        """The children of `parent`, newest first, and the files that can't be read; OSError.

        Of each kind at most the 64 newest.
        """
        shard = shard_dir(self._directory, self._root, parent)
        names = [name for name in self._names(shard) if name.parent16 == parent.hex()[:16]]
        return self._children(self._newest(shard, names), {parent})

    def states_of(self, parents: Iterable[BlockHash]) -> tuple[list[Child], _Bad]:
        """The states among the children of any of `parents`, as `of`; OSError.

        A shard is listed again only when it has changed, since a long sequence has many.
        """
        wanted = set(parents)
        heads = {parent.hex()[:16] for parent in wanted}
        newest: list[tuple[_Seen, BlockName]] = []
        for shard in {shard_dir(self._directory, self._root, parent) for parent in wanted}:
            names = [name for name in self._state_names(shard) if name.parent16 in heads]
            newest.extend(self._newest(shard, names))
        return self._children(newest, wanted)

    def _names(self, shard: Path) -> list[BlockName]:
        try:
            filenames = self._fs.names(shard)
        except FileNotFoundError:
            return []
        return [name for filename in filenames if (name := parse_block_name(filename))]

    def _state_names(self, shard: Path) -> tuple[BlockName, ...]:
        try:
            mtime = self._fs.stat(shard).mtime
        except FileNotFoundError:
            return ()
        with self._lock:
            known = self._states.get(shard)
        if known and known.mtime == mtime and is_settled(mtime, known.at):
            return known.names
        at = self._clock()
        names = tuple(name for name in self._names(shard) if name.kind is BlockKind.STATE)
        with self._lock:
            self._states[shard] = _StateNames(mtime, at, names)
        return names

    def _newest(self, shard: Path, names: Iterable[BlockName]) -> list[tuple[_Seen, BlockName]]:
        """The newest of each parent and kind, newest first."""
        found: list[tuple[_Seen, BlockName]] = []
        for name in names:
            path = shard / name.filename
            with suppress(FileNotFoundError):
                status = self._fs.stat(path)
                found.append(((path, status.mtime, status.size), name))
        found.sort(key=lambda item: (item[0][1], item[1].name32), reverse=True)
        number: Counter[tuple[str, BlockKind]] = Counter()
        newest: list[tuple[_Seen, BlockName]] = []
        for item in found:
            number[item[1].parent16, item[1].kind] += 1
            if number[item[1].parent16, item[1].kind] <= MAX_CHILDREN:
                newest.append(item)
        return newest

    def _children(
        self, found: Iterable[tuple[_Seen, BlockName]], parents: Set[BlockHash]
    ) -> tuple[list[Child], _Bad]:
        children: list[Child] = []
        bad: _Bad = []
        for seen, name in found:
            try:
                child = self._child(seen, name)
            except FileNotFoundError:
                continue
            except (BadBlock, OSError) as error:
                bad.append((seen[0], error))
                continue
            if child.key.parent in parents:  # not another whose name begins alike
                children.append(child)
        return children, bad

    def _child(self, seen: _Seen, name: BlockName) -> Child:
        with self._lock:
            if seen in self._cached:
                self._cached.move_to_end(seen)
                return self._cached[seen]
        path, mtime, size = seen
        header, tokens = read_tokens(self._fs, path, name, root_name(self._root))
        child = Child(header.key, tokens, size, mtime)
        with self._lock:
            self._cached[seen] = child
            if len(self._cached) > _MAX_CACHED:
                self._cached.popitem(last=False)
        return child
