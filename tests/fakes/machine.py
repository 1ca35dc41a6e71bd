"""A machine whose processes, clock and servers a test makes up."""

import errno
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from omlx.client import RunningServer
from omlx.errors import ServerError
from omlx.launch.system import Member

BEGAN = 1_000_000.0


@dataclass
class FakeChild:
    """A process that was spawned; `code` is set once it has ended."""

    pid: int
    code: int | None = None

    def poll(self) -> int | None:
        return self.code


@dataclass
class Spawn:
    """How a process was started."""

    words: Sequence[str]
    cwd: Path
    env: Mapping[str, str]
    output: int


@dataclass
class FakeMachine:
    """Time passes in `pause` only, which also does what was planned for that time."""

    time: float = 0.0
    alive: dict[int, float] = field(default_factory=dict)
    below: dict[int, list[int]] = field(default_factory=dict)
    omlx: set[int] = field(default_factory=set)
    deaf: set[int] = field(default_factory=set)  # to SIGTERM
    undead: set[int] = field(default_factory=set)  # to SIGKILL as well
    words: dict[str, str] = field(default_factory=dict)  # health by address
    signals: list[tuple[int, int]] = field(default_factory=list)
    spawned: list[Spawn] = field(default_factory=list)
    plans: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    on_spawn: Callable[[FakeChild, Spawn], None] = lambda child, how: None
    on_end: Callable[[int], None] = lambda pid: None
    is_full: bool = False  # the disk
    last: FakeChild | None = None
    next_pid: int = 500

    def plan(self, seconds: float, act: Callable[[], None]) -> None:
        """Have something happen so many seconds from now."""
        self.plans.append((self.time + seconds, act))

    def run(self, pid: int, *children: int, began: float = BEGAN) -> None:
        """Have a process, with others below it."""
        self.alive.update({one: began for one in (pid, *children)})
        self.below[pid] = list(children)
        self.omlx.add(pid)

    def end(self, pid: int, code: int = 0) -> None:
        """Let a process be gone."""
        self.alive.pop(pid, None)
        if self.last is not None and self.last.pid == pid:
            self.last.code = code

    # ---- what the code under test calls

    def now(self) -> float:
        return self.time

    def pause(self, seconds: float) -> None:
        self.time += seconds
        due = [plan for plan in self.plans if plan[0] <= self.time]
        self.plans = [plan for plan in self.plans if plan[0] > self.time]
        for _, act in due:
            act()

    def spawn(
        self, words: Sequence[str], *, cwd: Path, env: Mapping[str, str], output: int
    ) -> FakeChild:
        child = self.last = FakeChild(self.next_pid)
        self.run(child.pid)
        how = Spawn(words, cwd, env, output)
        self.spawned.append(how)
        self.on_spawn(child, how)
        return child

    def began(self, pid: int) -> float | None:
        return self.alive.get(pid)

    def is_omlx(self, pid: int) -> bool:
        return pid in self.omlx

    def family(self, pid: int) -> tuple[Member, ...]:
        pids = [pid, *self.below.get(pid, [])] if pid in self.alive else []
        return tuple(Member(one, self.alive[one]) for one in pids if one in self.alive)

    def signal(self, member: Member, number: int) -> bool:
        if self.alive.get(member.pid) != member.began:
            return False
        if number == 0:
            return True
        self.signals.append((member.pid, number))
        is_fatal = number == signal.SIGKILL and member.pid not in self.undead
        if is_fatal or (number == signal.SIGTERM and member.pid not in self.deaf):
            self.end(member.pid, -number)
            self.on_end(member.pid)
        return True

    def health(self, server: RunningServer) -> Mapping[str, object]:
        word = self.words.get(server.address)
        if word is None:
            raise ServerError(f"the server at {server.address} does not answer")
        return {"status": word}

    def sync(self, handle: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
