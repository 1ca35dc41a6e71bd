"""An engine that outlives its process: one that dies or hangs is started again, and its requests go
on from the tokens they have.

Knows nothing about which models are loaded when; `pool` says that and calls `tick`.
"""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from omlx.engine.child import Child, Ending, Watcher
from omlx.engine.lifecycle import EngineHealth, Gone, Lifecycle, Phase
from omlx.engine.request import (
    EngineRequest,
    EngineSnapshot,
    EngineState,
    Event,
    Failed,
    FailureCode,
    Listener,
)
from omlx.engine.tickets import Tickets
from omlx.engine.watch import Patience
from omlx.errors import OmlxError


class SupervisedEngine:
    """Implements Engine over one process after another. `tick` drives it, at least every second.

    `make_child` builds a process without starting it; at most `max_live` requests are taken at a
    time; `wake` is called when a tick is due sooner.
    """

    def __init__(
        self,
        model_id: str,
        make_child: Callable[[], Child],
        *,
        max_live: int | None = None,
        patience: Patience | None = None,
        clock: Callable[[], float] = time.monotonic,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._model_id = model_id
        self._make_child = make_child
        self._clock = clock
        self._wake = wake
        self._lock = threading.RLock()
        self._life = Lifecycle(model_id, patience or Patience())
        self._tickets = Tickets(max_live)
        self._listener: Listener | None = None
        self._takes_new = True
        self._idle_since = clock()

    @property
    def model_id(self) -> str:
        """The id of the model that it serves."""
        return self._model_id

    def start(self, listener: Listener) -> None:
        """Say who gets the events; nothing is loaded before `load`."""
        self._listener = listener

    def submit(self, request: EngineRequest) -> None:
        """Take a request; without a process it waits for one."""
        with self._lock:
            why = self._life.refusal(self._clock())
            refused = _failed(request, why) if why else self._tickets.add(request)
            self._feed()
        if refused is not None:
            self._deliver([refused])
        elif self._life.child is None:
            self._wake()

    def abort(self, request_id: str) -> None:
        """End a request within one step."""
        with self._lock:
            is_told, ends = self._tickets.abort(request_id)
            if is_told and self._life.child is not None:
                self._life.child.abort(request_id)
            self._note_idle()
        self._deliver(ends)

    def refuse_all(self, message: str) -> None:
        """Fail every request that there is: the model can't be loaded now."""
        with self._lock:
            ends = self._tickets.fail_all(message)
        self._deliver(ends)

    @property
    def phase(self) -> Phase:
        """What is done with the engine."""
        return self._life.phase

    def state(self) -> EngineState:
        """Where the engine is in its life; one that will be started again is starting."""
        with self._lock:
            return self._life.state()

    def error(self) -> str | None:
        """Why the model can't be loaded."""
        return self._life.error

    def snapshot(self) -> EngineSnapshot | None:
        """The latest figures, of the process before where there is no newer one."""
        with self._lock:
            return self._life.snapshot()

    def figures(self) -> EngineSnapshot | None:
        """Those of the process that there is now; None before its model is loaded."""
        return child.snapshot() if (child := self._life.child) is not None else None

    def allow(self, limit_bytes: int) -> None:
        """Have the process use at most so much memory from now on."""
        if (child := self._life.child) is not None:
            child.allow(limit_bytes)

    def health(self) -> EngineHealth:
        """How the engine gets on, and who uses it."""
        with self._lock:
            now, tickets = self._clock(), self._tickets
            found, is_idle = self._life.health(now), self._life.was_ready and not tickets
            return replace(
                found,
                num_quarantined=tickets.num_quarantined,
                num_live=len(tickets),
                num_submitted=tickets.num_submitted,
                idle_s=now - self._idle_since if is_idle and found.is_running else None,
            )

    def load(self) -> None:
        """Begin to load if nothing is loaded (the ticking thread only)."""
        if self.phase in (Phase.UNLOADED, Phase.FAILED):
            self._start_child()

    def unload(self, timeout_s: float) -> bool:
        """Begin to end the process within the limit; False if it has requests."""
        with self._lock:
            is_free = not self._tickets.num_submitted
            return is_free and self._life.unload(self._clock(), timeout_s)

    def take_new(self, *, does: bool) -> None:
        """Whether the process gets requests that it has not had; they wait meanwhile (mutates)."""
        with self._lock:
            self._takes_new = does
            self._feed()

    def tick(self) -> None:
        """Do what is due: start again, end what hangs (the ticking thread only)."""
        with self._lock:
            now = self._clock()
            if self._life.look(now):
                self._note_idle()
            is_start_due = self._life.is_start_due(now)
        if is_start_due:
            self._start_child()

    def _start_child(self) -> None:
        child = self._make_child()
        watcher = Watcher(
            lambda request_id: self._began(child, request_id),
            lambda ending: self._ended(child, ending),
        )
        with self._lock:
            if not self._life.started(child, self._clock()):
                return
            self._feed()
        try:
            child.start(lambda events: self._heard(child, events), watcher)
        except (OmlxError, OSError) as error:
            self._ended(child, Ending(1, str(error), was_ready=False, is_clean=False))

    def _feed(self) -> None:
        child = self._life.child
        if child is None or self._life.phase is not Phase.RUNNING:
            return
        for request in self._tickets.take_next(has_room_for_new=self._takes_new):
            child.submit(request)

    def _began(self, child: Child, request_id: str) -> None:
        with self._lock:
            if child is self._life.child:
                self._tickets.working(request_id)

    def _heard(self, child: Child, events: Sequence[Event]) -> None:
        with self._lock:
            if child is not self._life.child:
                return
            if any(isinstance(e, Failed) and e.code is FailureCode.CRASH for e in events):
                child.kill()  # its memory may be at fault: the requests go on in a new process
                events = [e for e in events if not isinstance(e, Failed)]
            news = self._tickets.take(events)
            self._feed()
            is_idle = self._note_idle()
        self._deliver(news)
        if is_idle:
            self._wake()

    def _note_idle(self) -> bool:
        """Idle time counts from the end of the last request; whether there is none now."""
        if not self._tickets:
            self._idle_since = self._clock()
        return not self._tickets

    def _ended(self, child: Child, ending: Ending) -> None:
        """The process is gone; runs on its reading thread."""
        with self._lock:
            if child is not self._life.child:
                return
            ends = _settle(self._tickets, *self._life.ended(ending, self._clock()))
            self._note_idle()
        self._deliver(ends)
        self._wake()

    def _deliver(self, events: Sequence[Event]) -> None:
        """Pass events on; without the lock, since the listener may wait for its reader."""
        if events and self._listener is not None:
            self._listener(events)

    def stop(self, timeout_s: float) -> int | None:
        """Have the process write what it holds and end; wait at most so long and a little."""
        with self._lock:
            self._life.phase, child = Phase.CLOSED, self._life.child
        code = child.stop(timeout_s) if child is not None else None
        self.refuse_all("the engine has ended")
        return code


def _failed(request: EngineRequest, why: str) -> Failed:
    return Failed(request.id, FailureCode.ENGINE, why)


def _settle(tickets: Tickets, gone: Gone, reason: str) -> list[Event]:
    """What the end of a process means to its requests; the last events of those that end."""
    match gone:
        case Gone.UNLOADED:
            return tickets.take_back()
        case Gone.GIVEN_UP:
            return tickets.fail_all(reason)
        case Gone.DIED:
            return tickets.bury(reason)
