"""Disk work in small pieces with rests between them, for as long as someone else needs the cores.

Knows nothing about blocks, nor about who the others are.

A thread that moves bytes takes a core while it copies them, and a machine of two cores has no third
one for the decode. While `is_busy`, a thread works for at most `share` of the time that it is on a
core, in pieces that are short against the time between two tokens.
"""

import threading
import time
from collections.abc import Callable, Sequence

from omlx.storage.fs import RealFileSystem
from omlx.storage.throttle import Throttle

_SHARE = 0.25
_PIECE_BYTES = 1 << 20  # under a millisecond of copying
_MAX_REST_S = 0.05  # so that the end of the busy time is noticed


class _Times(threading.local):
    """CPU seconds of this thread at the end of its last rest, and the seconds it has rested."""

    def __init__(self) -> None:
        self.worked_until = 0.0
        self.rested_s = 0.0


class Pace:
    """Who works calls `rest` after each piece; any thread may."""

    def __init__(
        self,
        *,
        share: float = _SHARE,
        clock: Callable[[], float] = time.perf_counter,
        cpu_clock: Callable[[], float] = time.thread_time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._rest_ratio = (1.0 - share) / share
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._sleep = sleep
        self._times = _Times()
        self.is_busy = False

    def rest(self) -> None:
        """Sleep for what was worked since the last rest, so that its share is kept."""
        now = self._cpu_clock()
        worked_s, self._times.worked_until = now - self._times.worked_until, now
        if self.is_busy and worked_s > 0:
            started = self._clock()
            self._sleep(min(worked_s * self._rest_ratio, _MAX_REST_S))
            self._times.rested_s += self._clock() - started

    def working_clock(self) -> float:
        """Seconds that go on only while this thread does not rest: what rates are measured by."""
        return self._clock() - self._times.rested_s


class PacedFileSystem(RealFileSystem):
    """The real file system, which moves bytes at a pace, and at most at the rate of a throttle."""

    def __init__(self, pace: Pace, throttle: Throttle | None = None) -> None:
        super().__init__()
        self._pace = pace
        self._throttle = throttle

    def preadv(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        """Reads less at a time while others need the cores."""
        got = super().preadv(fd, self._piece(buffers), offset)
        self._moved(got)
        return got

    def writev(self, fd: int, buffers: Sequence[memoryview]) -> int:
        """Writes less at a time while others need the cores."""
        written = super().writev(fd, self._piece(buffers))
        self._moved(written)
        return written

    def _moved(self, num_bytes: int) -> None:
        if self._throttle is not None:
            self._throttle.moved(num_bytes)
        self._pace.rest()

    def _piece(self, buffers: Sequence[memoryview]) -> Sequence[memoryview]:
        limits = [_PIECE_BYTES] if self._pace.is_busy else []
        if self._throttle is not None:
            limits.append(self._throttle.piece_bytes)
        if not limits:
            return buffers
        taken: list[memoryview] = []
        room = min(limits)
        for buffer in buffers:
            taken.append(buffer[:room])
            room -= len(taken[-1])
            if room == 0:
                break
        return taken
