"""Work in pieces with rests between them."""

import os
import threading
from pathlib import Path

import pytest

from omlx.storage.fs import WRITE_FLAGS, read_into, write_all
from omlx.storage.pace import Pace, PacedFileSystem

MB = 1 << 20


class Hands:
    """A thread whose clocks are set by hand; it notes how long it slept."""

    def __init__(self) -> None:
        self.cpu_s = self.now_s = 0.0
        self.slept: list[float] = []

    def work(self, seconds: float) -> None:
        self.cpu_s += seconds
        self.now_s += seconds

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_s += seconds

    def pace(self, share: float = 0.25) -> Pace:
        return Pace(
            share=share,
            clock=lambda: self.now_s,
            cpu_clock=lambda: self.cpu_s,
            sleep=self.sleep,
        )


def test_a_rest_keeps_the_share_of_what_was_worked() -> None:
    hands = Hands()
    pace = hands.pace()
    pace.is_busy = True
    for _ in range(3):
        hands.work(0.002)
        pace.rest()
    assert hands.slept == pytest.approx([0.006] * 3)
    assert hands.cpu_s / hands.now_s == pytest.approx(0.25)


def test_no_rest_while_nobody_needs_the_cores() -> None:
    hands = Hands()
    pace = hands.pace()
    hands.work(5.0)
    pace.rest()
    assert hands.slept == []
    pace.is_busy = True
    hands.work(0.001)
    pace.rest()  # what was worked before is not made up for
    assert hands.slept == pytest.approx([0.003])


def test_a_rest_is_short_enough_to_notice_that_the_cores_are_free() -> None:
    hands = Hands()
    pace = hands.pace()
    pace.is_busy = True
    hands.work(10.0)
    pace.rest()
    assert hands.slept == [0.05]


def test_rates_are_measured_without_the_rests() -> None:
    hands = Hands()
    pace = hands.pace()
    pace.is_busy = True
    started = pace.working_clock()
    hands.work(0.004)
    pace.rest()
    hands.work(0.004)
    assert pace.working_clock() - started == pytest.approx(0.008)
    others: list[float] = []
    thread = threading.Thread(target=lambda: others.append(pace.working_clock()))
    thread.start()
    thread.join()
    assert others == [pytest.approx(hands.now_s)]  # each thread has rests of its own


@pytest.mark.parametrize("is_busy", [False, True])
def test_files_are_moved_whole_in_pieces(tmp_path: Path, *, is_busy: bool) -> None:
    hands = Hands()
    pace = hands.pace()
    pace.is_busy = is_busy
    fs, path = PacedFileSystem(pace), tmp_path / "file"
    data = os.urandom(3 * MB + 17)
    buffers = [memoryview(data)[:100], memoryview(data)[100 : 2 * MB], memoryview(data)[2 * MB :]]
    fd = fs.open(path, WRITE_FLAGS)
    first = fs.writev(fd, buffers)
    assert first == (MB if is_busy else len(data))
    fs.close(fd)
    path.unlink()
    fd = fs.open(path, WRITE_FLAGS)
    write_all(fs, fd, buffers)
    fs.close(fd)
    assert path.read_bytes() == data
    found = bytearray(len(data))
    fd = fs.open(path, os.O_RDONLY)
    into = memoryview(found)
    assert fs.preadv(fd, [into[:5], into[5:]], 0) == (MB if is_busy else len(data))
    assert read_into(fs, fd, [into[:1000], into[1000:]], offset=0) == len(data)
    fs.close(fd)
    assert found == data
