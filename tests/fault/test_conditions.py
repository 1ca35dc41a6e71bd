"""A store on a disk that is in a bad way, or whose files or clock others have changed."""

import errno
import logging
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from omlx.errors import StoreError
from omlx.storage.check import Checker
from omlx.storage.fs import RealFileSystem
from omlx.storage.layout import BlockHash, root_dir
from omlx.storage.record import BadReason
from omlx.storage.store import PutResult
from omlx.storage.survey import execute, plan_prune, survey
from omlx.storage.writer import DropReason
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
    shelf_and_fs,
)
from tests.fakes.fs import MemoryFileSystem

CHAIN = make_chain(3)
STATE = make_state(CHAIN[2])
BLOCKS = [*CHAIN, STATE]
LATER = make_block(ROOT, 60)
OTHERS = [make_block(ROOT, seed) for seed in range(100, 110)]


class ReadOnly(MemoryFileSystem):
    """A file system in memory that takes no changes while it has an `error`."""

    error = 0

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        if flags & os.O_WRONLY:
            self._refuse(path)
        return super().open(path, flags, mode)

    def rename(self, source: Path, target: Path) -> None:
        self._refuse(target)
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        self._refuse(path)
        super().unlink(path)

    def rmdir(self, path: Path) -> None:
        self._refuse(path)
        super().rmdir(path)

    def utime(self, path: Path, mtime: float) -> None:
        self._refuse(path)
        super().utime(path, mtime)

    def mkdir(self, path: Path, mode: int) -> None:
        self._refuse(path)
        super().mkdir(path, mode)

    def _refuse(self, path: Path) -> None:
        if self.error:
            raise OSError(self.error, os.strerror(self.error), str(path))


def use(shelf: Shelf) -> list[bool]:
    """Everything that can be asked of a store; what of its blocks is read back right."""
    for key in (BlockHash(ROOT), CHAIN[1].key.name):
        for child in [*shelf.store.children(key), *shelf.store.states([key])]:
            assert child.key in [block.key for block in (*BLOCKS, LATER, *OTHERS)]
    found = [shelf.get(block) for block in BLOCKS]
    for content, block in zip(found, BLOCKS, strict=True):
        assert content in (None, block.data)
    shelf.store.touch([block.key for block in BLOCKS])
    shelf.store.index()
    return [content is not None for content in found]


@pytest.mark.parametrize("error", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_a_directory_that_became_read_only_still_serves_what_is_good(
    error: int, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    fs = ReadOnly(clock)
    shelf = Shelf(fs, clock, max_bytes=18_000)
    for block in BLOCKS:
        assert shelf.put(block) is PutResult.STORED
    fs.error = error
    fs.content(CHAIN[0].path())[-1] ^= 1
    again = Shelf(fs, clock, max_bytes=18_000)
    with caplog.at_level(logging.WARNING, logger="omlx.storage"):
        assert use(again) == [False, True, True, True]
        assert again.put(LATER) is PutResult.DROPPED
        assert again.put(CHAIN[1]) is PutResult.EXISTS
        again.store.remove(CHAIN[1].key)
        again.store.evict(1)
        assert use(again) == [False, True, True, True]
    assert len(caplog.records) == 1
    assert again.store.counters().bad == {BadReason.CHECKSUM: 2}
    assert again.budget.used_bytes == fs.used_bytes()
    fs.error = 0
    clock.now += 61
    assert again.put(LATER) is PutResult.STORED
    assert use(again)[0] is False and again.put(CHAIN[0]) is PutResult.STORED


def test_a_directory_that_may_not_be_read_is_one_with_misses() -> None:
    shelf, fs, memory = shelf_and_fs()
    for block in BLOCKS:
        shelf.put(block)
    for call in ("open", "stat", "names", "scandir", "unlink"):
        fs.fail_next(call, "forever", errno.EACCES)
        use(shelf)
        shelf.put(LATER)
        shelf.store.evict(1)
        fs.heal()
        shelf.clock.now += 61
    assert [shelf.put(block) for block in BLOCKS].count(PutResult.DROPPED) == 0
    assert use(shelf) == [True] * 4


def test_a_directory_that_vanishes_and_returns_empty() -> None:
    shelf, _, memory = shelf_and_fs()
    for block in BLOCKS:
        shelf.put(block)
    for path in memory.files():
        memory.unlink(path)
    for depth in (4, 3, 2, 1):
        for path in [p for p in map(Path, list(memory._nodes)) if len(p.parts) == depth + 1]:
            memory.rmdir(path)
    assert use(shelf) == [False] * 4
    assert shelf.put(LATER) is PutResult.DROPPED and memory.files() == []
    assert shelf.store.counters().dropped == {DropReason.FAILED: 1}
    memory.mkdir(DIRECTORY, 0o700)
    shelf.clock.now += 61
    assert [shelf.put(block) for block in BLOCKS] == [PutResult.STORED] * 4
    assert use(shelf) == [True] * 4
    assert shelf.budget.used_bytes == memory.used_bytes()


def test_a_rename_that_the_file_system_can_not_do() -> None:
    shelf, fs, memory = shelf_and_fs()
    fs.fail_next("rename", "forever", errno.EXDEV)
    assert [shelf.put(block) for block in BLOCKS] == [PutResult.DROPPED] * 4
    assert memory.files() == [] and shelf.budget.used_bytes == 0
    assert shelf.store.counters().dropped == {DropReason.FAILED: 1, DropReason.PAUSED: 3}


def test_the_floor_is_that_of_the_volume_that_holds_the_directory() -> None:
    class Volumes(MemoryFileSystem):
        def free_bytes(self, path: Path) -> int:
            return 5000 if path == DIRECTORY else 1 << 40

    clock = Clock()
    shelf = Shelf(Volumes(clock), clock, min_free_bytes=1000)
    assert shelf.put(make_block(ROOT, 1, width=200)) is PutResult.DROPPED
    assert shelf.store.counters().dropped == {DropReason.NO_ROOM: 1}


def test_a_link_in_the_place_of_the_blocks_is_refused(tmp_path: Path) -> None:
    """It would lead to where nothing is counted; a link to the whole directory is fine."""
    (tmp_path / "volume").mkdir()
    (tmp_path / "cache").mkdir(0o700)
    (tmp_path / "cache" / "blocks").symlink_to(tmp_path / "volume")
    with pytest.raises(StoreError) as caught:
        Shelf(RealFileSystem(), directory=tmp_path / "cache")
    assert "cache.dir" in caught.value.hint


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o702])
def test_a_directory_that_anyone_can_write_to_is_refused(tmp_path: Path, mode: int) -> None:
    directory = tmp_path / "cache"
    Shelf(RealFileSystem(), directory=directory).put(CHAIN[0])
    directory.chmod(mode)
    with pytest.raises(StoreError, match="anyone can write"):
        Shelf(RealFileSystem(), directory=directory)


JUMPS = [-86_400.0, 86_400.0 * 400, -86_400.0 * 400, 1e9, -2e9]


@pytest.mark.parametrize("jump", JUMPS)
def test_a_clock_that_jumps_changes_no_answer(jump: float) -> None:
    shelf, _, memory = shelf_and_fs(max_bytes=22_000)
    for block in BLOCKS:
        assert shelf.put(block) is PutResult.STORED
    shelf.clock.now += jump
    assert use(shelf) == [True] * 4
    for block in OTHERS:
        shelf.clock.now += 1
        assert shelf.put(block) is PutResult.STORED
        assert shelf.get(block) == block.data
        assert shelf.budget.used_bytes == memory.used_bytes() <= 22_000
    shelf.clock.now -= jump
    for block in BLOCKS:
        assert shelf.put(block) in (PutResult.STORED, PutResult.EXISTS)
    assert memory.used_bytes() <= 22_000 and shelf.store.counters().bad == {}
    again = Shelf(memory, shelf.clock, max_bytes=22_000)
    again.store.index()
    assert any(use(again)) and again.put(LATER) is PutResult.STORED


def swap(memory: MemoryFileSystem, one: Block, other: Block) -> None:
    """Exchange the names of two files."""
    first, second = (bytes(memory.content(block.path())) for block in (one, other))
    memory.content(one.path())[:] = second
    memory.content(other.path())[:] = first


@pytest.mark.parametrize(
    ("one", "other"), [(CHAIN[0], CHAIN[1]), (CHAIN[2], STATE), (CHAIN[0], LATER)]
)
def test_files_that_were_renamed_are_misses_and_written_anew(one: Block, other: Block) -> None:
    shelf, _, memory = shelf_and_fs()
    for block in (*BLOCKS, LATER):
        shelf.put(block)
    swap(memory, one, other)
    found = [shelf.get(block) for block in (one, other)]
    assert found == [None, None]
    assert shelf.store.counters().bad == {BadReason.FOREIGN: 2}
    for block in (one, other):
        assert shelf.put(block) is PutResult.STORED and shelf.get(block) == block.data
    swap(memory, one, other)
    for parent in {one.key.parent, other.key.parent}:
        children = [*shelf.store.children(parent), *shelf.store.states([parent])]
        assert not {one.key, other.key} & {child.key for child in children}


def old_version(memory: MemoryFileSystem) -> Sequence[Path]:
    """A root of an older format: as its names and as its headers say."""
    shelf = Shelf(memory, Clock(), root=OTHER_ROOT)
    chain = make_chain(2, root=OTHER_ROOT)
    for block in chain:
        shelf.put(block)
        content = memory.content(block.path(OTHER_ROOT))
        content[:] = content.replace(b'"format":"1"', b'"format":"0"')
    folder = root_dir(DIRECTORY, OTHER_ROOT) / "00"
    memory.write(folder / "a.kv.safetensors", bytes(4000))
    return [*(block.path(OTHER_ROOT) for block in chain), folder / "a.kv.safetensors"]


def test_older_versions_are_kept_counted_evictable_and_never_read() -> None:
    class Watched(MemoryFileSystem):
        def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
            assert path not in old, "an old file is opened"
            return super().open(path, flags, mode)

    old: Sequence[Path] = ()
    clock = Clock()
    memory = Watched(clock)
    old = old_version(memory)
    clock.now += 10
    shelf = Shelf(memory, clock, max_bytes=memory.used_bytes() + 13_500)
    assert shelf.store.index().num_blocks == 3
    for block in CHAIN:
        shelf.put(block)
        clock.now += 1
    assert use(shelf)[:3] == [True] * 3 and all(path in memory.files() for path in old)
    assert shelf.put(STATE) is PutResult.STORED
    assert (
        shelf.get(STATE) == STATE.data and [path in memory.files() for path in old].count(True) == 2
    )
    assert shelf.store.counters().bad == {}


def test_older_versions_are_no_bad_files_for_the_commands() -> None:
    clock = Clock()
    memory = MemoryFileSystem(clock)
    old = old_version(memory)
    root = survey(DIRECTORY, memory)[0]
    assert (root.num_other, root.bad, root.num_blocks) == (3, {}, 0)
    found = Checker(DIRECTORY, memory, repair=True).run(now=clock(), progress=lambda step: None)
    assert (found.num_other, found.bad) == (3, ()) and all(path in memory.files() for path in old)
    execute(plan_prune(DIRECTORY, memory, now=clock(), everything=True), DIRECTORY, memory)
    assert memory.files() == []
