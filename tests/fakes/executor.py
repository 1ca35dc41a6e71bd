"""An executor whose jobs run when a test says so, on the test's own thread.

Knows nothing about what the jobs do.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any


class ManualExecutor(Executor):
    """Keeps what is submitted until `run`."""

    def __init__(self) -> None:
        self.jobs: deque[tuple[Future[Any], Callable[[], Any]]] = deque()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.jobs.append((future, lambda: fn(*args, **kwargs)))
        return future

    def run(self, *, newest_first: bool = False) -> int:
        """Run all that is queued; how many jobs that was."""
        num_jobs = 0
        while self.jobs:
            future, job = self.jobs.pop() if newest_first else self.jobs.popleft()
            num_jobs += 1
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(job())
                except Exception as error:  # as a thread of a pool would
                    future.set_exception(error)
        return num_jobs

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if cancel_futures:
            for future, _ in self.jobs:
                future.cancel()
        if wait:
            self.run()
