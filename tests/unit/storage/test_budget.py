"""The budget: a hard ceiling, a floor, and nothing evicted in vain."""

import errno
import os
import threading
from pathlib import Path

import pytest

from omlx.storage.budget import Budget, Evicted, auto_max_bytes
from omlx.storage.fs import RealFileSystem
from omlx.storage.layout import BlockKind, root_name
from omlx.storage.scan import FileKind, FoundFile
from tests.fakes.blocks import DIRECTORY, OTHER_ROOT, ROOT, Block, Clock, make_chain, make_state
from tests.fakes.fs import FaultFileSystem, MemoryFileSystem

CHAIN = make_chain(3)
SHARD = CHAIN[0].path().parent


def directory_with(*blocks: Block, size: int = 100) -> tuple[MemoryFileSystem, Clock]:
    clock = Clock()
    fs = MemoryFileSystem(clock)
    fs.write(DIRECTORY / "blocks" / "keep", b"")
    for block in blocks:
        fs.write(block.path(), bytes(size))
        clock.now += 1
    return fs, clock


def make(fs: MemoryFileSystem | FaultFileSystem, clock: Clock, most: int, free: int = 0) -> Budget:
    return Budget(most, free, fs, DIRECTORY, clock=clock, is_alive=lambda pid: pid != 666)


def test_what_is_reserved_counts_until_it_is_given_up() -> None:
    budget = make(*directory_with(), 100)
    first = budget.reserve(60)
    assert first is not None and budget.used_bytes == 60
    assert budget.reserve(60) is None
    first.abort()
    first.abort()
    assert budget.used_bytes == 0
    second = budget.reserve(60)
    assert second is not None
    second.commit(FoundFile("new.safetensors", 50, 0.0, FileKind.OTHER_BLOCK))
    assert budget.used_bytes == 50 and budget.num_blocks == 1


def test_every_file_counts_and_blocks_go_for_a_new_one_leaf_first() -> None:
    fs, clock = directory_with(*CHAIN)
    fs.write(DIRECTORY / "notes.txt", bytes(50))
    fs.write(SHARD / ".tmp-12-1", bytes(25))
    budget = make(fs, clock, 400)
    assert budget.reserve(25) is not None and budget.used_bytes == 400
    assert budget.reserve(1) is not None
    assert [block.path() in fs.files() for block in CHAIN] == [True, True, False]
    assert budget.evicted == Evicted(1, 100) and budget.used_bytes == 301


def test_blocks_of_other_roots_go_too() -> None:
    others = make_chain(1, root=OTHER_ROOT)
    fs, clock = directory_with()
    fs.write(others[0].path(OTHER_ROOT), bytes(100))
    assert make(fs, clock, 100).reserve(80) is not None
    assert others[0].path(OTHER_ROOT) not in fs.files()


def test_nothing_is_evicted_for_what_can_not_fit() -> None:
    fs, clock = directory_with(*CHAIN)
    fs.write(DIRECTORY / "notes.txt", bytes(50))
    budget = make(fs, clock, 400)
    assert budget.reserve(351) is None
    assert budget.evicted == Evicted(0, 0) and budget.used_bytes == 350
    assert budget.reserve(350) is not None
    assert budget.evicted == Evicted(3, 300)


def test_the_floor_of_free_space_is_kept() -> None:
    fs, clock = directory_with(*CHAIN)
    fs.capacity = 1000
    budget = make(fs, clock, 10_000, free=650)
    assert budget.reserve(50) is not None
    assert budget.reserve(50) is not None  # what is reserved is not free any more
    assert budget.evicted == Evicted(1, 100)
    fs.write(DIRECTORY.parent / "of-another", bytes(600))
    assert budget.reserve(50) is None, "the floor can't be reached, so nothing goes"
    assert budget.evicted == Evicted(1, 100)


def test_a_touched_block_goes_later() -> None:
    blocks = [make_chain(1, seed=seed)[0] for seed in range(3)]
    fs, clock = directory_with(*blocks)
    budget = make(fs, clock, 300)
    budget.rescan()
    fs.utime(blocks[0].path(), clock.now + 5)
    assert budget.evict(100) == Evicted(1, 100)
    assert [block.path() in fs.files() for block in blocks] == [True, False, True]


def test_other_processes_are_seen_as_soon_as_it_matters() -> None:
    fs, clock = directory_with(CHAIN[0])
    budget = make(fs, clock, 1000)
    budget.rescan()
    for block in CHAIN[1:]:
        clock.now += 0.001
        fs.write(block.path(), bytes(400))
    clock.now += 0.001
    assert budget.reserve(500) is not None
    assert CHAIN[2].path() not in fs.files() and budget.used_bytes == 1000


def test_nothing_is_read_while_there_is_more_room_than_others_can_fill() -> None:
    fs, clock = directory_with(CHAIN[0])
    faulty = FaultFileSystem(fs)
    budget = make(faulty, clock, 10**12)
    budget.rescan()
    calls = len(faulty.calls)
    fs.write(CHAIN[1].path(), bytes(100))
    clock.now += 59
    assert budget.reserve(1) is not None and budget.used_bytes == 101
    assert len(faulty.calls) == calls
    clock.now += 1
    assert budget.reserve(1) is not None and budget.used_bytes == 202
    fs.unlink(CHAIN[1].path())
    clock.now -= 5000
    assert budget.reserve(1) is not None and budget.used_bytes == 103


def test_what_another_process_removed_counts_as_freed() -> None:
    fs, clock = directory_with(*CHAIN)
    budget = make(fs, clock, 300)
    budget.rescan()
    fs.unlink(CHAIN[2].path())
    assert budget.reserve(100) is not None
    assert len(fs.files()) == 3 and budget.used_bytes == 300


def states_of(*blocks: Block) -> tuple[MemoryFileSystem, Clock, list[Path]]:
    """A directory with blocks and their states, each 100 bytes, the first oldest."""
    fs, clock = directory_with(*blocks)
    paths = [make_state(block).path() for block in blocks]
    for path in paths:
        fs.write(path, bytes(100))
        clock.now += 1
    return fs, clock, paths


def test_states_have_a_ceiling_of_their_own() -> None:
    fs, clock, paths = states_of(*CHAIN)
    budget = make(fs, clock, 1200)
    assert budget.max_state_bytes == 300
    budget.rescan()
    assert (budget.num_states, budget.state_bytes, budget.num_blocks) == (3, 300, 3)
    fs.utime(paths[0], clock.now)
    reservation = budget.reserve(150, BlockKind.STATE)
    assert reservation is not None and budget.state_bytes == 250
    assert [path in fs.files() for path in paths] == [True, False, False]
    assert [block.path() in fs.files() for block in CHAIN] == [True] * 3
    reservation.abort()
    assert (budget.state_bytes, budget.num_states) == (100, 1)
    assert budget.reserve(301, BlockKind.STATE) is None and budget.num_states == 1
    assert budget.reserve(301) is not None, "blocks may have the rest"


def test_states_of_others_beyond_the_ceiling_go_before_any_block() -> None:
    fs, clock, paths = states_of(*(make_chain(1, seed=seed)[0] for seed in range(4)))
    budget = make(fs, clock, 900)
    assert budget.reserve(150) is not None
    assert [path in fs.files() for path in paths] == [False, False, True, True]
    assert budget.num_blocks == 4 and budget.used_bytes == 750


def test_a_state_that_can_not_go_keeps_others_out() -> None:
    fs, clock, _ = states_of(*CHAIN)
    faulty = FaultFileSystem(fs)
    budget = make(faulty, clock, 1200)
    budget.rescan()
    faulty.fail_next("unlink", "forever", errno.EACCES)
    assert budget.reserve(10, BlockKind.STATE) is None
    assert budget.reserve(10) is not None


def test_no_states_are_kept_where_they_may_have_no_bytes() -> None:
    fs, clock, _ = states_of(*CHAIN)
    budget = Budget(900, 0, fs, DIRECTORY, max_state_bytes=0, clock=clock)
    assert budget.reserve(1) is not None and budget.num_states == 0


def test_stale_temporary_files_go_and_our_own_are_not_counted_twice() -> None:
    fs, clock = directory_with()
    old = {"dead": SHARD / ".tmp-666-1", "ours before": SHARD / f".tmp-{os.getpid()}-1"}
    for path in old.values():
        fs.write(path, bytes(10))
    clock.now += 1
    budget = make(fs, clock, 1000)
    fs.write(SHARD / ".tmp-12-1", bytes(100))
    fs.write(SHARD / f".tmp-{os.getpid()}-2", bytes(1))
    assert budget.rescan() == 2
    assert budget.used_bytes == 100
    assert not set(old.values()) & set(fs.files())
    clock.now += 3601
    assert budget.rescan() == 2 and budget.used_bytes == 0


def test_files_that_can_not_be_removed_end_an_eviction() -> None:
    fs, clock = directory_with(*(make_chain(1, seed=seed)[0] for seed in range(20)))
    faulty = FaultFileSystem(fs)
    budget = make(faulty, clock, 2000)
    budget.rescan()
    faulty.fail_next("unlink", "forever", errno.EACCES)
    assert budget.evict(100) == Evicted(0, 0)
    assert faulty.calls.count("unlink") == 8
    assert budget.reserve(1) is None and budget.used_bytes == 2000
    faulty.heal()
    assert budget.reserve(1) is not None
    assert budget.evicted == Evicted(1, 100)


def test_one_file_that_can_not_be_removed_does_not_shield_the_others() -> None:
    fs, clock = directory_with(*CHAIN)
    faulty = FaultFileSystem(fs)
    budget = make(faulty, clock, 300)
    budget.rescan()
    faulty.fail_next("unlink", "once", errno.EACCES)
    assert budget.reserve(100) is not None
    assert [block.path() in fs.files() for block in CHAIN] == [True, False, True]


def test_a_ceiling_of_nothing_stores_nothing() -> None:
    assert make(*directory_with(), 0).reserve(1) is None


def test_many_threads_never_pass_the_ceiling(tmp_path: Path) -> None:
    budget = Budget(1000, 0, RealFileSystem(), tmp_path)
    seen: list[int] = []

    def work() -> None:
        for _ in range(200):
            reservation = budget.reserve(300)
            if reservation is not None:
                seen.append(budget.used_bytes)
                reservation.abort()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen and max(seen) <= 1000 and budget.used_bytes == 0


def test_auto_is_a_tenth_of_free_and_held_bytes_and_at_most_64_gb() -> None:
    fs, _ = directory_with(*CHAIN)
    fs.capacity = 10_300
    assert auto_max_bytes(fs, DIRECTORY) == 1030
    assert auto_max_bytes(fs, DIRECTORY / "not" / "there") == 1000
    fs.capacity = 10**13
    assert auto_max_bytes(fs, DIRECTORY) == 64 * 10**9


def test_a_directory_that_can_not_be_read_is_an_error_for_the_caller() -> None:
    fs, clock = directory_with(*CHAIN)
    with pytest.raises(OSError):
        make(FaultFileSystem(fs, 1), clock, 1000).reserve(1)
    assert root_name(ROOT) in str(CHAIN[0].path())
