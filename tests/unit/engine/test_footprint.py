"""What the system says of this process."""

import ctypes
from typing import Any

import psutil

from omlx.engine.footprint import footprint_bytes


class FakeLibproc:
    """Answers as macOS does: the footprint is the eighth number after 16 bytes of an id."""

    def __init__(self, result: int) -> None:
        self.result = result

    def proc_pid_rusage(self, pid: int, flavor: int, into: Any) -> int:
        assert pid == psutil.Process().pid and flavor == 0
        numbers = (ctypes.c_uint64 * 12).from_address(ctypes.addressof(into._obj))
        for i in range(12):
            numbers[i] = 100 + i
        return self.result


def test_macos_counts_the_buffers_of_the_gpu() -> None:
    assert footprint_bytes(platform="darwin", library=FakeLibproc(0)) == 100 + 2 + 7
    rss = footprint_bytes(platform="darwin", library=FakeLibproc(-1))
    assert abs(rss - psutil.Process().memory_info().rss) < 10**8


def test_elsewhere_what_is_resident_counts() -> None:
    before = footprint_bytes(platform="linux")
    held = bytearray(b"x" * 50_000_000)
    assert footprint_bytes(platform="linux") - before > 40_000_000
    del held
