"""The file-system interface, the same for the real one and the one in memory."""

import errno
import os
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from omlx.storage.fs import (
    READ_FLAGS,
    WRITE_FLAGS,
    FileSystem,
    RealFileSystem,
    flat,
    make_directories,
    read_file,
    read_into,
    write_all,
)
from tests.fakes.blocks import Clock
from tests.fakes.fs import Dribble, MemoryFileSystem


@pytest.fixture(params=["real", "memory"])
def fs(request: pytest.FixtureRequest, tmp_path: Path) -> FileSystem:
    if request.param == "real":
        return RealFileSystem()
    memory = MemoryFileSystem(Clock())
    memory.write(tmp_path / "x", b"")
    memory.unlink(tmp_path / "x")
    return memory


def put(fs: FileSystem, path: Path, data: bytes) -> None:
    fd = fs.open(path, WRITE_FLAGS, 0o600)
    write_all(fs, fd, [memoryview(data)])
    fs.close(fd)


def test_files_are_written_once_read_back_renamed_and_removed(
    fs: FileSystem, tmp_path: Path
) -> None:
    put(fs, tmp_path / "a", b"hello")
    with pytest.raises(FileExistsError):
        fs.open(tmp_path / "a", WRITE_FLAGS)
    status = fs.stat(tmp_path / "a")
    assert (status.size, status.is_file, status.is_dir, status.mode) == (5, True, False, 0o600)
    put(fs, tmp_path / "b", b"old")
    fs.rename(tmp_path / "a", tmp_path / "b")
    assert read_file(fs, tmp_path / "b", max_bytes=100) == b"hello"
    assert read_file(fs, tmp_path / "b", max_bytes=2) == b"he"
    assert fs.names(tmp_path) == ["b"]
    fs.unlink(tmp_path / "b")
    assert fs.names(tmp_path) == []


def test_directories_are_private_and_removed_only_when_empty(
    fs: FileSystem, tmp_path: Path
) -> None:
    make_directories(fs, tmp_path, tmp_path / "a" / "b")
    make_directories(fs, tmp_path, tmp_path / "a" / "b")
    assert fs.stat(tmp_path / "a").mode == 0o700
    assert [(e.name, e.is_dir) for e in fs.scandir(tmp_path)] == [("a", True)]
    with pytest.raises(OSError):
        fs.rmdir(tmp_path / "a")
    fs.rmdir(tmp_path / "a" / "b")
    fs.rmdir(tmp_path / "a")
    assert fs.scandir(tmp_path) == []


def test_what_is_missing_raises_file_not_found(fs: FileSystem, tmp_path: Path) -> None:
    missing = tmp_path / "no" / "file"
    for call in (
        lambda: fs.open(missing, READ_FLAGS),
        lambda: fs.open(missing, WRITE_FLAGS),
        lambda: fs.stat(missing),
        lambda: fs.unlink(missing),
        lambda: fs.names(missing),
        lambda: fs.scandir(missing),
        lambda: fs.utime(missing, 1.0),
        lambda: fs.mkdir(missing, 0o700),
        lambda: fs.rename(missing, tmp_path / "x"),
        lambda: fs.free_bytes(missing),
    ):
        with pytest.raises(FileNotFoundError):
            call()


def test_times_can_be_set_and_free_space_asked(fs: FileSystem, tmp_path: Path) -> None:
    put(fs, tmp_path / "a", b"hello")
    fs.utime(tmp_path / "a", 123.5)
    assert fs.stat(tmp_path / "a").mtime == 123.5
    assert fs.scandir(tmp_path)[0].mtime == 123.5
    assert fs.free_bytes(tmp_path) > 0


def test_links_are_followed_only_on_request(tmp_path: Path) -> None:
    fs = RealFileSystem()
    (tmp_path / "link").symlink_to(tmp_path)
    assert not fs.stat(tmp_path / "link").is_dir
    assert fs.stat(tmp_path / "link", follow=True).is_dir
    with pytest.raises(OSError) as caught:
        fs.open(tmp_path / "link", READ_FLAGS)
    assert caught.value.errno == errno.ELOOP


@pytest.mark.parametrize("max_bytes", [31, 1000])
def test_short_calls_interruptions_and_many_buffers(tmp_path: Path, max_bytes: int) -> None:
    dribble = Dribble(RealFileSystem(), max_bytes)
    slow = cast(FileSystem, dribble)
    pieces = [bytes([i % 251]) * (i % 4) for i in range(3000)]
    fd = os.open(tmp_path / "a", os.O_RDWR | os.O_CREAT, 0o600)
    write_all(slow, fd, [memoryview(piece) for piece in pieces])
    buffers = [bytearray(len(piece)) for piece in pieces]
    whole = b"".join(pieces)
    num_bytes = read_into(slow, fd, [memoryview(b) for b in buffers], offset=0)
    assert num_bytes == len(whole) and b"".join(buffers) == whole == (tmp_path / "a").read_bytes()
    assert 0 < dribble.max_buffers_seen <= 1024
    tail = bytearray(50)
    assert read_into(slow, fd, [memoryview(tail)], offset=len(whole) - 20) == 20
    assert bytes(tail[:20]) == whole[-20:]
    os.close(fd)


def test_one_call_never_asks_for_two_gigabytes() -> None:
    class Counting(RealFileSystem):
        def __init__(self) -> None:
            self.asked: list[int] = []

        def writev(self, fd: int, buffers: Sequence[memoryview]) -> int:
            self.asked.append(sum(len(buffer) for buffer in buffers))
            return self.asked[-1]

    counting = Counting()
    odd, large = memoryview(bytearray(1)), memoryview(bytearray(3 << 20))
    write_all(counting, -1, [odd, *[large] * 1500])
    assert sum(counting.asked) == 1 + 1500 * (3 << 20)
    assert max(counting.asked) <= 1 << 30


def test_a_write_without_progress_is_an_error_not_a_loop() -> None:
    class Stuck(RealFileSystem):
        def writev(self, fd: int, buffers: Sequence[memoryview]) -> int:
            return 0

    with pytest.raises(OSError):
        write_all(Stuck(), -1, [memoryview(b"x")])


def test_flat_takes_any_shape() -> None:
    assert flat(memoryview(bytearray(12)).cast("I", (1, 3))).nbytes == 12
    assert len(flat(memoryview(b""))) == 0


@pytest.mark.parametrize(("nocache", "calls"), [(48, [(7, 48, 1)]), (None, [])])
def test_reads_pass_the_page_cache_by_where_the_system_has_a_way(
    nocache: int | None, calls: list[tuple[int, int, int]]
) -> None:
    made: list[tuple[int, int, int]] = []
    fs = RealFileSystem(nocache=nocache, control=lambda *call: made.append(call))
    fs.bypass_cache(7)
    assert made == calls


def test_a_file_that_passes_the_page_cache_by_is_read_as_any_other(
    fs: FileSystem, tmp_path: Path
) -> None:
    put(fs, tmp_path / "x", b"abc" * 5000)
    fd = fs.open(tmp_path / "x", READ_FLAGS)
    fs.bypass_cache(fd)
    data = bytearray(14_990)
    assert read_into(fs, fd, [memoryview(data)], offset=1) == len(data)
    assert data == (b"abc" * 5000)[1:14_991]
    fs.close(fd)
