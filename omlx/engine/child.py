"""What a supervisor needs of an engine that runs in a process of its own.

Knows nothing about sockets, or about what is done when such an engine ends.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from omlx.engine.request import EngineRequest, EngineSnapshot, EngineState, Listener


@dataclass(frozen=True, slots=True)
class Beat:
    """What the process last said of its engine's loop: `age_s` is the time since its last turn.

    `at` is when that was heard, and `heard_at` when anything was, on the server's clock.
    """

    num_turns: int
    age_s: float
    at: float
    heard_at: float


@dataclass(frozen=True, slots=True)
class Vitals:
    """The CPU time of a process, None if unknown; and whether it may not run, as after SIGSTOP."""

    cpu_s: float | None = None
    is_stopped: bool = False


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process ended: `error` is what its engine said of itself before, if it did."""

    exit_code: int
    error: str | None
    was_ready: bool
    is_clean: bool


@dataclass(frozen=True, slots=True)
class Watcher:
    """Who is told what becomes of a process; both are called on its reading thread.

    `on_work` gets the id of a request that leaves the queue. After `on_end` nothing more comes; the
    requests that were still there have no last event.
    """

    on_work: Callable[[str], None]
    on_end: Callable[[Ending], None]


class Child(Protocol):
    """An engine process; any thread may call its methods, and all but `stop` return at once."""

    @property
    def pid(self) -> int | None:
        """The process id, once it is started."""
        ...

    def start(self, listener: Listener, watcher: Watcher | None = None) -> None:
        """Start the process; it loads its model at once. EngineError."""
        ...

    def submit(self, request: EngineRequest) -> None:
        """Queue a request; it may come before `start`. Calls nobody back on this thread."""
        ...

    def abort(self, request_id: str) -> None:
        """End a request within one step."""
        ...

    def allow(self, limit_bytes: int) -> None:
        """Use at most so much of `engine.memory_limit` from the next step on; it may come before
        `start`."""
        ...

    def state(self) -> EngineState:
        """Where the engine is in its life."""
        ...

    def snapshot(self) -> EngineSnapshot | None:
        """The latest figures."""
        ...

    def beat(self) -> Beat:
        """When the process and its loop last showed that they live."""
        ...

    def vitals(self) -> Vitals:
        """What the system says of the process."""
        ...

    def ask_to_stop(self, timeout_s: float) -> None:
        """Have it write what is in memory within the limit, and end."""
        ...

    def kill(self) -> None:
        """End the process at once; nothing happens if it has ended."""
        ...

    def stop(self, timeout_s: float) -> int | None:
        """Have it end as `ask_to_stop` does, and wait for that; the exit code if known."""
        ...
