"""The store as its callers see it: exact content or a miss, and no exception."""

import errno
import os
import pickle
import stat
import threading
from pathlib import Path

import pytest

from omlx.errors import StoreError
from omlx.storage.fs import RealFileSystem
from omlx.storage.record import BadReason
from omlx.storage.store import PutResult
from tests.fakes.blocks import OTHER_ROOT, ROOT, Clock, Shelf, make_block, make_chain, shelf_and_fs
from tests.fakes.fs import FaultFileSystem, FaultMode, MemoryFileSystem

CHAIN = make_chain(3)


def test_what_is_put_is_found_and_read_also_by_another_store() -> None:
    shelf, _, memory = shelf_and_fs()
    assert [shelf.put(block) for block in CHAIN] == [PutResult.STORED] * 3
    again = Shelf(memory, shelf.clock)
    assert again.store.index().num_blocks == 3
    for block in CHAIN:
        assert again.has(block) and again.get(block) == block.data
    counters = again.store.counters()
    size = memory.stat(CHAIN[0].path()).size
    assert (counters.blocks_read, counters.bytes_read) == (3, 3 * size)
    written = shelf.store.counters()
    assert (written.blocks_written, written.bytes_written) == (3, 3 * size)


def test_content_of_the_same_name_is_written_once() -> None:
    shelf, fs, _ = shelf_and_fs()
    shelf.put(CHAIN[0])
    writes = fs.calls.count("writev")
    assert shelf.put(CHAIN[0]) is PutResult.EXISTS
    assert fs.calls.count("writev") == writes
    assert shelf.store.counters().blocks_written == 1


def test_what_is_missing_is_a_miss_and_no_bad_file() -> None:
    shelf, _, _ = shelf_and_fs()
    assert not shelf.has(CHAIN[0]) and shelf.get(CHAIN[0]) is None
    counters = shelf.store.counters()
    assert (counters.missing, counters.bad, counters.blocks_read) == (1, {}, 0)


@pytest.mark.parametrize("keep", [0, 7, 100, 4096, 4200])
def test_a_truncated_file_is_a_miss_dropped_and_written_anew(keep: int) -> None:
    shelf, _, memory = shelf_and_fs()
    shelf.put(CHAIN[0])
    del memory.content(CHAIN[0].path())[keep:]
    assert shelf.has(CHAIN[0]) == (keep >= 4096 + 4 * 4), "what is far too short is not there"
    assert shelf.get(CHAIN[0]) is None
    assert CHAIN[0].path() not in memory.files()
    reason = BadReason.TRUNCATED if keep else BadReason.EMPTY
    assert shelf.store.counters().bad == {reason: 1}
    assert shelf.put(CHAIN[0]) is PutResult.STORED
    assert shelf.get(CHAIN[0]) == CHAIN[0].data


def test_a_truncated_file_is_replaced_without_being_read() -> None:
    shelf, _, memory = shelf_and_fs()
    shelf.put(CHAIN[0])
    del memory.content(CHAIN[0].path())[4200:]
    assert shelf.put(CHAIN[0]) is PutResult.STORED
    assert shelf.get(CHAIN[0]) == CHAIN[0].data
    assert shelf.budget.used_bytes == memory.used_bytes()


def test_a_flipped_bit_and_a_foreign_file_are_misses() -> None:
    shelf, _, memory = shelf_and_fs()
    for block in CHAIN:
        shelf.put(block)
    memory.content(CHAIN[0].path())[-1] ^= 0x10
    memory.write(CHAIN[1].path(), bytes(memory.content(CHAIN[2].path())))
    assert [shelf.get(block) for block in CHAIN] == [None, None, CHAIN[2].data]
    assert shelf.store.counters().bad == {BadReason.CHECKSUM: 1, BadReason.FOREIGN: 1}
    assert shelf.store.counters().missing == 0


def test_a_file_that_can_not_be_read_is_dropped_but_not_for_want_of_descriptors() -> None:
    shelf, fs, memory = shelf_and_fs()
    shelf.put(CHAIN[0])
    fs.fail_next("open", "once", errno.EMFILE)
    assert shelf.get(CHAIN[0]) is None
    assert shelf.store.counters().busy == 1
    fs.fail_next("preadv", "once", errno.EIO)
    assert shelf.get(CHAIN[0]) is None
    assert shelf.store.counters().bad == {BadReason.UNREADABLE: 1}
    assert CHAIN[0].path() not in memory.files()
    assert not memory.open_files


def test_a_hole_in_a_chain_leaves_the_rest_valid() -> None:
    """S8: a block file is deleted in mid-session."""
    shelf, _, memory = shelf_and_fs()
    for block in CHAIN:
        shelf.put(block)
    memory.unlink(CHAIN[1].path())
    assert [shelf.has(block) for block in CHAIN] == [True, False, True]
    assert shelf.put(CHAIN[1]) is PutResult.STORED
    assert [shelf.get(block) for block in CHAIN] == [block.data for block in CHAIN]


def test_eviction_takes_the_ends_of_chains_and_what_was_not_touched() -> None:
    shelf, _, _ = shelf_and_fs()
    other = make_chain(2, seed=9)
    for block in (*CHAIN, *other):
        shelf.put(block)
        shelf.clock.now += 1
    shelf.store.touch([CHAIN[2].key, make_block(ROOT, 1234).key])
    assert shelf.store.evict(1).num_files == 1
    assert not shelf.has(other[1]) and shelf.has(other[0])
    assert shelf.store.evict(1).num_files == 1
    assert not shelf.has(other[0])
    shelf.store.evict(1)
    assert [shelf.has(block) for block in CHAIN] == [True, True, False]


def test_touch_order_survives_a_restart() -> None:
    shelf, _, memory = shelf_and_fs()
    old, new = make_block(ROOT, 1), make_block(ROOT, 2)
    for block in (old, new):
        shelf.put(block)
        shelf.clock.now += 1
    shelf.store.touch([old.key])
    again = Shelf(memory, shelf.clock)
    again.store.index()
    again.store.evict(1)
    assert again.has(old) and not again.has(new)


def test_a_removed_block_is_gone_and_not_counted() -> None:
    shelf, _, memory = shelf_and_fs()
    key = CHAIN[0].key
    shelf.put(CHAIN[0])
    for _ in range(2):
        shelf.store.remove(key)
    assert not shelf.has(CHAIN[0]) and shelf.budget.used_bytes == memory.used_bytes()
    assert shelf.store.counters().missing == 0


def test_two_models_share_a_directory() -> None:
    shelf, _, memory = shelf_and_fs()
    other = Shelf(memory, shelf.clock, root=OTHER_ROOT)
    theirs = make_chain(2, root=OTHER_ROOT)
    for block in theirs:
        other.put(block)
    for block in CHAIN:
        shelf.put(block)
    assert [other.get(block) for block in theirs] == [block.data for block in theirs]
    assert shelf.get(theirs[0]) is None
    assert Shelf(memory, shelf.clock).store.index().num_blocks == 5


def test_temporary_files_of_the_dead_are_removed_at_the_start() -> None:
    """S7: a writer was killed in a write."""
    shelf, _, memory = shelf_and_fs()
    shelf.put(CHAIN[0])
    shard = CHAIN[0].path().parent
    memory.write(shard / ".tmp-666-1", b"half a block")
    memory.write(shard / ".tmp-777-1", b"half a block of one that lives")
    again = Shelf(memory, shelf.clock, is_alive=lambda pid: pid != 666)
    indexed = again.store.index()
    assert (indexed.num_blocks, indexed.num_stale_temps) == (1, 1)
    assert indexed.num_bytes == memory.used_bytes()
    assert shard / ".tmp-666-1" not in memory.files()
    assert shard / ".tmp-777-1" in memory.files()


def test_index_survives_a_directory_that_can_not_be_read() -> None:
    shelf, fs, _ = shelf_and_fs()
    shelf.put(CHAIN[0])
    fs.fail_next("scandir", "forever", errno.EIO)
    shelf.store.index()
    shelf.clock.now += 100
    assert shelf.store.evict(1).num_files == 0
    assert shelf.get(CHAIN[0]) == CHAIN[0].data


def test_a_directory_that_anyone_can_write_to_is_refused(tmp_path: Path) -> None:
    """X10"""
    open_to_all = tmp_path / "cache"
    open_to_all.mkdir()
    open_to_all.chmod(0o777)
    with pytest.raises(StoreError) as caught:
        Shelf(RealFileSystem(), directory=open_to_all)
    assert caught.value.hint == f"chmod 700 {open_to_all}"
    open_to_all.chmod(0o755)
    Shelf(RealFileSystem(), directory=open_to_all)


def test_a_directory_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for directory in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError) as caught:
            Shelf(RealFileSystem(), directory=directory)
        assert caught.value.hint
    clock = Clock()
    with pytest.raises(StoreError, match="Permission denied"):
        Shelf(FaultFileSystem(MemoryFileSystem(clock), 1, "forever", errno.EACCES), clock)


def test_the_cache_directory_may_be_a_link_and_new_ones_are_private(tmp_path: Path) -> None:
    """X10"""
    (tmp_path / "volume").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "volume")
    directory = tmp_path / "link" / "a" / "b"
    shelf = Shelf(RealFileSystem(), directory=directory)
    linked = Shelf(RealFileSystem(), directory=tmp_path / "link")
    for each in (shelf, linked):
        assert each.put(CHAIN[0]) is PutResult.STORED
        assert each.get(CHAIN[0]) == CHAIN[0].data
    path = CHAIN[0].path(directory=directory)
    assert path.stat().st_mode & 0o777 == 0o600
    for folder in path.parents[:5]:
        assert folder.stat().st_mode & 0o777 == 0o700
    assert linked.store.index().num_blocks == 1


@pytest.mark.parametrize("mode", ["once", "forever"])
def test_touch_and_remove_never_raise(mode: FaultMode) -> None:
    shelf, fs, _ = shelf_and_fs()
    shelf.put(CHAIN[0])
    key = CHAIN[0].key
    fs.fail_next("utime", mode, errno.EROFS)
    shelf.store.touch([key])
    fs.fail_next("unlink", mode, errno.EROFS)
    shelf.store.remove(key)
    assert shelf.get(CHAIN[0]) == CHAIN[0].data


def test_threads_that_write_read_and_evict_together_get_whole_blocks(tmp_path: Path) -> None:
    """S7, within one process: two stores on one directory with too little room."""
    blocks = [make_block(ROOT, seed, width=64) for seed in range(12)]
    size = 4096 + 16 + 12 * 4 * 64 // 2 + 4096
    shelves = [
        Shelf(RealFileSystem(), directory=tmp_path / "c", max_bytes=6 * size) for _ in range(2)
    ]
    wrong: list[int] = []
    hits: list[int] = []

    def work(number: int) -> None:
        shelf = shelves[number % 2]
        for i in range(60):
            block = blocks[(i * (number + 1)) % len(blocks)]
            shelf.put(block)
            found = shelf.get(block)
            shelf.store.touch([block.key])
            if found is not None:
                (hits if found == block.data else wrong).append(i)
            if i % 10 == number:
                shelf.store.index()
            shelf.store.children(block.key.parent)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and len(hits) > 100
    assert all(shelf.store.counters().bad == {} for shelf in shelves)
    assert not list((tmp_path / "c").rglob(".tmp-*"))


def test_case_x10_only_the_user_can_read_what_is_stored(tmp_path: Path) -> None:
    """Whatever the umask: directories 0700, files 0600."""
    before = os.umask(0o022)
    try:
        shelf = Shelf(RealFileSystem(), Clock(), directory=tmp_path / "cache")
        for block in CHAIN:
            assert shelf.put(block) is PutResult.STORED
    finally:
        os.umask(before)
    found = [tmp_path / "cache", *(tmp_path / "cache").rglob("*")]
    modes = {path: stat.S_IMODE(path.stat().st_mode) for path in found}
    assert any(path.is_file() for path in found)
    assert all(mode == (0o700 if path.is_dir() else 0o600) for path, mode in modes.items()), modes


def test_case_x10_a_directory_that_anyone_can_write_to_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(StoreError, match="anyone can write"):
        Shelf(RealFileSystem(), Clock(), directory=folder)


class _Bomb:
    """Leaves a mark where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (str(self.mark),)


def test_case_x11_a_pickle_in_place_of_a_block_is_a_miss(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    shelf, _, memory = shelf_and_fs()
    shelf.put(CHAIN[0])
    memory.write(CHAIN[0].path(), pickle.dumps(_Bomb(mark)) * 200)
    assert shelf.get(CHAIN[0]) is None
    assert not mark.exists()
