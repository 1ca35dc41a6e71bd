"""File systems for tests: one in memory, one whose call *n* fails, one that does little at a time.

They know nothing about the store.
"""

import errno
import os
import stat
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from omlx.storage.fs import DirEntry, FileStat, FileSystem

T = TypeVar("T")


@dataclass
class _Node:
    mode: int
    mtime: float
    data: bytearray | None = None  # None: a directory


@dataclass
class _Open:
    path: Path
    node: _Node
    is_writer: bool
    offset: int = 0


@dataclass
class MemoryFileSystem:
    """A file system in memory; `capacity` bytes fit on it, `peak_bytes` is the most it held.

    `bypassed` are the files that were to be read past the page cache, in order.
    """

    clock: Callable[[], float]
    capacity: int = 1 << 40
    peak_bytes: int = 0
    bypassed: list[Path] = field(default_factory=list)
    open_files: dict[int, _Open] = field(default_factory=dict)
    _nodes: dict[str, _Node] = field(default_factory=dict)
    _below: dict[str, dict[str, None]] = field(default_factory=dict)  # a directory's names
    _next_fd: int = 3
    _lock: threading.RLock = field(default_factory=threading.RLock)

    def __post_init__(self) -> None:
        self._nodes["/"] = _Node(0o755, self.clock())

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        with self._lock:
            node = self._nodes.get(str(path))
            if node is None:
                if not flags & os.O_CREAT:
                    raise _error(errno.ENOENT, path)
                self._directory(path.parent)
                node = self._place(path, _Node(mode, self.clock(), bytearray()))
            elif flags & os.O_EXCL:
                raise _error(errno.EEXIST, path)
            self._next_fd += 1
            self.open_files[self._next_fd] = _Open(path, node, bool(flags & os.O_WRONLY))
            return self._next_fd

    def close(self, fd: int) -> None:
        with self._lock:
            del self.open_files[fd]

    def preadv(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        with self._lock:
            data = self.open_files[fd].node.data
            if data is None:
                raise OSError(errno.EISDIR, "is a directory")
            start = offset
            for buffer in buffers:
                part = data[offset : offset + len(buffer)]
                buffer[: len(part)] = part
                offset += len(part)
            return offset - start

    def bypass_cache(self, fd: int) -> None:
        with self._lock:
            self.bypassed.append(self.open_files[fd].path)

    def writev(self, fd: int, buffers: Sequence[memoryview]) -> int:
        with self._lock:
            file = self.open_files[fd]
            assert file.is_writer and file.node.data is not None
            new = b"".join(buffers)[: self.capacity - self.used_bytes()]
            if not new and any(len(buffer) for buffer in buffers):
                raise OSError(errno.ENOSPC, "no space left")
            file.node.data[file.offset : file.offset + len(new)] = new
            file.offset += len(new)
            file.node.mtime = self.clock()
            self.peak_bytes = max(self.peak_bytes, self.used_bytes())
            return len(new)

    def rename(self, source: Path, target: Path) -> None:
        with self._lock:
            node = self._node(source)
            self._directory(target.parent)
            if self._is_directory(target):
                raise _error(errno.EISDIR, target)
            self._take_out(source)
            self._place(target, node)

    def unlink(self, path: Path) -> None:
        with self._lock:
            if self._node(path).data is None:
                raise _error(errno.EISDIR, path)
            self._take_out(path)

    def rmdir(self, path: Path) -> None:
        with self._lock:
            self._directory(path)
            if self.names(path):
                raise _error(errno.ENOTEMPTY, path)
            self._take_out(path)

    def stat(self, path: Path, *, follow: bool = False) -> FileStat:
        with self._lock:
            return _status(self._node(path))

    def fstat(self, fd: int) -> FileStat:
        with self._lock:
            return _status(self.open_files[fd].node)

    def names(self, path: Path) -> list[str]:
        with self._lock:
            self._directory(path)
            return list(self._below.get(str(path), ()))

    def scandir(self, path: Path) -> list[DirEntry]:
        with self._lock:
            found = [(name, self.stat(path / name)) for name in self.names(path)]
            return [DirEntry(name, at.size, at.mtime, at.is_dir) for name, at in found]

    def utime(self, path: Path, mtime: float) -> None:
        with self._lock:
            self._node(path).mtime = mtime

    def mkdir(self, path: Path, mode: int) -> None:
        with self._lock:
            self._directory(path.parent)
            if str(path) in self._nodes:
                raise _error(errno.EEXIST, path)
            self._place(path, _Node(mode, self.clock()))

    def free_bytes(self, path: Path) -> int:
        with self._lock:
            self._node(path)
            return self.capacity - self.used_bytes()

    def clone(self) -> "MemoryFileSystem":
        """Another one with the same files, none of them open."""
        other = MemoryFileSystem(self.clock, self.capacity)
        other._nodes = {
            name: _Node(node.mode, node.mtime, None if node.data is None else node.data[:])
            for name, node in self._nodes.items()
        }
        other._below = {name: dict(below) for name, below in self._below.items()}
        return other

    def used_bytes(self) -> int:
        """Bytes of all files."""
        return sum(len(node.data) for node in self._nodes.values() if node.data is not None)

    def files(self) -> list[Path]:
        """Every file there is."""
        return [Path(name) for name, node in self._nodes.items() if node.data is not None]

    def content(self, path: Path) -> bytearray:
        """The bytes of a file, to look at or to damage."""
        data = self._node(path).data
        assert data is not None
        return data

    def write(self, path: Path, data: bytes) -> None:
        """Put a file somewhere, with the directories above it."""
        for parent in reversed(path.parents):
            if str(parent) not in self._nodes:
                self._place(parent, _Node(0o755, self.clock()))
        self._place(path, _Node(0o600, self.clock(), bytearray(data)))

    def _place(self, path: Path, node: _Node) -> _Node:
        self._nodes[str(path)] = node
        self._below.setdefault(str(path.parent), {})[path.name] = None
        self._nodes[str(path.parent)].mtime = self.clock()
        return node

    def _take_out(self, path: Path) -> None:
        del self._nodes[str(path)]
        del self._below[str(path.parent)][path.name]
        self._nodes[str(path.parent)].mtime = self.clock()

    def _node(self, path: Path) -> _Node:
        node = self._nodes.get(str(path))
        if node is None:
            raise _error(errno.ENOENT, path)
        return node

    def _is_directory(self, path: Path) -> bool:
        return str(path) in self._nodes and self._nodes[str(path)].data is None

    def _directory(self, path: Path) -> None:
        if self._node(path).data is not None:
            raise _error(errno.ENOTDIR, path)


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))


def _status(node: _Node) -> FileStat:
    size = 0 if node.data is None else len(node.data)
    return FileStat(
        size, node.mtime, node.data is not None, node.data is None, stat.S_IMODE(node.mode)
    )


FaultMode = Literal["once", "forever", "torn"]


class FaultFileSystem:
    """Another file system whose call number `fail_at` (from 1) fails with `error`.

    "once": that call only; "forever": all from it on; "torn": half of it happens. A torn write
    claims to be complete, a torn read is short, anything else is done and then fails.
    """

    def __init__(
        self,
        inner: FileSystem,
        fail_at: int = 0,
        mode: FaultMode = "once",
        error: int = errno.EIO,
    ) -> None:
        self._inner = inner
        self._fail_at = fail_at
        self._mode = mode
        self._error = error
        self._only: str | None = None
        self.calls: list[str] = []

    def fail_next(self, name: str, mode: FaultMode, error: int) -> None:
        """From now on the next call of this name fails, or with "forever" all of them."""
        self._only, self._mode, self._error = name, mode, error
        self._fail_at = self.calls.count(name) + 1

    def heal(self) -> None:
        """Nothing fails any more."""
        self._fail_at = 0

    def _is_due(self, name: str) -> bool:
        self.calls.append(name)
        if not self._fail_at or self._only not in (None, name):
            return False
        number = len(self.calls) if self._only is None else self.calls.count(name)
        if self._mode == "forever":
            return number >= self._fail_at
        return number == self._fail_at

    def _call(self, name: str, action: Callable[[], T]) -> T:
        if not self._is_due(name):
            return action()
        if self._mode == "torn":
            action()
        raise OSError(self._error, os.strerror(self._error))

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        return self._call("open", lambda: self._inner.open(path, flags, mode))

    def close(self, fd: int) -> None:
        return self._call("close", lambda: self._inner.close(fd))

    def preadv(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        if not self._is_due("preadv"):
            return self._inner.preadv(fd, buffers, offset)
        if self._mode == "torn":
            return self._inner.preadv(fd, [buffers[0][: (len(buffers[0]) + 1) // 2]], offset)
        raise OSError(self._error, os.strerror(self._error))

    def writev(self, fd: int, buffers: Sequence[memoryview]) -> int:
        if not self._is_due("writev"):
            return self._inner.writev(fd, buffers)
        if self._mode == "torn":
            claimed = sum(len(buffer) for buffer in buffers)
            self._inner.writev(fd, [memoryview(b"".join(buffers)[: claimed // 2])])
            return claimed
        raise OSError(self._error, os.strerror(self._error))

    def bypass_cache(self, fd: int) -> None:
        return self._call("bypass_cache", lambda: self._inner.bypass_cache(fd))

    def rename(self, source: Path, target: Path) -> None:
        return self._call("rename", lambda: self._inner.rename(source, target))

    def unlink(self, path: Path) -> None:
        return self._call("unlink", lambda: self._inner.unlink(path))

    def rmdir(self, path: Path) -> None:
        return self._call("rmdir", lambda: self._inner.rmdir(path))

    def stat(self, path: Path, *, follow: bool = False) -> FileStat:
        return self._call("stat", lambda: self._inner.stat(path, follow=follow))

    def fstat(self, fd: int) -> FileStat:
        return self._call("fstat", lambda: self._inner.fstat(fd))

    def names(self, path: Path) -> list[str]:
        return self._call("names", lambda: self._inner.names(path))

    def scandir(self, path: Path) -> list[DirEntry]:
        return self._call("scandir", lambda: self._inner.scandir(path))

    def utime(self, path: Path, mtime: float) -> None:
        return self._call("utime", lambda: self._inner.utime(path, mtime))

    def mkdir(self, path: Path, mode: int) -> None:
        return self._call("mkdir", lambda: self._inner.mkdir(path, mode))

    def free_bytes(self, path: Path) -> int:
        return self._call("free_bytes", lambda: self._inner.free_bytes(path))


@dataclass
class Dribble:
    """The reads and writes of another file system, a few bytes at a time and often interrupted."""

    inner: FileSystem
    max_bytes: int
    max_buffers_seen: int = 0
    num_calls: int = 0

    def preadv(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        return self.inner.preadv(fd, self._few(buffers), offset)

    def writev(self, fd: int, buffers: Sequence[memoryview]) -> int:
        return self.inner.writev(fd, self._few(buffers))

    def _few(self, buffers: Sequence[memoryview]) -> list[memoryview]:
        self.num_calls += 1
        self.max_buffers_seen = max(self.max_buffers_seen, len(buffers))
        if self.num_calls % 3 == 0:
            raise InterruptedError(errno.EINTR, "interrupted")
        few: list[memoryview] = []
        room = self.max_bytes
        for buffer in buffers:
            few.append(buffer[:room])
            room -= len(few[-1])
        return few
