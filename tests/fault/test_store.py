"""For every n, storage call n fails: what is read is right or a miss, and nothing raises."""

import errno
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import pytest

from omlx.errors import StoreError
from omlx.storage.layout import BlockHash, parse_block_name
from omlx.storage.record import BadReason
from omlx.storage.store import PutResult
from omlx.storage.survey import execute, plan_prune, survey
from tests.fakes.blocks import (
    DIRECTORY,
    ROOT,
    Block,
    Clock,
    Shelf,
    make_block,
    make_chain,
    make_state,
)
from tests.fakes.fs import FaultFileSystem, FaultMode, MemoryFileSystem

CHAIN = make_chain(3)
TAIL = make_block(CHAIN[2].key.name, 50, count=2)
LATER = make_block(ROOT, 60)
STATES = [make_state(CHAIN[1]), make_state(TAIL), make_state(LATER)]
BLOCKS = [*CHAIN, TAIL, LATER, *STATES]
MAX_BYTES = 27_000  # too few for all of them
MAX_STATE_BYTES = 9500  # too few for three
MAX_DAILY_BYTES = 200_000
FD_CALLS = ("open", "close")


def check(shelf: Shelf, block: Block) -> bool:
    """Read a block: exact content or a miss."""
    found = shelf.get(block)
    assert found in (None, block.data)
    return found is not None


def session(fs: FaultFileSystem, clock: Clock) -> Shelf | None:
    """Everything a server does with a store; None where the store can't even be opened."""
    try:
        shelf = Shelf(
            fs,
            clock,
            max_bytes=MAX_BYTES,
            max_state_bytes=MAX_STATE_BYTES,
            min_free_bytes=1,
            max_daily_bytes=MAX_DAILY_BYTES,
        )
    except StoreError:
        return None
    shelf.store.index()
    for block in (*CHAIN, TAIL, *STATES[:2]):
        shelf.put(block)
        clock.now += 1
    for block in BLOCKS:
        if check(shelf, block):
            shelf.store.touch([block.key])
    for child in shelf.store.children(CHAIN[2].key.name):
        assert child.key in (TAIL.key, STATES[1].key) and child.tokens == TAIL.tokens
    assert shelf.get_some(STATES[0], 1) in (None, STATES[0].data[1])
    for child in shelf.store.states([BlockHash(ROOT), *(block.key.name for block in CHAIN)]):
        assert child.key in (STATES[0].key, STATES[1].key)
    for block in (TAIL, STATES[1]):
        shelf.store.remove(block.key)
    clock.now += 100  # a pause is over, and the directory is looked at again
    for block in (LATER, TAIL, STATES[2], STATES[1]):
        shelf.put(block)
        clock.now += 1
    shelf.store.evict(1)
    for block in BLOCKS:
        check(shelf, block)
    return shelf


def calls_of_a_session() -> list[str]:
    clock = Clock()
    fs = FaultFileSystem(MemoryFileSystem(clock))
    shelf = session(fs, clock)
    assert shelf is not None
    counters = shelf.store.counters()
    assert (counters.blocks_written, counters.evicted, counters.bad) == (10, 3, {})
    assert shelf.budget.num_states == 2 and counters.bytes_written_today > 40_000
    return fs.calls


CALLS = calls_of_a_session()


def check_leftovers(memory: MemoryFileSystem, clock: Clock) -> None:
    """After a restart on a sound disk: nothing half made counts, and all can be stored again."""
    clock.now += 4000
    fresh = Shelf(memory, clock, is_alive=lambda pid: pid == os.getpid())
    indexed = fresh.store.index()
    named = [path for path in memory.files() if parse_block_name(path.name)]
    assert indexed.num_blocks + indexed.num_states == len(named)
    assert indexed.num_bytes == memory.used_bytes()
    assert not [path for path in memory.files() if path.name.startswith(".tmp")]
    for parent in {block.key.parent for block in BLOCKS}:
        for child in fresh.store.children(parent):
            assert (child.key, child.tokens) in [(each.key, each.tokens) for each in BLOCKS]
    results = [fresh.put(block) for block in BLOCKS]
    assert PutResult.DROPPED not in results
    assert all(check(fresh, block) for block in BLOCKS)


@pytest.mark.parametrize(
    ("mode", "error"),
    [
        ("once", errno.EIO),
        ("once", errno.ENOENT),
        ("forever", errno.ENOSPC),
        ("torn", errno.EIO),
    ],
)
def test_whichever_call_fails_answers_are_right_or_misses(
    mode: FaultMode, error: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, logger="omlx.storage")
    for n in range(1, len(CALLS) + 1):
        clock = Clock()
        memory = MemoryFileSystem(clock)
        fs = FaultFileSystem(memory, n, mode, error)
        shelf = session(fs, clock)
        if shelf is not None:
            assert mode == "torn" or set(shelf.store.counters().bad) <= {BadReason.UNREADABLE}
        if CALLS[n - 1] not in FD_CALLS and mode == "once":
            assert not memory.open_files, f"call {n} leaves a file open"
        if memory.names(Path("/")):
            check_leftovers(memory, clock)


def test_a_session_makes_every_kind_of_call() -> None:
    """Else the test above would not see what it is meant to see."""
    assert set(CALLS) == {
        "open", "close", "preadv", "writev", "rename", "unlink", "stat", "fstat",
        "names", "scandir", "utime", "mkdir", "free_bytes",
    }  # fmt: skip


@pytest.mark.parametrize("mode", get_args(FaultMode))
def test_a_survey_and_a_prune_end_whichever_call_fails(mode: FaultMode) -> None:
    def run(fs: FaultFileSystem, clock: Clock) -> None:
        try:
            survey(DIRECTORY, fs)
            plan = plan_prune(DIRECTORY, fs, now=clock(), max_bytes=9000)
        except OSError:
            return  # the command says so
        execute(plan, DIRECTORY, fs)

    def stocked(clock: Clock) -> MemoryFileSystem:
        memory = MemoryFileSystem(clock)
        shelf = Shelf(memory, clock)
        for block in BLOCKS:
            shelf.put(block)
        return memory

    clock = Clock()
    healthy = FaultFileSystem(stocked(clock))
    run(healthy, clock)
    for n in range(1, len(healthy.calls) + 1):
        memory = stocked(clock)
        run(FaultFileSystem(memory, n, mode), clock)
        shelf = Shelf(memory, clock)
        left = [check(shelf, block) for block in BLOCKS]
        assert shelf.store.counters().bad == {} and sum(left) >= 1


@pytest.mark.parametrize("lost", [0.0, 0.3, 0.7, 1.0])
def test_a_power_cut_that_loses_the_last_writes(lost: float) -> None:
    """S1: names are there, and content only in part, since nothing is synced."""

    def cut(files: Sequence[Path], memory: MemoryFileSystem) -> None:
        for path in files:
            content = memory.content(path)
            kept = int(len(content) * (1 - lost))
            content[kept:] = bytes(len(content) - kept)

    clock = Clock()
    memory = MemoryFileSystem(clock)
    shelf = Shelf(memory, clock)
    for block in BLOCKS:
        shelf.put(block)
    cut([block.path() for block in BLOCKS[2:]], memory)
    again = Shelf(memory, clock)
    assert [check(again, block) for block in BLOCKS] == [True, True, *[lost == 0.0] * 6]
    assert len(again.store.children(BlockHash(ROOT))) >= 1
