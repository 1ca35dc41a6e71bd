"""The engine on its own thread: states, early requests, and an end for every request."""

import queue
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from omlx.engine.build import Assembly
from omlx.engine.config import EngineConfig
from omlx.engine.constrain import Vocabulary
from omlx.engine.engine import LocalEngine
from omlx.engine.grammars import Grammars
from omlx.engine.request import (
    EngineRequest,
    EngineState,
    Event,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    Token,
)
from omlx.errors import ModelError
from tests.fakes.batch import solo
from tests.fakes.loop import NUM_VOCAB, LoopRig

CONFIG = EngineConfig("tiny", "")
unhandled = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnhandledThreadExceptionWarning"
)  # the engine thread reports an error of its own by raising it


class Bench:
    """An engine over a fake batch; `gate` holds it in loading, `prepare` sees the rig first."""

    def __init__(self, prepare: Callable[[LoopRig], None] = lambda rig: None) -> None:
        self.prepare = prepare
        self.gate = threading.Event()
        self.gate.set()
        self.load_error: Exception | None = None
        self.states: list[EngineState] = []
        self.events: queue.SimpleQueue[Sequence[Event]] = queue.SimpleQueue()
        self.engine = LocalEngine(CONFIG, on_change=self._changed, build=self._build)

    def _changed(self) -> None:
        state = self.engine.state()
        if self.states[-1:] != [state]:
            self.states.append(state)

    def _build(self, config: EngineConfig, *, emit: Any, publish: Any) -> Assembly:
        assert self.gate.wait(10)
        if self.load_error is not None:
            raise self.load_error
        rig = LoopRig(emit=emit, publish=publish)
        self.prepare(rig)
        grammars = Grammars(Vocabulary(Path("/none"), NUM_VOCAB), tell=lambda event: emit([event]))
        return Assembly(
            rig.inbox, rig.loop, rig.batch, None, None, rig.admission, rig.buffers, grammars,
            lambda: rig.gauge.publish(rig.scheduler),
        )  # fmt: skip

    def start(self) -> None:
        self.engine.start(self.events.put)

    def ends(self, count: int) -> dict[str, Event]:
        """The last events of the next `count` requests that end."""
        ends: dict[str, Event] = {}
        while len(ends) < count:
            for event in self.events.get(timeout=10):
                if isinstance(event, Finished | Failed):
                    assert event.request_id not in ends
                    ends[event.request_id] = event
        return ends

    def no_more(self) -> None:
        assert all(not isinstance(e, Finished | Failed) for e in self.left())

    def left(self) -> list[Event]:
        events: list[Event] = []
        while not self.events.empty():
            events += self.events.get()
        return events


def request(name: str, max_tokens: int = 3) -> EngineRequest:
    return EngineRequest(name, (1, 2, 3), max_tokens)


def test_a_life() -> None:
    bench = Bench()
    assert bench.engine.state() is EngineState.STARTING
    assert bench.engine.snapshot() is None
    bench.start()
    bench.engine.submit(request("a"))
    assert isinstance(bench.ends(1)["a"], Finished)
    assert bench.engine.stop(1.0) == 0
    assert bench.engine.snapshot() is not None
    assert bench.states == [
        EngineState.LOADING,
        EngineState.READY,
        EngineState.DRAINING,
        EngineState.STOPPED,
    ]
    assert bench.engine.error() is None


def test_requests_wait_for_the_model() -> None:
    bench = Bench()
    bench.gate.clear()
    bench.start()
    assert not bench.engine.is_awaited()
    bench.engine.submit(request("a"))
    bench.engine.submit(request("b"))
    bench.engine.abort("b")
    assert bench.events.empty() and bench.engine.is_awaited()
    bench.gate.set()
    ends = bench.ends(2)
    assert not bench.engine.is_awaited()
    bench.engine.stop(1.0)
    assert isinstance(ends["a"], Finished) and ends["a"].reason is FinishReason.LENGTH
    assert isinstance(ends["b"], Finished) and ends["b"].reason is FinishReason.ABORT


def test_a_model_that_can_not_be_loaded_fails_what_waits_and_what_comes() -> None:
    bench = Bench()
    bench.gate.clear()
    bench.load_error = ModelError("no weights here", hint="pull the model")
    bench.start()
    bench.engine.submit(request("a"))
    bench.gate.set()
    assert isinstance(bench.ends(1)["a"], Failed)
    assert bench.engine.stop(1.0) == 1
    bench.engine.submit(request("b"))
    late = bench.ends(1)["b"]
    assert isinstance(late, Failed) and late.code is FailureCode.ENGINE
    assert late.message == bench.engine.error() == "no weights here (hint: pull the model)"
    assert bench.states == [EngineState.LOADING, EngineState.FAILED]


@unhandled
def test_an_error_of_its_own_while_loading_fails_what_waits() -> None:
    bench = Bench()
    bench.gate.clear()
    bench.load_error = ZeroDivisionError()
    bench.start()
    bench.engine.submit(request("a"))
    bench.gate.set()
    end = bench.ends(1)["a"]
    assert isinstance(end, Failed) and end.code is FailureCode.ENGINE
    assert bench.engine.stop(1.0) == 1
    assert bench.engine.state() is EngineState.FAILED


@unhandled
def test_an_engine_thread_that_dies_fails_what_runs() -> None:
    """The batch fails and can't be built anew: nothing is left hanging."""

    def prepare(rig: LoopRig) -> None:
        def no_reset() -> None:
            raise RuntimeError("no device")

        rig.batch.failures.add(5)
        rig.batch.reset = no_reset

    bench = Bench(prepare)
    bench.gate.clear()
    bench.start()
    for name in "abcd":
        bench.engine.submit(request(name, 50))
    bench.gate.set()
    ends = bench.ends(4)
    assert {e.code for e in ends.values() if isinstance(e, Failed)} == {FailureCode.ENGINE}
    assert len(ends) == 4
    assert bench.engine.stop(1.0) == 1
    bench.no_more()


def test_stop_aborts_what_runs_and_refuses_what_comes_later() -> None:
    bench = Bench()
    bench.start()
    bench.engine.submit(request("a", 10_000))
    assert bench.events.get(timeout=10)
    assert bench.engine.stop(1.0) == 0
    end = bench.ends(1)["a"]
    assert isinstance(end, Finished) and end.reason is FinishReason.ABORT
    bench.engine.submit(request("b"))
    assert isinstance(bench.ends(1)["b"], Failed)
    assert bench.engine.stop(1.0) == 0


def test_a_request_that_comes_while_it_drains_fails_once() -> None:
    def prepare(rig: LoopRig) -> None:
        rig.batch.on_close = lambda: bench.engine.submit(request("late"))

    bench = Bench(prepare)
    bench.start()
    assert bench.engine.stop(1.0) == 0
    end = bench.ends(1)["late"]
    assert isinstance(end, Failed) and end.code is FailureCode.ENGINE
    bench.no_more()


def test_requests_from_many_threads_all_end() -> None:
    bench = Bench()
    bench.start()
    names = [[f"{i}.{j}" for j in range(8)] for i in range(4)]
    threads = [
        threading.Thread(target=lambda mine=mine: [bench.engine.submit(request(n)) for n in mine])
        for mine in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seen: dict[str, list[int]] = {n: [] for mine in names for n in mine}
    codes: list[FailureCode] = []
    num_left = len(seen)
    while num_left:
        for event in bench.events.get(timeout=10):
            if isinstance(event, Token):
                seen[event.request_id].append(event.token)
            elif isinstance(event, Finished):
                assert seen[event.request_id] == solo((1, 2, 3), 3, NUM_VOCAB)[0]
                num_left -= 1
            elif isinstance(event, Failed):
                codes.append(event.code)
                num_left -= 1
    assert bench.engine.stop(1.0) == 0
    assert set(codes) <= {FailureCode.OVERLOADED}
