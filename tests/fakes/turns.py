"""Threads that take turns, one file system call each, in an order that a seed decides.

They know nothing about the store. Time passes only with their calls.
"""

import random
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from omlx.storage.fs import DirEntry, FileStat, FileSystem

T = TypeVar("T")


class Turns:
    """Runs jobs side by side; each waits for its turn before every call that it makes."""

    def __init__(self, seed: int, after_call: Callable[[], None]) -> None:
        self._random = random.Random(seed)
        self._after_call = after_call
        self._changed = threading.Condition()
        self._left: list[int] = []
        self._turn: int | None = None

    def run(self, jobs: Sequence[Callable[[Callable[[], None]], None]]) -> None:
        """Run all jobs to their ends; each is given what waits for its next turn."""
        self._left = list(range(len(jobs)))
        threads = [
            threading.Thread(target=self._work, args=(idx, job)) for idx, job in enumerate(jobs)
        ]
        for thread in threads:
            thread.start()
        self._next()
        for thread in threads:
            thread.join()

    def call(self, wait: Callable[[], None], action: Callable[[], T]) -> T:
        """Make one call in turn."""
        wait()
        try:
            return action()
        finally:
            self._after_call()

    def _work(self, idx: int, job: Callable[[Callable[[], None]], None]) -> None:
        try:
            self._wait(idx)
            job(lambda: self._pass_on(idx))
        finally:
            self._left.remove(idx)
            self._next()

    def _pass_on(self, idx: int) -> None:
        self._next()
        self._wait(idx)

    def _next(self) -> None:
        with self._changed:
            self._turn = self._random.choice(self._left) if self._left else None
            self._changed.notify_all()

    def _wait(self, idx: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._turn == idx)


class TurnFileSystem:
    """Another file system, one call a turn."""

    def __init__(self, inner: FileSystem, turns: Turns, wait: Callable[[], None]) -> None:
        self._inner = inner
        self._turns = turns
        self._wait = wait

    def _call(self, action: Callable[[], T]) -> T:
        return self._turns.call(self._wait, action)

    def open(self, path: Path, flags: int, mode: int = 0o600) -> int:
        return self._call(lambda: self._inner.open(path, flags, mode))

    def close(self, fd: int) -> None:
        return self._call(lambda: self._inner.close(fd))

    def preadv(self, fd: int, buffers: Sequence[memoryview], offset: int) -> int:
        return self._call(lambda: self._inner.preadv(fd, buffers, offset))

    def writev(self, fd: int, buffers: Sequence[memoryview]) -> int:
        return self._call(lambda: self._inner.writev(fd, buffers))

    def rename(self, source: Path, target: Path) -> None:
        return self._call(lambda: self._inner.rename(source, target))

    def unlink(self, path: Path) -> None:
        return self._call(lambda: self._inner.unlink(path))

    def rmdir(self, path: Path) -> None:
        return self._call(lambda: self._inner.rmdir(path))

    def stat(self, path: Path, *, follow: bool = False) -> FileStat:
        return self._call(lambda: self._inner.stat(path, follow=follow))

    def fstat(self, fd: int) -> FileStat:
        return self._call(lambda: self._inner.fstat(fd))

    def names(self, path: Path) -> list[str]:
        return self._call(lambda: self._inner.names(path))

    def scandir(self, path: Path) -> list[DirEntry]:
        return self._call(lambda: self._inner.scandir(path))

    def utime(self, path: Path, mtime: float) -> None:
        return self._call(lambda: self._inner.utime(path, mtime))

    def mkdir(self, path: Path, mode: int) -> None:
        return self._call(lambda: self._inner.mkdir(path, mode))

    def free_bytes(self, path: Path) -> int:
        return self._call(lambda: self._inner.free_bytes(path))
