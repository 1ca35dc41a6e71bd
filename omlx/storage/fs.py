"""The file system as an interface: just the calls the store makes, and the real one.

Knows nothing about blocks, names or budgets.
"""

import errno
import fcntl
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

READ_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a FIFO must not hang us
WRITE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
BUSY = (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR)
"""What is raised for want of descriptors or memory, and is no fault of a file."""

_MAX_BUFFERS = 1024  # IOV_MAX of Linux and macOS
_MAX_CALL_BYTES = 1 << 30  # macOS refuses 2 GiB and more in one call


@dataclass(frozen=True, slots=True)
class FileStat:
    """What the store asks about a file."""

    size: int
    mtime: float
    is_file: bool
    is_dir: bool
    mode: int


class DirEntry(NamedTuple):  # a tuple, since a start makes a hundred thousand
    """One name in a directory with its figures; links are not followed."""

    name: str
    size: int
    mtime: float
    is_dir: bool


class FileSystem(Protocol):
    """The calls the store makes; each raises OSError as the operating system does."""

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        """A file descriptor."""
        ...

    def close(self, fd: int) -> None:
        """Give the descriptor back."""
        ...

    def preadv(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Read once into `buffers`; may read less than they hold, 0 at the end of the file."""
        ...

    def bypass_cache(self, fd: int) -> None:
        """Ask that what is read through the descriptor takes no room in the page cache."""
        ...

    def writev(self, fd: int, buffers: Sequence[memoryview]) -> int:
        """Write once from `buffers`; may write less than they hold."""
        ...

    def rename(self, source: Path, target: Path) -> None:
        """Move, replacing `target` in one step."""
        ...

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        ...

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory."""
        ...

    def stat(self, path: Path, *, follow: bool = False) -> FileStat:
        """What is at `path`; a link is followed only where asked for."""
        ...

    def fstat(self, fd: int) -> FileStat:
        """What an open descriptor stands for."""
        ...

    def names(self, path: Path) -> list[str]:
        """The names in a directory."""
        ...

    def scandir(self, path: Path) -> list[DirEntry]:
        """The names in a directory with their figures, without what vanished meanwhile."""
        ...

    def utime(self, path: Path, mtime: float) -> None:
        """Set the time of last change."""
        ...

    def mkdir(self, path: Path, mode: int) -> None:
        """Make one directory."""
        ...

    def free_bytes(self, path: Path) -> int:
        """Bytes an ordinary user can still write on the volume that holds `path`."""
        ...


def _file_stat(found: os.stat_result) -> FileStat:
    return FileStat(
        size=found.st_size,
        mtime=found.st_mtime,
        is_file=stat.S_ISREG(found.st_mode),
        is_dir=stat.S_ISDIR(found.st_mode),
        mode=stat.S_IMODE(found.st_mode),
    )


class RealFileSystem:
    """The operating system's file system; any thread may call it.

    Only macOS has a way to read past the page cache that needs no aligned buffers: `nocache` is
    its number.
    """

    def __init__(
        self,
        *,
        nocache: int | None = getattr(fcntl, "F_NOCACHE", None),
        control: Callable[[int, int, int], object] = fcntl.fcntl,
    ) -> None:
        self._nocache = nocache
        self._control = control

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        return os.open(path, flags, mode)

    def close(self, fd: int) -> None:
        os.close(fd)

    def preadv(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        return os.preadv(fd, buffers, offset)

    def bypass_cache(self, fd: int) -> None:
        if self._nocache is not None:
            self._control(fd, self._nocache, 1)

    def writev(self, fd: int, buffers: Sequence[memoryview]) -> int:
        return os.writev(fd, buffers)

    def rename(self, source: Path, target: Path) -> None:
        source.replace(target)

    def unlink(self, path: Path) -> None:
        path.unlink()

    def rmdir(self, path: Path) -> None:
        path.rmdir()

    def stat(self, path: Path, *, follow: bool = False) -> FileStat:
        return _file_stat(path.stat(follow_symlinks=follow))

    def fstat(self, fd: int) -> FileStat:
        return _file_stat(os.fstat(fd))

    def names(self, path: Path) -> list[str]:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries]

    def scandir(self, path: Path) -> list[DirEntry]:
        found: list[DirEntry] = []
        with os.scandir(path) as entries:
            for entry in entries:
                try:  # a hundred thousand times at start: suppress() would take as long as stat()
                    status = entry.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue
                is_dir = entry.is_dir(follow_symlinks=False)
                found.append(DirEntry(entry.name, status.st_size, status.st_mtime, is_dir))
        return found

    def utime(self, path: Path, mtime: float) -> None:
        os.utime(path, (mtime, mtime))

    def mkdir(self, path: Path, mode: int) -> None:
        path.mkdir(mode)

    def free_bytes(self, path: Path) -> int:
        volume = os.statvfs(path)
        return volume.f_bavail * volume.f_frsize


class _Rest:
    """The part of a row of buffers that is still to be moved."""

    def __init__(self, buffers: Sequence[memoryview]) -> None:
        self._buffers = [buffer for buffer in buffers if len(buffer)]
        self._idx = 0

    def __bool__(self) -> bool:
        return self._idx < len(self._buffers)

    def next_call(self) -> list[memoryview]:
        """As much as one system call may take."""
        taken: list[memoryview] = []
        room = _MAX_CALL_BYTES
        for buffer in self._buffers[self._idx : self._idx + _MAX_BUFFERS]:
            taken.append(buffer[:room])
            room -= len(taken[-1])
            if room == 0:
                break
        return taken

    def advance(self, num_bytes: int) -> None:
        """So many bytes were moved."""
        while self and num_bytes >= len(self._buffers[self._idx]):
            num_bytes -= len(self._buffers[self._idx])
            self._idx += 1
        if num_bytes:
            self._buffers[self._idx] = self._buffers[self._idx][num_bytes:]


def write_all(fs: FileSystem, fd: int, buffers: Sequence[memoryview]) -> None:
    """Write all of `buffers` (flat bytes), however many calls it takes; OSError."""
    rest = _Rest(buffers)
    while rest:
        try:
            written = fs.writev(fd, rest.next_call())
        except InterruptedError:
            continue
        if written <= 0:
            raise OSError(errno.EIO, "a write made no progress")
        rest.advance(written)


def read_into(fs: FileSystem, fd: int, buffers: Sequence[memoryview], *, offset: int) -> int:
    """Fill `buffers` (flat, writable bytes) from `offset` on; fewer bytes only at the end; OSError.

    Mutates the buffers.
    """
    rest = _Rest(buffers)
    start = offset
    while rest:
        try:
            got = fs.preadv(fd, rest.next_call(), offset)
        except InterruptedError:
            continue
        if got <= 0:
            break
        offset += got
        rest.advance(got)
    return offset - start


def flat(buffer: memoryview) -> memoryview:
    """The same memory as a row of bytes; the buffer must be contiguous."""
    return buffer.cast("B") if buffer.nbytes else memoryview(b"")


def make_directories(fs: FileSystem, base: Path, target: Path) -> None:
    """Make what is missing of `target` below an existing `base`, mode 0700; OSError."""
    path = base
    for part in target.relative_to(base).parts:
        path /= part
        with suppress(FileExistsError):
            fs.mkdir(path, 0o700)


def read_file(fs: FileSystem, path: Path, *, max_bytes: int) -> bytes:
    """The first `max_bytes` of a small file; OSError."""
    fd = fs.open(path, READ_FLAGS)
    try:
        data = bytearray(min(fs.fstat(fd).size, max_bytes))
        return bytes(data[: read_into(fs, fd, [memoryview(data)], offset=0)])
    finally:
        with suppress(OSError):  # nothing was written through it
            fs.close(fd)
