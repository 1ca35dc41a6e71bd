"""An engine process that is none: a test says what it reports and when it dies."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from omlx.engine.child import Beat, Ending, Vitals, Watcher
from omlx.engine.request import (
    Admitted,
    EngineRequest,
    EngineSnapshot,
    EngineState,
    Event,
    Finished,
    FinishReason,
    Listener,
    RequestStats,
    Started,
    Token,
)

STATS = RequestStats(1, 0, 0, 0, 0.0, 0.0, 0.0, 0.0, 0.0)


class FakeChild:
    """Implements Child; nothing happens by itself but that `kill` and an idle stop end it."""

    def __init__(self, clock: Callable[[], float], *, start_error: Exception | None = None) -> None:
        self.clock = clock
        self.start_error = start_error
        self.submitted: list[EngineRequest] = []
        self.aborted: list[str] = []
        self.limits: list[int] = []
        self.stops: list[float] = []
        self.num_kills = 0
        self.is_stubborn = False  # does not end when it is asked to
        self.cpu = 0.0
        self.is_frozen = False
        self.pid: int | None = None
        self.figures: EngineSnapshot | None = None
        self._state = EngineState.STARTING
        self._beat = Beat(0, 0.0, clock(), clock())
        self._listener: Listener | None = None
        self._watcher: Watcher | None = None

    def start(self, listener: Listener, watcher: Watcher | None = None) -> None:
        if self.start_error is not None:
            raise self.start_error
        self._listener, self._watcher = listener, watcher

    def submit(self, request: EngineRequest) -> None:
        self.submitted.append(request)

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def allow(self, limit_bytes: int) -> None:
        self.limits.append(limit_bytes)

    def state(self) -> EngineState:
        return self._state

    def snapshot(self) -> EngineSnapshot | None:
        return self.figures

    def beat(self) -> Beat:
        return self._beat

    def vitals(self) -> Vitals:
        return Vitals(self.cpu, self.is_frozen)

    def ask_to_stop(self, timeout_s: float) -> None:
        self.stops.append(timeout_s)
        if not self.is_stubborn:
            self.end(0, is_clean=True)

    def stop(self, timeout_s: float) -> int | None:
        self.ask_to_stop(timeout_s)
        return 0

    def kill(self) -> None:
        self.num_kills += 1
        self.end(-9)

    @property
    def ids(self) -> list[str]:
        """The requests that it got, in order."""
        return [request.id for request in self.submitted]

    def become(self, state: EngineState) -> None:
        self._state = state

    def ready(self) -> None:
        self.become(EngineState.READY)

    def beats(self, age_s: float = 0.0) -> None:
        self._beat = Beat(self._beat.num_turns + 1, age_s, self.clock(), self.clock())

    def is_heard(self) -> None:
        self._beat = replace(self._beat, heard_at=self.clock())

    def says(self, *events: Event) -> None:
        assert self._listener is not None
        self._listener(events)

    def works_on(self, *request_ids: str) -> None:
        assert self._watcher is not None
        for request_id in request_ids:
            self._watcher.on_work(request_id)
            self.says(Admitted(request_id, 0, 0))

    def tokens(self, request_id: str, *tokens: int) -> None:
        self.says(Started(request_id, STATS), *(Token(request_id, token) for token in tokens))

    def finishes(self, *request_ids: str, reason: FinishReason = FinishReason.STOP) -> None:
        self.says(*(Finished(request_id, reason, STATS) for request_id in request_ids))

    def end(self, code: int, *, error: str | None = None, is_clean: bool = False) -> None:
        """The process is gone; a second end is none."""
        watcher, self._watcher = self._watcher, None
        was_ready = self._state is EngineState.READY
        self._state = EngineState.STOPPED if is_clean else EngineState.FAILED
        if watcher is not None:
            watcher.on_end(Ending(code, error, was_ready, is_clean))


class Clock:
    """Time that stands still unless a test moves it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Heard:
    """A listener that keeps what it got, by request."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, events: Sequence[Event]) -> None:
        self.events += events

    def of(self, request_id: str) -> list[Event]:
        return [event for event in self.events if event.request_id == request_id]

    def tokens(self, request_id: str) -> list[int]:
        return [event.token for event in self.of(request_id) if isinstance(event, Token)]

    def kinds(self, request_id: str) -> list[str]:
        return [type(event).__name__ for event in self.of(request_id)]
