"""Where the engine of a model is between its processes: what is running, due, or given up.

Knows nothing about requests or threads: its owner holds a lock around every call.
"""

import logging
from collections import deque
from dataclasses import dataclass
from enum import Enum

from omlx.engine.child import Child, Ending
from omlx.engine.request import EngineSnapshot, EngineState
from omlx.engine.watch import Patience, Watch

_log = logging.getLogger("omlx.engine.lifecycle")
_STORM_S = 60.0  # deaths within it make the next start wait
_FIRST_PAUSE_S, _MAX_PAUSE_S = 0.5, 30.0
_MAX_LOAD_DEATHS = 3
_FIRST_RETRY_S, _MAX_RETRY_S = 5.0, 60.0  # after a model that could not be loaded
_KILL_GRACE_S = 3.0  # beyond the time that an unload may take


class Phase(Enum):
    """What is done with the engine; PAUSED is between a death and the next start."""

    UNLOADED = "unloaded"
    RUNNING = "running"
    PAUSED = "paused"
    UNLOADING = "unloading"
    FAILED = "failed"
    CLOSED = "closed"


class Gone(Enum):
    """What the end of a process means to its requests: wait, run again, or fail."""

    UNLOADED = "unloaded"
    DIED = "died"
    GIVEN_UP = "given up"


@dataclass(frozen=True, slots=True)
class EngineHealth:
    """How an engine gets on, and who uses it.

    `last_step_age_s` is None where no model is ready. `num_live` requests are not over, wherever
    they are; the process has `num_submitted` of them. `idle_s` is how long a ready model has had no
    request, None while that is not so.
    """

    is_running: bool = False
    pid: int | None = None
    can_retry: bool = False
    last_step_age_s: float | None = None
    is_stalled: bool = False
    num_restarts: int = 0
    num_quarantined: int = 0
    num_live: int = 0
    num_submitted: int = 0
    idle_s: float | None = None


class Lifecycle:
    """One engine over all its processes; times are those of the owner's clock."""

    def __init__(self, model_id: str, patience: Patience) -> None:
        self._model_id = model_id
        self._patience = patience
        self._watch: Watch | None = None
        self._due_at = 0.0  # of a start, a retry or a kill, as the phase has it
        self._is_killed = False
        self._deaths: deque[float] = deque(maxlen=16)
        self._num_load_deaths = self._num_load_errors = 0
        self._snapshot: EngineSnapshot | None = None
        self.phase = Phase.UNLOADED
        self.child: Child | None = None
        self.error: str | None = None
        self.was_ready = False
        self.num_restarts = 0

    def state(self) -> EngineState:
        """The state to show; an engine that will be started again is starting."""
        match self.phase:
            case Phase.UNLOADED:
                return EngineState.UNLOADED
            case Phase.RUNNING if self.child is not None:
                state = self.child.state()
                is_over = state in (EngineState.FAILED, EngineState.STOPPED)
                return EngineState.STARTING if is_over else state
            case Phase.RUNNING | Phase.PAUSED:
                return EngineState.STARTING
            case Phase.UNLOADING:
                return EngineState.DRAINING
            case Phase.FAILED:
                return EngineState.FAILED
            case Phase.CLOSED:
                return EngineState.STOPPED

    def snapshot(self) -> EngineSnapshot | None:
        """The latest figures, of the process before where there is no newer one."""
        return (self.child.snapshot() if self.child is not None else None) or self._snapshot

    def health(self, now: float) -> EngineHealth:
        """How the engine gets on."""
        watch = self._watch if self.state() is EngineState.READY else None
        return EngineHealth(
            is_running=self.phase is Phase.RUNNING,
            pid=self.child.pid if self.child is not None else None,
            can_retry=self.can_retry(now),
            last_step_age_s=watch.step_age_s(now) if watch else None,
            is_stalled=watch.is_slow(now) if watch else False,
            num_restarts=self.num_restarts,
        )

    def can_retry(self, now: float) -> bool:
        """Whether a model that could not be loaded may be tried again."""
        return self.phase is Phase.FAILED and now >= self._due_at

    def refusal(self, now: float) -> str:
        """Why no request is taken, empty if one is; a model that could not be loaded may be tried
        again after a while (mutates)."""
        if self.can_retry(now):
            self.phase = Phase.UNLOADED  # what was wrong may have been repaired
        is_over = self.phase in (Phase.FAILED, Phase.CLOSED)
        return (self.error or "the engine has ended") if is_over else ""

    def is_start_due(self, now: float) -> bool:
        """Whether the pause after a death is over."""
        return self.phase is Phase.PAUSED and now >= self._due_at

    def started(self, child: Child, now: float) -> bool:
        """A new process begins (mutates); False if none is wanted any more."""
        if self.phase in (Phase.CLOSED, Phase.RUNNING, Phase.UNLOADING):
            return False
        self.child, self._watch = child, Watch(child, self._patience, now)
        self.phase, self.error = Phase.RUNNING, None
        self._is_killed = self.was_ready = False
        return True

    def look(self, now: float) -> bool:
        """End what hangs (mutates); whether the model has become ready since the last look."""
        child = self.child
        if child is None or self._watch is None:
            return False
        if self.phase is Phase.UNLOADING and now >= self._due_at:
            child.kill()
        if self.phase is not Phase.RUNNING:
            return False
        why = self._watch.why_hung(now)
        if why is not None and not self._is_killed:
            _log.error("engine %s: %s; it is ended", self._model_id, why)
            self._is_killed = True
            child.kill()
        if child.state() is not EngineState.READY or self.was_ready:
            return False
        self.was_ready = True
        self._num_load_deaths = self._num_load_errors = 0
        return True

    def unload(self, now: float, timeout_s: float) -> bool:
        """Begin to end the process (mutates); whether nothing is loaded then."""
        if self.phase in (Phase.PAUSED, Phase.FAILED):
            self.phase = Phase.UNLOADED
        if self.phase is Phase.RUNNING and self.child is not None:
            self.phase = Phase.UNLOADING
            self._due_at = now + timeout_s + _KILL_GRACE_S
            if self.child.state() is EngineState.READY:
                self.child.ask_to_stop(timeout_s)
            else:
                self.child.kill()  # it has nothing to lose, and would load to the end first
        return self.phase in (Phase.UNLOADED, Phase.UNLOADING)

    def ended(self, ending: Ending, now: float) -> tuple[Gone, str]:
        """The process is gone (mutates); what that means, and why it ended."""
        assert self.child is not None
        self._snapshot = self.snapshot()
        self.child = self._watch = None
        if self.phase is Phase.UNLOADING:
            self.phase = Phase.UNLOADED
            return Gone.UNLOADED, ""
        if self.phase is Phase.CLOSED:
            return Gone.GIVEN_UP, self.error or "the engine has ended"
        if ending.error is not None and not ending.was_ready:
            return self._give_up(ending.error, now)
        return self._died(ending, now)

    def _died(self, ending: Ending, now: float) -> tuple[Gone, str]:
        reason = ending.error or f"its process ended with exit code {ending.exit_code}"
        self._num_load_deaths += not ending.was_ready
        if self._num_load_deaths >= _MAX_LOAD_DEATHS:
            self._num_load_deaths = 0
            return self._give_up(f"the engine died while it loaded the model: {reason}", now)
        self._deaths.append(now)
        num_recent = sum(now - at < _STORM_S for at in self._deaths)
        pause_s = 0.0 if num_recent == 1 else _FIRST_PAUSE_S * 2 ** (num_recent - 2)
        self.phase, self._due_at = Phase.PAUSED, now + min(pause_s, _MAX_PAUSE_S)
        self.num_restarts += 1
        _log.error("engine %s: %s; it is started again", self._model_id, reason)
        return Gone.DIED, reason

    def _give_up(self, error: str, now: float) -> tuple[Gone, str]:
        """The model can't be loaded; after a while a request may try again."""
        pause_s = _FIRST_RETRY_S * 2 ** min(self._num_load_errors, 8)
        self._num_load_errors += 1
        self.phase, self.error = Phase.FAILED, error
        self._due_at = now + min(pause_s, _MAX_RETRY_S)
        return Gone.GIVEN_UP, error
