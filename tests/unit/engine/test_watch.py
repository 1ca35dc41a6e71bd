"""When an engine process counts as hung, and when it only takes long."""

from collections.abc import Callable

import pytest

from omlx.engine.request import EngineState
from omlx.engine.watch import Patience, Watch
from tests.fakes.child import Clock, FakeChild


class Bench:
    """A process that is looked at each second."""

    def __init__(self, state: EngineState = EngineState.READY) -> None:
        self.clock = Clock()
        self.child = FakeChild(self.clock)
        self.child.become(state)
        self.watch = Watch(self.child, Patience(10, 300, 1800), self.clock.now)

    def look(self, seconds: int, each: Callable[[], None] = lambda: None) -> str | None:
        """Time passes; the first verdict."""
        for _ in range(seconds):
            self.clock.now += 1
            each()
            why = self.watch.why_hung(self.clock.now)
            if why is not None:
                return why
        return None


def test_one_that_beats_lives_for_ever() -> None:
    bench = Bench()
    assert bench.look(4000, bench.child.beats) is None
    assert not bench.watch.is_slow(bench.clock.now)


def test_a_stopped_one_is_found_after_the_limit_and_not_before() -> None:
    bench = Bench()
    bench.child.is_frozen = True
    assert bench.look(9) is None
    assert bench.watch.is_slow(bench.clock.now)
    assert bench.look(1) == "its process is stopped for 10 s"


def test_a_silent_one_that_could_run_has_more_time() -> None:
    """It may starve, or its memory may be on the disk."""
    bench = Bench()
    assert bench.look(59) is None
    assert "no sign of life for 60 s" in (bench.look(1) or "")


def test_a_silent_one_that_computes_has_the_time_of_a_step() -> None:
    """A native call that holds the interpreter keeps the beat from coming."""
    bench = Bench()

    def compute() -> None:
        bench.child.cpu += 0.9

    assert bench.look(299, compute) is None
    assert "step takes 300 s" in (bench.look(1, compute) or "")


def test_a_loop_that_makes_no_turn_is_found_though_the_process_beats() -> None:
    bench = Bench()
    started = bench.clock.now

    def beat() -> None:
        bench.child.beats(age_s=bench.clock.now - started)

    assert bench.look(299, beat) is None
    assert bench.watch.step_age_s(bench.clock.now) == 299
    assert bench.watch.is_slow(bench.clock.now)
    assert "step takes 300 s" in (bench.look(1, beat) or "")


@pytest.mark.parametrize("state", [EngineState.STARTING, EngineState.LOADING])
def test_a_load_has_a_limit_of_its_own(state: EngineState) -> None:
    bench = Bench(state)

    def beat() -> None:
        bench.child.beats(age_s=10_000.0)

    assert bench.look(1799, beat) is None
    assert not bench.watch.is_slow(bench.clock.now)
    assert "loading" in (bench.look(1, beat) or "")
    silent = Bench(state)
    assert silent.look(600) is None, "imports may take long where much else runs"
    silent.child.is_frozen = True
    assert "stopped" in (silent.look(1) or "")


def test_one_who_looks_late_was_held_up_itself() -> None:
    """The server was stopped for an hour: what the engine said is still to be read."""
    bench = Bench()
    bench.clock.now += 3600
    assert bench.watch.why_hung(bench.clock.now) is None
    bench.child.beats()
    assert bench.look(100, bench.child.beats) is None
    bench.clock.now += 3600
    assert "no sign of life" in (bench.look(61) or "")
