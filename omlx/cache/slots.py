"""Jobs on the threads of an executor, of which only so many run at a time.

Knows nothing about what the jobs do. Any thread may call it.
"""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor


class Slots:
    """Runs jobs in order; the limit may change at any time."""

    def __init__(self, executor: Executor, limit: int) -> None:
        self._executor = executor
        self._limit = limit
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], None]] = deque()
        self._num_running = 0

    @property
    def limit(self) -> int:
        """How many jobs may run at a time now."""
        return self._limit

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job as soon as there is a slot; it must not raise."""
        self._waiting.append(job)
        self._start()

    def set_limit(self, limit: int) -> None:
        """How many jobs may run at a time from now on; such as run already go on."""
        if limit != self._limit:
            self._limit = limit
            self._start()

    def _start(self) -> None:
        while True:
            with self._lock:
                if not self._waiting or self._num_running >= self._limit:
                    return
                job = self._waiting.popleft()
                self._num_running += 1
            self._executor.submit(self._run, job)

    def _run(self, job: Callable[[], None]) -> None:
        job()
        with self._lock:
            self._num_running -= 1
        self._start()
