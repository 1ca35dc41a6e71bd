"""A directory looked at again: all that has changed is seen, and little else is read."""

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.storage.fs import RealFileSystem
from omlx.storage.scan import scan
from omlx.storage.watch import DirectoryWatch
from tests.fakes.blocks import DIRECTORY, OTHER_ROOT, ROOT, Clock, make_block, make_chain
from tests.fakes.fs import FaultFileSystem, MemoryFileSystem

CHAIN = make_chain(3)
SHARDS = [block.path().parent for block in CHAIN]


class Seen:
    """What a watch has told so far, put together."""

    def __init__(self, memory: MemoryFileSystem, clock: Clock) -> None:
        self.fs = FaultFileSystem(memory)
        self.watch = DirectoryWatch(self.fs, DIRECTORY, clock)
        self.folders: dict[str, list[str]] = {}

    def look(self, *, everything: bool = False) -> list[str]:
        """Look; the folders that were read."""
        read: list[str] = []
        for listing in self.watch.look(self.known, everything=everything):
            read.append(listing.folder)
            files = [file.place for file in listing.files]
            assert not listing.kept - self.known(listing.folder) and not listing.kept & {*files}
            self.folders[listing.folder] = [*listing.kept, *files]
        return read

    def known(self, folder: str) -> set[str]:
        return set(self.folders.get(folder, ()))

    def places(self) -> list[str]:
        return sorted(place for places in self.folders.values() for place in places)


def nothing(folder: str) -> set[str]:
    """What one knows of a folder at first."""
    return set()


def on_disk(memory: MemoryFileSystem) -> list[str]:
    return sorted(file.place for file in scan(memory, DIRECTORY))


def make() -> tuple[MemoryFileSystem, Clock, Seen]:
    clock = Clock(1_000_000.5)
    memory = MemoryFileSystem(clock)
    for block in CHAIN:
        memory.write(block.path(), bytes(10))
    memory.write(DIRECTORY / "notes", b"mine")
    clock.now += 10
    return memory, clock, Seen(memory, clock)


def shards_of(read: list[str]) -> list[Path]:
    return [DIRECTORY / folder.rstrip("/") for folder in read if folder.count("/") == 3]


def test_the_first_look_reads_everything_and_the_next_no_shard() -> None:
    memory, clock, seen = make()
    assert len(shards_of(seen.look())) == 3
    assert seen.places() == on_disk(memory)
    clock.now += 1
    assert shards_of(seen.look()) == []
    assert len(shards_of(seen.look(everything=True))) == 3


def test_only_the_shard_that_changed_is_read() -> None:
    memory, clock, seen = make()
    seen.look()
    memory.write(SHARDS[1] / "new", b"12")
    memory.unlink(CHAIN[1].path())
    clock.now += 1
    assert shards_of(seen.look()) == [SHARDS[1]]
    assert seen.places() == on_disk(memory)
    clock.now += 1
    assert shards_of(seen.look()) == []


def test_a_shard_that_changed_a_moment_ago_is_read_once_more() -> None:
    """A second change within a tick leaves the folder's time as it is."""
    memory, clock, seen = make()
    memory.write(SHARDS[1] / "new", b"12")
    seen.look()
    memory.write(SHARDS[1] / "newer", b"12")
    clock.now += 0.01
    assert shards_of(seen.look()) == [SHARDS[1]]
    assert seen.places() == on_disk(memory)
    clock.now += 1
    assert shards_of(seen.look()) == [SHARDS[1]], "the last look may have been too early, too"
    assert shards_of(seen.look()) == []


def test_whole_seconds_are_trusted_later() -> None:
    """Some file systems keep no fractions."""
    memory, clock, seen = make()
    seen.look()
    clock.now = 1_000_015.0
    memory.write(SHARDS[1] / "new", b"12")
    read: list[list[Path]] = []
    for wait in (1.0, 1.2, 0.1):
        clock.now += wait
        read.append(shards_of(seen.look()))
    assert read == [[SHARDS[1]], [SHARDS[1]], []]
    assert seen.places() == on_disk(memory)


def test_new_roots_and_folders_of_others_are_seen_and_what_vanished_is_gone() -> None:
    memory, clock, seen = make()
    seen.look()
    other = make_block(OTHER_ROOT, 1)
    memory.write(other.path(OTHER_ROOT), bytes(10))
    memory.write(DIRECTORY / "mine" / "deep" / "file", b"1")
    clock.now += 1
    seen.look()
    assert seen.places() == on_disk(memory)
    for path in (other.path(OTHER_ROOT), DIRECTORY / "mine" / "deep" / "file"):
        memory.unlink(path)
        memory.rmdir(path.parent)
        memory.rmdir(path.parent.parent)
    clock.now += 1
    seen.look()
    assert seen.places() == on_disk(memory)


def test_old_looks_are_repeated_a_few_at_a_time_also_when_the_clock_is_set_back() -> None:
    memory, clock, seen = make()
    for seed in range(40):
        memory.write(
            make_block(ROOT, seed).path(root=ROOT).parent.parent / f"{seed:02x}" / "a", b""
        )
    clock.now += 10
    everything = set(shards_of(seen.look()))
    for jump in (61, -5000):
        clock.now += jump
        read: list[Path] = []
        while some := shards_of(seen.look()):
            assert len(some) <= 8
            read.extend(some)
        assert sorted(read) == sorted(everything)


def test_a_folder_that_can_not_be_listed_counts_as_empty_and_is_no_error() -> None:
    memory, clock, seen = make()
    seen.fs.fail_next("scandir", "once", errno.EACCES)
    with pytest.raises(PermissionError):
        seen.look()
    for n in range(2, 6):
        memory, clock, _ = make()
        fs = FaultFileSystem(memory, n, error=errno.EACCES)
        list(DirectoryWatch(fs, DIRECTORY, clock).look(nothing))
        with pytest.raises(OSError):
            list(DirectoryWatch(FaultFileSystem(memory, n), DIRECTORY, clock).look(nothing))


@pytest.mark.parametrize("n", range(2, 8))
def test_after_a_look_that_failed_the_next_one_sees_all(n: int) -> None:
    memory, clock, seen = make()
    seen.look()
    for shard in SHARDS:
        memory.write(shard / "new", b"12")
    clock.now += 1
    seen.fs.fail_next("scandir", "once", errno.EIO)
    with pytest.raises(OSError):
        seen.look()
    seen.look()
    assert seen.places() == on_disk(memory)


def test_a_real_directory(tmp_path: Path) -> None:
    watch = DirectoryWatch(RealFileSystem(), tmp_path, lambda: tmp_path.stat().st_mtime)
    found: set[str] = set()
    for number in range(50):
        (tmp_path / "a").mkdir(exist_ok=True)
        (tmp_path / "a" / str(number)).write_bytes(b"")
        for listing in watch.look(nothing):
            found = {file.place for file in listing.files} if listing.folder == "a/" else found
        assert found == {f"a/{i}" for i in range(number + 1)}


PARENT = SHARDS[0].parent
moves = st.lists(
    st.tuples(
        st.sampled_from(["add", "remove", "rmdir", "look"]),
        st.sampled_from(["00", "01", "02"]),
        st.sampled_from([0.0, 0.01, 0.04, 0.06, 1.0, -3.0017]),
    ),
    max_size=30,
)


@given(moves)
def test_whatever_happens_a_look_later_than_a_tick_knows_it(
    steps: list[tuple[str, str, float]],
) -> None:
    memory, clock, seen = make()
    for i, (move, shard, wait) in enumerate(steps):
        if move == "add":
            memory.write(PARENT / shard / str(i), b"")
        elif move == "look":
            seen.look()
        elif shard in memory.names(PARENT):
            names = memory.names(PARENT / shard)
            for name in names[: 1 if move == "remove" else None]:
                memory.unlink(PARENT / shard / name)
            if move == "rmdir":
                memory.rmdir(PARENT / shard)
        clock.now += wait
    clock.now += 0.06
    seen.look()
    assert seen.places() == on_disk(memory)
