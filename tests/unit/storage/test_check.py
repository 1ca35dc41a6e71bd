"""A check reads all there is, says what is bad, and removes that only when it is told to."""

import errno
import os
from pathlib import Path

import pytest

from omlx.storage import check
from omlx.storage.check import BadFile, Checked, Checker, CheckProgress
from omlx.storage.fs import FileSystem, RealFileSystem
from omlx.storage.record import BadReason
from tests.fakes.blocks import (
    DIRECTORY,
    OTHER_ROOT,
    ROOT,
    Block,
    Clock,
    Shelf,
    make_block,
    make_chain,
    make_state,
)
from tests.fakes.fs import FaultFileSystem, FaultMode, MemoryFileSystem

CHAIN = make_chain(4)
TAIL = make_block(CHAIN[3].key.name, 5, count=2)
STATES = [make_state(CHAIN[1]), make_state(TAIL)]
BLOCKS = [*CHAIN, TAIL, *STATES]
OTHERS = make_chain(2, root=OTHER_ROOT, seed=1)


def stocked(clock: Clock | None = None) -> MemoryFileSystem:
    clock = clock or Clock()
    memory = MemoryFileSystem(clock)
    for block in BLOCKS:
        Shelf(memory, clock).put(block)
    for block in OTHERS:
        Shelf(memory, clock, root=OTHER_ROOT).put(block)
    return memory


def run(
    fs: FileSystem,
    *,
    repair: bool = False,
    seen: list[CheckProgress] | None = None,
    num_threads: int = 3,
) -> Checked:
    seen = [] if seen is None else seen
    checker = Checker(
        DIRECTORY, fs, repair=repair, num_threads=num_threads, is_alive=lambda pid: pid != 666
    )
    return checker.run(now=Clock()(), progress=seen.append)


def place(block: Block) -> str:
    return block.path().relative_to(DIRECTORY).as_posix()


def test_a_sound_cache_has_nothing_bad() -> None:
    memory = stocked()
    before = {path: bytes(memory.content(path)) for path in memory.files()}
    found = run(memory, repair=True)
    assert (found.num_blocks, found.num_states) == (7, 2)
    assert (found.bad, found.num_left, found.num_other, found.num_busy) == ((), 0, 0, 0)
    assert found.num_bytes == sum(
        memory.stat(path).size for path in memory.files() if path.suffix == ".safetensors"
    )
    assert {path: bytes(memory.content(path)) for path in memory.files()} == before


def damaged() -> MemoryFileSystem:
    """Each file with a fault of its own."""
    memory = stocked()
    memory.content(CHAIN[0].path())[-1] ^= 1
    memory.content(CHAIN[1].path()).clear()
    del memory.content(CHAIN[2].path())[4200:]
    memory.rename(CHAIN[3].path(), CHAIN[3].path().with_name("0" * 32 + TAIL.path().name[32:]))
    memory.content(TAIL.path())[4096] ^= 1
    memory.content(STATES[0].path())[9] = 0
    memory.content(STATES[1].path())[:] = memory.content(OTHERS[0].path(OTHER_ROOT))
    moved = OTHERS[1].path(OTHER_ROOT)
    memory.write(moved.parent.parent / "ee" / moved.name, bytes(memory.content(moved)))
    return memory


REASONS = {
    BadReason.CHECKSUM: 2,
    BadReason.EMPTY: 1,
    BadReason.TRUNCATED: 1,
    BadReason.FOREIGN: 3,
    BadReason.HEADER: 1,
}


def test_every_fault_is_found_and_stays_without_repair() -> None:
    memory = damaged()
    before = sorted(memory.files())
    found = run(memory)
    assert found.by_reason == REASONS and found.num_left == 8
    assert (found.num_blocks, found.num_states) == (2, 0)
    assert BadFile(place(CHAIN[0]), BadReason.CHECKSUM, is_removed=False) in found.bad
    assert sorted(memory.files()) == before


def test_a_repair_removes_what_is_bad_and_nothing_else() -> None:
    memory = damaged()
    found = run(memory, repair=True)
    assert found.by_reason == REASONS and found.num_left == 0
    kept = [path for path in memory.files() if path.suffix == ".safetensors"]
    assert sorted(kept) == sorted(block.path(OTHER_ROOT) for block in OTHERS)
    assert run(memory) == Checked(2, 0, found.num_bytes, (), 0, 0, 0, 0)


def test_a_flipped_bit_anywhere_in_the_data_is_found() -> None:
    memory = MemoryFileSystem(Clock())
    Shelf(memory).put(STATES[0])
    content = memory.content(STATES[0].path())
    for idx in range(4096, len(content)):
        content[idx] ^= 0x40
        assert run(memory, num_threads=1).by_reason == {BadReason.CHECKSUM: 1}
        content[idx] ^= 0x40


def test_a_section_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omlx.storage.blockfile._PIECE_BYTES", 7)
    memory = stocked()
    assert run(memory).bad == ()
    memory.content(CHAIN[0].path())[-1] ^= 1
    assert run(memory).by_reason == {BadReason.CHECKSUM: 1}


def test_files_of_another_version_are_counted_and_kept() -> None:
    memory = stocked()
    content = memory.content(CHAIN[0].path())
    content[:] = content.replace(b'"format":"1"', b'"format":"0"')
    memory.write(CHAIN[0].path().parent / "from.the.future.safetensors", b"12345")
    before = sorted(memory.files())
    found = run(memory, repair=True)
    assert (found.num_other, found.bad, found.num_blocks) == (2, (), 6)
    assert sorted(memory.files()) == before


def test_what_dead_writers_left_goes_with_a_repair() -> None:
    memory = stocked()
    shard = CHAIN[0].path().parent
    memory.write(shard / ".tmp-666-1", b"half")
    memory.write(DIRECTORY / ".tmp-666-2", b"half")
    memory.write(shard / ".tmp-12-1", b"being written")
    memory.write(DIRECTORY / "notes", b"mine")
    found = run(memory)
    assert (found.num_stale_temps, found.num_temps_removed) == (2, 0)
    found = run(memory, repair=True)
    assert (found.num_stale_temps, found.num_temps_removed) == (2, 2)
    assert shard / ".tmp-12-1" in memory.files() and DIRECTORY / "notes" in memory.files()
    assert run(memory).num_stale_temps == 0


def test_progress_ends_at_the_whole() -> None:
    seen: list[CheckProgress] = []
    memory = damaged()
    run(memory, seen=seen)
    assert [step.num_files for step in seen] == list(range(1, 11))
    assert seen[-1].num_bytes == seen[-1].num_bytes_total
    assert {step.num_files_total for step in seen} == {10}


def test_more_files_than_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "_BATCH", 2)
    assert run(damaged()).by_reason == REASONS


def test_no_directory_holds_nothing() -> None:
    assert run(MemoryFileSystem(Clock())) == Checked(0, 0, 0, (), 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("call", "error", "busy", "bad"),
    [
        ("open", errno.EMFILE, 1, {}),
        ("open", errno.ENOENT, 0, {}),
        ("open", errno.EACCES, 0, {BadReason.UNREADABLE: 1}),
        ("preadv", errno.EIO, 0, {BadReason.UNREADABLE: 1}),
    ],
)
def test_files_that_can_not_be_read(
    call: str, error: int, busy: int, bad: dict[BadReason, int]
) -> None:
    memory = stocked()
    fs = FaultFileSystem(memory)
    fs.fail_next(call, "once", error)
    found = run(fs, num_threads=1)
    assert (found.num_busy, found.by_reason) == (busy, bad)
    assert found.num_blocks + found.num_states == 8


@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES])
def test_a_directory_that_can_not_be_written_to_keeps_its_bad_files(error: int) -> None:
    memory = damaged()
    memory.write(CHAIN[0].path().parent / ".tmp-666-1", b"half")
    fs = FaultFileSystem(memory)
    fs.fail_next("unlink", "forever", error)
    found = run(fs, repair=True)
    assert found.num_left == len(found.bad) == 8
    assert (found.num_stale_temps, found.num_temps_removed) == (1, 0)


def test_a_directory_that_can_not_be_listed_is_an_error() -> None:
    fs = FaultFileSystem(stocked())
    fs.fail_next("scandir", "once", errno.EACCES)
    with pytest.raises(PermissionError):
        run(fs)


@pytest.mark.parametrize("mode", ["once", "forever", "torn"])
def test_whichever_call_fails_no_good_file_is_called_bad_but_unreadable(mode: FaultMode) -> None:
    def counted() -> list[str]:
        fs = FaultFileSystem(damaged())
        run(fs, num_threads=1)
        return fs.calls

    calls = counted()
    for n in range(1, len(calls) + 1):
        memory = damaged()
        fs = FaultFileSystem(memory, n, mode)
        try:
            found = run(fs, num_threads=1)
        except OSError:
            assert calls[n - 1] == "scandir"
            continue
        expected = {*REASONS, BadReason.UNREADABLE}
        assert set(found.by_reason) <= expected and found.num_left == len(found.bad)
        assert mode != "once" or calls[n - 1] == "close" or not memory.open_files
        repaired = run(memory, repair=True)
        assert repaired.by_reason == REASONS and repaired.num_left == 0


def test_real_files_and_an_interrupt(tmp_path: Path) -> None:
    shelf = Shelf(RealFileSystem(), directory=tmp_path / "c")
    for block in make_chain(30):
        shelf.put(block)
    os.mkfifo(tmp_path / "c" / place(make_block(ROOT, 77)))
    checker = Checker(tmp_path / "c", RealFileSystem())

    def interrupt(progress: CheckProgress) -> None:
        if progress.num_files == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        checker.run(now=0.0, progress=interrupt)
    found = checker.run(now=0.0, progress=lambda progress: None)
    assert found.num_blocks == 30 and found.by_reason == {BadReason.FOREIGN: 1}
