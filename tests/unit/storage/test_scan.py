"""What a scan makes of the files of a directory."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from omlx.storage.fs import RealFileSystem
from omlx.storage.scan import FileKind, FoundFile, is_process_alive, is_stale, scan
from tests.fakes.blocks import DIRECTORY, ROOT, Clock, make_block, make_state
from tests.fakes.fs import FaultFileSystem, MemoryFileSystem

BLOCK = make_block(ROOT, 1)
SHARD = BLOCK.path().parent


def test_place_and_name_make_the_kind() -> None:
    fs = MemoryFileSystem(Clock(77.0))
    kinds = {
        BLOCK.path(): FileKind.BLOCK,
        make_state(BLOCK).path(): FileKind.STATE,
        SHARD / "from-the-future.7.state.safetensors": FileKind.OTHER_BLOCK,
        SHARD / ".tmp-12-3": FileKind.TEMP,
        SHARD / "notes.txt": FileKind.UNKNOWN,
        SHARD.parent / ".tmp-12-4": FileKind.TEMP,
        SHARD.parent / "root.json": FileKind.ROOT_FILE,
        SHARD.parent / BLOCK.path().name: FileKind.UNKNOWN,
        SHARD.parent / "shard" / BLOCK.path().name: FileKind.UNKNOWN,
        SHARD.parent.parent / BLOCK.path().name: FileKind.UNKNOWN,
        DIRECTORY / "elsewhere" / SHARD.parent.name / SHARD.name / "x.safetensors": (
            FileKind.UNKNOWN
        ),
        DIRECTORY / ".tmp-12-5": FileKind.TEMP,
        DIRECTORY / "written-today.json": FileKind.DAY_FILE,
        DIRECTORY / "root.json": FileKind.UNKNOWN,
        DIRECTORY / "blocks" / ".tmp-12-5": FileKind.UNKNOWN,
    }
    for path in kinds:
        fs.write(path, b"12345")
    found = {DIRECTORY / file.place: file for file in scan(fs, DIRECTORY)}
    assert {path: file.kind for path, file in found.items()} == kinds
    block = found[BLOCK.path()]
    assert (block.size, block.mtime, block.filename) == (5, 77.0, BLOCK.path().name)
    assert block.root16 == ROOT.hex()[:16]
    assert found[DIRECTORY / ".tmp-12-5"].root16 == ""


def test_links_are_counted_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "file").write_bytes(b"123")
    found = {file.place: file.kind for file in scan(RealFileSystem(), tmp_path)}
    assert found == {"loop": FileKind.UNKNOWN, "file": FileKind.UNKNOWN}


def test_a_directory_that_vanishes_or_is_closed_to_us_is_left_out() -> None:
    memory = MemoryFileSystem(Clock())
    memory.write(BLOCK.path(), b"12345")
    for error in (errno.ENOENT, errno.EACCES):
        fs = FaultFileSystem(memory, 2, error=error)
        assert scan(fs, DIRECTORY) == []
    with pytest.raises(OSError):
        scan(FaultFileSystem(memory, 2, error=errno.EIO), DIRECTORY)
    with pytest.raises(FileNotFoundError):
        scan(memory, Path("/nowhere"))


def test_a_temporary_file_is_stale_when_old_or_its_writer_is_dead() -> None:
    temp = FoundFile("blocks/.tmp-12-1", 1, 1000.0, FileKind.TEMP)
    assert not is_stale(temp, now=1000.0, is_alive=lambda pid: pid == 12)
    assert is_stale(temp, now=1000.0, is_alive=lambda pid: pid != 12)
    assert is_stale(temp, now=1000.0 + 3601, is_alive=lambda pid: True)


def test_processes_are_alive_or_dead() -> None:
    assert is_process_alive(os.getpid()) and is_process_alive(1)
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert not is_process_alive(child.pid)
    assert not is_process_alive(10**10)
