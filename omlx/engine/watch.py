"""Whether an engine process still gets on, and how long one that doesn't is waited for.

Knows nothing about requests, or about what is done with one that hangs.
"""

from dataclasses import dataclass

from omlx.engine.child import Child
from omlx.engine.request import EngineState

_STARTING = (EngineState.STARTING, EngineState.LOADING)
_IF_NOT_STOPPED = 6  # times the limit: a process that swaps or starves may be silent for a while
_LATE_S = 5.0  # a look that comes so late was held up itself: it proves nothing
_WORKING_SHARE = 0.1  # of the time: a silent process that computes so much is not stopped


@dataclass(frozen=True, slots=True)
class Patience:
    """How long an engine may take; all in seconds.

    A process that says nothing for `silent_s` and is stopped, or computes nothing for six times as
    long, hangs: its beat comes each second from a thread that only waits. `step_s` is for one turn
    of the loop, whose longest legitimate one is a prefill chunk or a restore, `load_s` for loading.
    """

    silent_s: float = 10.0
    step_s: float = 300.0
    load_s: float = 1800.0


class Watch:
    """Looks at one process again and again, at least every second (mutates at each look)."""

    def __init__(self, child: Child, patience: Patience, now: float) -> None:
        self._child = child
        self._patience = patience
        self._started = self._looked_at = self._excused_at = now
        self._heard_at = now
        self._cpu_s: float | None = None

    def why_hung(self, now: float) -> str | None:
        """Why the process has to be ended; None while it may go on."""
        if now - self._looked_at > _LATE_S:
            self._excused_at = now  # what it said meanwhile is still to be read
        self._looked_at = now
        is_starting = self._child.state() in _STARTING
        silent_s = self._silent_s(now)
        if silent_s >= self._patience.silent_s and self._child.vitals().is_stopped:
            return f"its process is stopped for {silent_s:.0f} s"
        if is_starting:
            load_s = now - self._started
            return None if load_s < self._patience.load_s else f"it is loading for {load_s:.0f} s"
        if silent_s >= _IF_NOT_STOPPED * self._patience.silent_s and not self._computes(silent_s):
            return f"its process has shown no sign of life for {silent_s:.0f} s"
        age_s = min(self.step_age_s(now), now - self._excused_at)
        return None if age_s < self._patience.step_s else f"its step takes {age_s:.0f} s by now"

    def step_age_s(self, now: float) -> float:
        """How long the last turn of the loop is over, as far as is known."""
        beat = self._child.beat()
        return now - beat.at + beat.age_s

    def is_slow(self, now: float) -> bool:
        """Whether half of its time is up."""
        if self._child.state() in _STARTING:
            return False
        beat = self._child.beat()
        is_silent = now - beat.heard_at >= self._patience.silent_s / 2
        return is_silent or self.step_age_s(now) >= self._patience.step_s / 2

    def _silent_s(self, now: float) -> float:
        heard_at = self._child.beat().heard_at
        if heard_at != self._heard_at:
            self._heard_at, self._cpu_s = heard_at, None
        silent_s = now - max(heard_at, self._excused_at)
        if self._cpu_s is None and silent_s >= min(2.0, self._patience.silent_s / 2):
            self._cpu_s = self._child.vitals().cpu_s
        return silent_s

    def _computes(self, silent_s: float) -> bool:
        """Whether it uses the processor: a long native call can keep all its threads waiting."""
        cpu_s = self._child.vitals().cpu_s
        if cpu_s is None or self._cpu_s is None:
            return False
        return cpu_s - self._cpu_s >= _WORKING_SHARE * silent_s
