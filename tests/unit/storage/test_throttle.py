"""A disk that is made slow keeps its rate, whoever reads and writes."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.storage.fs import WRITE_FLAGS, read_into, write_all
from omlx.storage.pace import Pace, PacedFileSystem
from omlx.storage.throttle import Throttle


class Clock:
    """A clock that goes on while somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0
        self.now += seconds


def _throttle(rate: int, clock: Clock) -> Throttle:
    return Throttle(rate, clock=lambda: clock.now, sleep=clock.sleep)


@given(
    rate=st.integers(1000, 10**9),
    moves=st.lists(st.tuples(st.integers(0, 10**6), st.floats(0, 0.1)), min_size=1, max_size=30),
)
def test_never_faster_than_its_rate(rate: int, moves: list[tuple[int, float]]) -> None:
    clock = Clock()
    throttle, total = _throttle(rate, clock), 0
    for num_bytes, work_s in moves:
        clock.now += work_s
        throttle.moved(num_bytes)
        total += num_bytes
    assert clock.now - 100.0 >= total / rate * (1 - 1e-9) - 1e-6


def test_exactly_its_rate_when_the_disk_is_no_hindrance() -> None:
    clock = Clock()
    throttle = _throttle(100_000, clock)
    for _ in range(50):
        throttle.moved(10_000)
    assert clock.now == pytest.approx(105.0)


def test_idle_time_is_not_saved_up() -> None:
    clock = Clock()
    throttle = _throttle(1000, clock)
    throttle.moved(1000)
    clock.now += 60
    throttle.moved(1000)
    assert clock.now == pytest.approx(162.0)


def test_threads_share_the_rate() -> None:
    slept: list[float] = []
    throttle = Throttle(1000, clock=lambda: 5.0, sleep=slept.append)
    for _ in range(4):  # four threads at the same moment
        throttle.moved(500)
    assert slept == pytest.approx([0.5, 1.0, 1.5, 2.0])


def test_pieces_are_short_but_not_tiny() -> None:
    assert Throttle(100_000_000).piece_bytes == 2_000_000
    assert Throttle(1).piece_bytes == 4096


def test_reads_and_writes_go_through_it(tmp_path: Path) -> None:
    clock = Clock()
    fs = PacedFileSystem(Pace(), _throttle(1_000_000, clock))
    data = os.urandom(1_000_000)
    fd = fs.open(tmp_path / "file", WRITE_FLAGS)
    write_all(fs, fd, [memoryview(data)])
    fs.close(fd)
    assert clock.now == pytest.approx(101.0)
    got = bytearray(len(data))
    fd = fs.open(tmp_path / "file", os.O_RDONLY)
    assert read_into(fs, fd, [memoryview(got)], offset=0) == len(data)
    fs.close(fd)
    assert bytes(got) == data
    assert clock.now == pytest.approx(102.0)
