"""An engine that plays scripts: what it says to a request is given by the test."""

import threading
from collections.abc import Callable, Iterable, Sequence

from omlx.engine.lifecycle import EngineHealth
from omlx.engine.request import (
    Admitted,
    EngineRequest,
    EngineSnapshot,
    EngineState,
    Event,
    Finished,
    FinishReason,
    Listener,
    Prefilled,
    RequestStats,
    Started,
    Token,
    Trail,
)

Script = Callable[[EngineRequest], Iterable[Sequence[Event]]]
PATIENCE_S = 30


class ScriptedEngine:
    """Each request plays `script` on a thread of its own, one listener call a step."""

    def __init__(self, model_id: str = "fake", script: Script | None = None) -> None:
        self.model_id = model_id
        self.script = script or say("ok")
        self.submitted: list[EngineRequest] = []
        self.aborted: list[str] = []
        self.stopped_with: float | None = None
        self.figures: EngineSnapshot | None = EngineSnapshot()
        self._changed = threading.Condition()
        self._state = EngineState.STARTING
        self._error: str | None = None
        self._listener: Listener | None = None

    def start(self, listener: Listener) -> None:
        self._listener = listener
        self.become(EngineState.READY)

    def become(self, state: EngineState, error: str | None = None) -> None:
        with self._changed:
            self._state, self._error = state, error
            self._changed.notify_all()

    def submit(self, request: EngineRequest) -> None:
        with self._changed:
            self.submitted.append(request)
            self._changed.notify_all()
        threading.Thread(target=self._play, args=(request,), daemon=True).start()

    def abort(self, request_id: str) -> None:
        with self._changed:
            self.aborted.append(request_id)
            self._changed.notify_all()

    def state(self) -> EngineState:
        return self._state

    def error(self) -> str | None:
        return self._error

    def snapshot(self) -> EngineSnapshot | None:
        return self.figures

    def stop(self, timeout_s: float) -> int | None:
        self.stopped_with = timeout_s
        self.become(EngineState.STOPPED)
        return 0

    def emit(self, *events: Event) -> None:
        """One step, from the test's own thread."""
        assert self._listener is not None
        self._listener(events)

    def wait_for(self, condition: Callable[["ScriptedEngine"], bool]) -> None:
        """Block until the condition holds; fails the test if that takes too long."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self), PATIENCE_S), "never happened"

    def _play(self, request: EngineRequest) -> None:
        for step in self.script(request):
            if request.id in self.aborted:
                self.emit(Finished(request.id, FinishReason.ABORT, stats(request)))
                return
            self.emit(*step)


class FakePool:
    """A pool of engines that are there already."""

    def __init__(self, entries, engines):
        self._entries = tuple(entries)
        self.engines = {engine.model_id: engine for engine in engines}
        self.healths = {}
        self.refusals = {}
        self.pinned = set()

    def models(self):
        return self._entries

    def get(self, model_id):
        return self.engines[model_id]

    def health(self, model_id):
        return self.healths.get(model_id, EngineHealth())

    def version(self, model_id):
        return ""

    def load(self, model_id):
        self.engines[model_id].become(EngineState.READY)

    def unload(self, model_id):
        if self.health(model_id).num_live:
            return False
        self.engines[model_id].become(EngineState.UNLOADED)
        return True

    def pin(self, model_id, *, is_pinned):
        (self.pinned.add if is_pinned else self.pinned.discard)(model_id)

    def is_pinned(self, model_id):
        return model_id in self.pinned

    def add(self, entry):
        self._entries = (*self._entries, entry)
        self.engines[entry.id] = ScriptedEngine(entry.id)
        self.engines[entry.id].become(EngineState.UNLOADED)

    def refusal(self, model_id):
        return self.refusals.get(model_id)

    def start_all(self, listener_factory):
        for model_id, engine in self.engines.items():
            engine.start(listener_factory(model_id))

    def stop_all(self, timeout_s):
        for engine in self.engines.values():
            engine.stop(timeout_s)


def stats(request: EngineRequest, generated: int = 0) -> RequestStats:
    """Figures of a request that took no time."""
    return RequestStats(len(request.tokens), 0, 0, generated, 0.0, 0.0, 0.0, 0.0, 0.0)


def say(
    text: str | bytes,
    *,
    memory: int = 0,
    disk: int = 0,
    trail: Trail | None = None,
    reason: FinishReason = FinishReason.STOP,
    per_step: int = 1,
) -> Script:
    """A script: admit, prefill, say the bytes of a text, finish."""
    data = text.encode() if isinstance(text, str) else text

    def script(request: EngineRequest) -> Iterable[Sequence[Event]]:
        uncached = len(request.tokens) - memory - disk
        yield [Admitted(request.id, memory, disk, trail), Prefilled(request.id, uncached, uncached)]
        said = data[: request.max_tokens]
        yield [Started(request.id, stats(request))]
        for at in range(0, len(said), per_step):
            yield [Token(request.id, byte) for byte in said[at : at + per_step]]
        why = FinishReason.LENGTH if len(said) < len(data) else reason
        yield [Finished(request.id, why, stats(request, len(said)))]

    return script


def silent(request: EngineRequest) -> Iterable[Sequence[Event]]:
    """A script: nothing at all; the test emits."""
    return ()
