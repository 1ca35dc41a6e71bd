"""Jobs for the engine thread, posted by any other thread.

Knows nothing about what the jobs do.
"""

import queue
from collections.abc import Callable


class Inbox:
    """A queue of closures that the engine thread runs between two steps."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    def post(self, job: Callable[[], None]) -> None:
        """Have the engine thread run `job` (any thread)."""
        self._jobs.put(job)

    def run_jobs(self, wait_s: float) -> None:
        """Run all jobs that are there, waiting at most so long for a first one (engine thread)."""
        try:
            job = self._jobs.get(timeout=wait_s) if wait_s > 0 else self._jobs.get_nowait()
            while True:
                job()
                job = self._jobs.get_nowait()
        except queue.Empty:
            return
