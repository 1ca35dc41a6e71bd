"""Single keys from a terminal, without echo, while it is entered; afterwards it is as before.

Knows nothing about what keys mean.
"""

import os
import select
import signal
import sys
import termios
import time
import tty
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class Keyboard:
    """Reads stdin where that is a terminal, else only waits; for the main thread.

    A signal that would end the process raises KeyboardInterrupt instead, so that whoever has
    the terminal gives it back. A change of the terminal's size ends a wait.
    """

    def __init__(self) -> None:
        self._fd: int | None = None
        self._before: list[Any] | None = None
        self._handlers: dict[int, Any] = {}
        self._wakers: tuple[int, int] | None = None

    def __enter__(self) -> Self:
        self._wakers = os.pipe()
        os.set_blocking(self._wakers[1], False)
        for number in _SIGNALS:
            self._handlers[number] = signal.signal(number, _interrupt)
        self._handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, self._wake)
        if sys.stdin is not None and sys.stdin.isatty():
            self._fd = fd = sys.stdin.fileno()
            self._before = termios.tcgetattr(fd)
            tty.setcbreak(fd)
            # Nobody would give the terminal back to the shell, nor take it again.
            self._handlers[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._fd is not None and self._before is not None:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, self._before)
        assert self._wakers is not None
        for fd in self._wakers:
            os.close(fd)

    def wait(self, seconds: float) -> str:
        """The keys that come within so many seconds; empty at their end, or for a new size."""
        assert self._wakers is not None, "not entered"
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            fds = [self._wakers[0]] if self._fd is None else [self._wakers[0], self._fd]
            ready, _, _ = select.select(fds, [], [], left)
            if self._wakers[0] in ready:
                os.read(self._wakers[0], 4096)
                return ""
            if ready:
                return self._read()
        return ""

    def _read(self) -> str:
        assert self._fd is not None
        data = os.read(self._fd, 1024)
        if not data:  # the terminal is gone
            raise KeyboardInterrupt
        return data.decode("utf-8", "replace")

    def _wake(self, number: int, frame: FrameType | None) -> None:
        assert self._wakers is not None
        with suppress(BlockingIOError):  # it is about to wake
            os.write(self._wakers[1], b"\0")


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
