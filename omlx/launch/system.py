"""Processes, clocks and the question whether a server answers, as the machine has them.

Knows nothing about state files or logs.
"""

import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from omlx.client import RunningServer, ask_health
from omlx.errors import ServerError

_SAME_S = 2.0  # start times are read from clocks that may be set


@dataclass(frozen=True, slots=True)
class Member:
    """One process: its id, and when it began, since ids are used again."""

    pid: int
    began: float


class Child(Protocol):
    """A process that was started here."""

    @property
    def pid(self) -> int:
        """Its id."""
        ...

    def poll(self) -> int | None:
        """Its exit code once it has ended, negative for a signal."""
        ...


class Machine(Protocol):
    """What starting and stopping need of the machine; a test has one of its own."""

    def now(self) -> float:
        """Seconds that only go forward."""
        ...

    def pause(self, seconds: float) -> None:
        """Wait."""
        ...

    def spawn(
        self, words: Sequence[str], *, cwd: Path, env: Mapping[str, str], output: int
    ) -> Child:
        """Start a program in a session of its own; what it writes goes to `output`. OSError."""
        ...

    def began(self, pid: int) -> float | None:
        """When a process began, in seconds of the epoch; None if there is none."""
        ...

    def is_omlx(self, pid: int) -> bool:
        """Whether a process is a server by its command line."""
        ...

    def family(self, pid: int) -> tuple[Member, ...]:
        """A process and all below it."""
        ...

    def signal(self, member: Member, number: int) -> bool:
        """Send a signal to a process if it is still that one; whether it is. ServerError."""
        ...

    def health(self, server: RunningServer) -> Mapping[str, object]:
        """What a server says of its health; ServerError if nothing answers."""
        ...

    def sync(self, handle: int) -> None:
        """Have what was written to a file on the disk; OSError."""
        ...


class System:
    """This machine."""

    def now(self) -> float:
        """Seconds that only go forward."""
        return time.monotonic()

    def pause(self, seconds: float) -> None:
        """Wait."""
        time.sleep(seconds)

    def spawn(
        self, words: Sequence[str], *, cwd: Path, env: Mapping[str, str], output: int
    ) -> Child:
        """Start a program in a session of its own; what it writes goes to `output`. OSError."""
        return subprocess.Popen(
            words,
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def began(self, pid: int) -> float | None:
        """When a process began, in seconds of the epoch; None if there is none."""
        try:
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return None
            return process.create_time()
        except (psutil.Error, OverflowError, ValueError):
            return None

    def is_omlx(self, pid: int) -> bool:
        """Whether a process is a server by its command line."""
        try:
            words = psutil.Process(pid).cmdline()
        except (psutil.Error, OverflowError, ValueError):
            return False
        return "serve" in words and any("omlx" in Path(word).name for word in words)

    def family(self, pid: int) -> tuple[Member, ...]:
        """A process and all below it."""
        try:
            first = psutil.Process(pid)
            processes = [first, *first.children(recursive=True)]
        except (psutil.Error, OverflowError, ValueError):
            return ()
        found = ((one.pid, self.began(one.pid)) for one in processes)
        return tuple(Member(number, began) for number, began in found if began is not None)

    def signal(self, member: Member, number: int) -> bool:
        """Send a signal to a process if it is still that one; whether it is. ServerError."""
        began = self.began(member.pid)
        if began is None or not is_same_time(began, member.began):
            return False
        try:
            os.kill(member.pid, number)
        except ProcessLookupError:
            return False
        except PermissionError:
            raise ServerError(f"process {member.pid} belongs to another user") from None
        return True

    def health(self, server: RunningServer) -> Mapping[str, object]:
        """What a server says of its health; ServerError if nothing answers."""
        return ask_health(server)

    def sync(self, handle: int) -> None:
        """Have what was written to a file on the disk; OSError."""
        os.fsync(handle)


def is_same_time(one: float, other: float) -> bool:
    """Whether two readings of a process' start may be of the same one."""
    return abs(one - other) <= _SAME_S
