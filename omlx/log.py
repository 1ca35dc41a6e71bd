"""Logging: one handler on stderr, one line a record; stderr may be a file that is rotated.

Knows nothing about the parts that log; never given prompts, tokens or keys.
"""

import contextlib
import faulthandler
import fcntl
import logging
import os
import stat
import sys
import time
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

LEVELS = {
    "error": logging.ERROR,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
}
_STDOUT, _STDERR = 1, 2


@dataclass(frozen=True, slots=True)
class LogFile:
    """A log that a new file is begun for at `max_bytes`; `keep` old ones stay, .1 the newest."""

    path: Path
    max_bytes: int
    keep: int

    def old(self, number: int) -> Path:
        """The name of an old file; 1 is the newest."""
        return self.path.with_name(f"{self.path.name}.{number}")

    def open(self) -> int:
        """A descriptor to append with; makes what is missing. OSError."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.open(self.path, flags, 0o600)

    def is_output(self, fd: int) -> bool:
        """Whether a descriptor of this process goes there; OSError."""
        try:
            return os.path.samestat(self.path.stat(), os.fstat(fd))
        except FileNotFoundError:
            return False


class Output:
    """An output of this process in a log that other processes write to as well.

    It is the file descriptor that goes there, so that what C libraries write and the traceback of
    a crash are in it. Each process looks before it logs whether another one has begun a new file.
    """

    def __init__(
        self, file: LogFile, fd: int = _STDERR, *, followers: tuple[int, ...] = ()
    ) -> None:
        self._file = file
        self._fd = fd
        self._followers = followers

    def take(self) -> None:
        """Let the output go to the file from now on (mutates the process); OSError."""
        if not self._file.is_output(self._fd):
            self._reopen(())

    def settle(self) -> None:
        """Begin a new file if it is time, or go on in the one that another process began."""
        with contextlib.suppress(OSError):  # go on where it goes now
            if not self._file.is_output(self._fd):
                self._reopen(self._same())
            elif self._is_full():
                self._rotate()

    def _is_full(self) -> bool:
        status = os.fstat(self._fd)
        return stat.S_ISREG(status.st_mode) and status.st_size >= self._file.max_bytes

    def _same(self) -> tuple[int, ...]:
        """The followers that go where this output goes."""
        own = os.fstat(self._fd)
        return tuple(fd for fd in self._followers if os.path.samestat(os.fstat(fd), own))

    def _reopen(self, others: tuple[int, ...]) -> None:
        handle = self._file.open()
        for fd in (self._fd, *others):
            os.dup2(handle, fd)
        os.close(handle)

    def _rotate(self) -> None:
        with _alone(self._file.path.parent):
            if self._file.is_output(self._fd):  # else another process was quicker
                for number in range(self._file.keep - 1, 0, -1):
                    with contextlib.suppress(FileNotFoundError):
                        self._file.old(number).rename(self._file.old(number + 1))
                self._file.path.rename(self._file.old(1))
            self._reopen(self._same())


@contextlib.contextmanager
def _alone(folder: Path) -> Generator[None]:
    """Hold a lock that all processes take that move files there; OSError if one has it."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(handle)


class _Formatter(logging.Formatter):
    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(record.created))
        return f"{stamp}.{int(record.msecs):03d}"


class _Handler(logging.StreamHandler[TextIO]):
    """Writes to stderr; `before` is called before each record."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.before: Callable[[], None] = _nothing

    def emit(self, record: logging.LogRecord) -> None:
        self.before()
        super().emit(record)


def setup(level: str, *, tag: str = "", file: LogFile | None = None) -> None:
    """Send the "omlx" loggers to stderr at `level`; each line carries `tag` (an engine's model).

    With `file` all of stderr goes there from now on, crashes as well; OSError if it can't be
    written. Mutates the logging configuration of the process; call once, from an entry point.
    """
    handler = _Handler()
    if file is not None:
        _take(file, [handler])
    mark = f" [{tag}]" if tag else ""
    handler.setFormatter(_Formatter(f"%(asctime)s %(levelname)s %(name)s{mark} %(message)s"))
    logger = logging.getLogger("omlx")
    logger.handlers[:] = [handler]
    logger.setLevel(LEVELS[level])
    logger.propagate = False


@contextlib.contextmanager
def into(file: LogFile) -> Generator[None]:
    """Send all of stderr to a file while this is entered, crashes as well; OSError.

    Mutates the process; afterwards stderr is what it was, unless that was the file already.
    """
    handlers = [h for h in logging.getLogger("omlx").handlers if isinstance(h, _Handler)]
    with contextlib.ExitStack() as stack:
        if not file.is_output(_STDERR):
            kept = os.dup(_STDERR)
            stack.callback(os.close, kept)
            stack.callback(os.dup2, kept, _STDERR)
        _take(file, handlers)
        for handler in handlers:
            stack.callback(setattr, handler, "before", _nothing)
        yield


def _take(file: LogFile, handlers: Iterable[_Handler]) -> None:
    output = Output(file, followers=(_STDOUT,))
    output.take()
    faulthandler.enable(_STDERR)
    for handler in handlers:
        handler.before = output.settle


def _nothing() -> None:
    """Where stderr is no file."""
