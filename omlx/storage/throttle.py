"""A disk that is made slow: reads and writes together move at most so many bytes a second.

Knows nothing about blocks. For measuring what a slower disk would do, and for leaving bandwidth to
others.
"""

import threading
import time
from collections.abc import Callable

_PIECE_S = 0.02  # one call moves no more than this takes, so that threads share the rate evenly
_MIN_PIECE_BYTES = 4096


class Throttle:
    """A rate that all threads share: each call is over when its bytes had their time."""

    def __init__(
        self,
        bytes_per_s: int,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        assert bytes_per_s > 0, "no limit is no throttle"
        self._rate = bytes_per_s
        self._clock = clock
        self._sleep = sleep
        self._lock = threading.Lock()
        self._free_at = 0.0  # when the bytes asked for so far have had their time

    @property
    def piece_bytes(self) -> int:
        """The most that one call should move."""
        return max(_MIN_PIECE_BYTES, int(self._rate * _PIECE_S))

    def moved(self, num_bytes: int) -> None:
        """So many bytes were moved: wait until a disk of this rate were done with them (mutates).

        Time in which nothing was moved is not saved up.
        """
        with self._lock:
            now = self._clock()
            self._free_at = max(self._free_at, now) + num_bytes / self._rate
            wait_s = self._free_at - now
        self._sleep(wait_s)
