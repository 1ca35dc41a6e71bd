"""A thread that does something again and again until it is stopped.

Knows nothing about what it does.
"""

import threading
from abc import ABC, abstractmethod


class Routine(ABC):
    """Subclasses have `_run`, which goes on until `_is_over` is set."""

    def __init__(self) -> None:
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()

    @abstractmethod
    def _run(self) -> None: ...
