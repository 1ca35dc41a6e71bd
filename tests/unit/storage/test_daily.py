"""Bytes written today: counted for all processes, never an error."""

import errno
import json
import logging
from pathlib import Path

import pytest

from omlx.storage.daily import MAX_FILE_BYTES, DailyWrites
from omlx.storage.fs import FileSystem
from omlx.storage.store import PutResult
from omlx.storage.writer import DropReason
from tests.fakes.blocks import DIRECTORY, MANY, Clock, Shelf, make_chain, make_state
from tests.fakes.fs import FaultFileSystem, FaultMode, MemoryFileSystem

DAY = 86_400.0
PATH = DIRECTORY / "written-today.json"
CHAIN = make_chain(8)


def make(fs: FileSystem, clock: Clock, max_bytes: int | None = 1000, pid: int = 7) -> DailyWrites:
    return DailyWrites(
        fs, DIRECTORY, Shelf(fs, clock, pid=pid).budget, max_bytes=max_bytes, clock=clock
    )


def setup() -> tuple[MemoryFileSystem, Clock]:
    clock = Clock(10 * DAY + 5)
    return MemoryFileSystem(clock), clock


def test_what_was_written_counts_until_midnight() -> None:
    fs, clock = setup()
    daily = make(fs, clock)
    assert daily.is_allowed(1000) and not daily.is_allowed(1001)
    daily.add(700)
    assert daily.is_allowed(300) and not daily.is_allowed(301)
    clock.now += DAY - 6
    assert daily.today_bytes == 700 and not daily.is_allowed(301)
    clock.now += 1
    assert daily.today_bytes == 0 and daily.is_allowed(1000)
    daily.add(1)
    assert json.loads(fs.content(PATH)) == {"day": "1970-01-12", "bytes": 1}
    assert fs.stat(PATH).mode == 0o600 and fs.stat(PATH).size <= MAX_FILE_BYTES


def test_all_processes_and_the_next_one_count_together() -> None:
    fs, clock = setup()
    one, other = make(fs, clock), make(fs, clock, pid=8)
    one.add(300)
    other.add(300)
    assert not one.is_allowed(401) and one.today_bytes == 600
    assert make(fs, clock).is_allowed(400)
    assert not make(fs, clock).is_allowed(401)


def test_a_process_that_starts_knows_what_was_written_today() -> None:
    fs, clock = setup()
    make(fs, clock).add(300)
    shelf = Shelf(fs, clock, max_daily_bytes=1000)
    assert shelf.store.counters().bytes_written_today == 0
    shelf.store.index()
    assert shelf.store.counters().bytes_written_today == 300


def test_without_a_limit_there_is_no_file() -> None:
    fs, clock = setup()
    daily = make(fs, clock, None)
    daily.add(10**15)
    assert daily.is_allowed(10**15) and daily.today_bytes == 10**15
    assert fs.files() == [] and daily.extra_bytes == 0


def test_a_limit_of_nothing_lets_nothing_be_written() -> None:
    daily = make(*setup(), 0)
    assert daily.is_allowed(0) and not daily.is_allowed(1)


@pytest.mark.parametrize("jump", [-DAY, DAY, -9.9 * DAY, 1e18, -1e18])
def test_a_clock_that_jumps_begins_another_day(jump: float) -> None:
    fs, clock = setup()
    daily = make(fs, clock)
    daily.add(1000)
    clock.now += jump
    assert daily.is_allowed(1000)
    daily.add(5)
    assert daily.today_bytes == 5


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[1]",
        b"\xff",
        b"7",
        b"{}",
        b'{"day": 3, "bytes": 5}',
        b'{"day": "1970-01-11", "bytes": "5"}',
        b'{"day": "1970-01-11", "bytes": -5}',
        b'{"day": "1970-01-11", "bytes": 1e9}',
        b'{"day": "1970-01-11", "bytes": ' + b"9" * 5000,
        b"[" * 100_000,
    ],
)
def test_a_file_that_means_nothing_is_replaced(content: bytes) -> None:
    fs, clock = setup()
    daily = make(fs, clock)
    fs.write(PATH, content)
    assert daily.is_allowed(1000)
    daily.add(5)
    assert json.loads(fs.content(PATH))["bytes"] == 5


@pytest.mark.parametrize("mode", ["once", "forever", "torn"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC, errno.EACCES, errno.EROFS])
def test_whichever_call_fails_nothing_raises_and_this_process_still_counts(
    mode: FaultMode, error: int
) -> None:
    def run(fs: FileSystem, clock: Clock) -> DailyWrites:
        daily = make(fs, clock)
        daily.add(600)
        daily.is_allowed(1)
        daily.add(600)
        return daily

    memory, clock = setup()
    healthy = FaultFileSystem(memory)
    run(healthy, clock)
    opened = healthy.calls.index("open")
    for n in range(opened + 1, len(healthy.calls) + 1):
        memory, clock = setup()
        daily = run(FaultFileSystem(memory, n, mode, error), clock)
        assert daily.today_bytes == 1200 or mode == "torn"
        assert daily.today_bytes >= 600


def test_what_could_not_be_noted_is_noted_later() -> None:
    memory, clock = setup()
    fs = FaultFileSystem(memory)
    daily = make(fs, clock)
    other = make(memory, clock, pid=8)
    fs.fail_next("rename", "once", errno.EACCES)
    daily.add(100)
    other.add(10)
    daily.add(1)
    assert json.loads(memory.content(PATH))["bytes"] == 111
    assert not [path for path in memory.files() if path.name.startswith(".tmp")]


def test_a_folder_of_that_name_is_no_error(tmp_path: Path) -> None:
    fs, clock = setup()
    daily = make(fs, clock)
    fs.mkdir(PATH, 0o700)
    daily.add(900)
    assert not daily.is_allowed(101)


def test_a_store_drops_what_is_beyond_the_limit_and_says_so_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock(10 * DAY)
    memory = MemoryFileSystem(clock)
    shelf = Shelf(memory, clock, max_daily_bytes=14_000)
    with caplog.at_level(logging.WARNING, logger="omlx.storage"):
        results = [shelf.put(each) for each in (*CHAIN[:2], make_state(CHAIN[1]), *CHAIN[2:])]
    assert results == [PutResult.STORED] * 3 + [PutResult.DROPPED] * 6
    assert len(caplog.records) == 1 and "14000 bytes of today" in caplog.text
    counters = shelf.store.counters()
    assert counters.dropped == {DropReason.WRITE_BUDGET: 6} and counters.dropped_writes == 6
    assert counters.bytes_written_today == counters.bytes_written > 12_000
    assert shelf.put(CHAIN[0]) is PutResult.EXISTS, "what is there needs no write"
    again = Shelf(memory, clock, max_daily_bytes=14_000)
    assert again.put(CHAIN[5]) is PutResult.DROPPED
    assert again.store.counters().bytes_written_today == counters.bytes_written
    clock.now += DAY
    assert shelf.put(CHAIN[5]) is PutResult.STORED
    assert shelf.store.counters().bytes_written_today == memory.stat(CHAIN[5].path()).size
    shelf.store.index()
    assert shelf.budget.used_bytes == memory.used_bytes()


def test_the_count_itself_keeps_the_ceiling() -> None:
    clock = Clock(10 * DAY)
    memory = MemoryFileSystem(clock)
    shelf = Shelf(memory, clock, max_bytes=14_000, max_daily_bytes=MANY)
    for block in CHAIN:
        assert shelf.put(block) is PutResult.STORED
        assert shelf.budget.used_bytes == memory.used_bytes()
    assert 12_000 < memory.peak_bytes <= 14_000
