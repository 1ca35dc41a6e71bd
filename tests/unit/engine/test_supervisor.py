"""An engine over several processes: what goes on, who is blamed, when it starts again."""

from dataclasses import replace

import pytest

from omlx.engine.lifecycle import Phase
from omlx.engine.request import (
    EngineRequest,
    EngineState,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    SamplingParams,
)
from omlx.engine.supervisor import SupervisedEngine
from omlx.engine.watch import Patience
from omlx.errors import EngineError
from tests.fakes.child import Clock, FakeChild, Heard


class Bench:
    """A supervised engine whose processes are fakes."""

    def __init__(self, *, max_live: int | None = None) -> None:
        self.clock = Clock()
        self.children: list[FakeChild] = []
        self.errors: list[Exception] = []
        self.num_wakes = 0
        self.heard = Heard()
        self.engine = SupervisedEngine(
            "m",
            self.make,
            max_live=max_live,
            patience=Patience(10, 300, 1800),
            clock=self.clock,
            wake=self.wake,
        )
        self.engine.start(self.heard)

    def make(self) -> FakeChild:
        error = self.errors.pop() if self.errors else None
        self.children.append(FakeChild(self.clock, start_error=error))
        return self.children[-1]

    def wake(self) -> None:
        self.num_wakes += 1

    @property
    def child(self) -> FakeChild:
        return self.children[-1]

    def load(self) -> FakeChild:
        self.engine.load()
        self.child.ready()
        self.engine.tick()
        return self.child

    def again(self, code: int = -9) -> FakeChild:
        """The process dies and the next one is ready."""
        self.child.end(code)
        self.pass_time(31)
        self.child.ready()
        self.engine.tick()
        return self.child

    def pass_time(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.clock.now += 1
            self.child.beats()
            self.engine.tick()

    def submit(self, *names: str, max_tokens: int = 50) -> None:
        for name in names:
            self.engine.submit(request(name, max_tokens=max_tokens))


def request(name: str, *, max_tokens: int = 50) -> EngineRequest:
    return EngineRequest(name, tuple(name.encode()), max_tokens)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_requests_wait_for_the_load_and_one_load_is_for_all(bench: Bench) -> None:
    assert bench.engine.state() is EngineState.UNLOADED
    bench.submit("a", "b")
    assert bench.num_wakes == 2 and not bench.children
    bench.engine.load()
    bench.engine.load()
    assert len(bench.children) == 1 and bench.child.ids == ["a", "b"]
    bench.submit("c")
    assert bench.child.ids == ["a", "b", "c"]


def test_a_stream_goes_on_after_a_death_with_what_it_has(bench: Bench) -> None:
    bench.load()
    bench.submit("a")
    bench.child.works_on("a")
    bench.child.tokens("a", 1, 2, 3)
    bench.child.end(-11)
    assert bench.engine.state() is EngineState.STARTING
    bench.engine.tick()
    assert len(bench.children) == 2, "the first start after a death does not wait"
    assert bench.child.submitted == [replace(request("a"), emitted=(1, 2, 3))]
    bench.child.ready()
    bench.child.works_on("a")
    bench.child.tokens("a", 4, 5)
    bench.child.finishes("a")
    assert bench.heard.tokens("a") == [1, 2, 3, 4, 5]
    assert bench.heard.kinds("a") == ["Admitted", "Started", *["Token"] * 5, "Finished"]
    assert bench.engine.health().num_restarts == 1
    assert bench.engine.health().num_live == 0


def test_what_a_dead_process_still_says_is_not_heard(bench: Bench) -> None:
    old = bench.load()
    bench.submit("a")
    old.works_on("a")
    listener = old._listener
    bench.again()
    listener and listener([Failed("a", FailureCode.ENGINE, "late")])
    assert bench.heard.kinds("a") == ["Admitted"]


def test_a_random_request_keeps_its_seed(bench: Bench) -> None:
    bench.load()
    bench.engine.submit(replace(request("a"), sampling=SamplingParams(temperature=1.0)))
    first = bench.child.submitted[0].sampling.seed
    assert first is not None
    bench.child.works_on("a")
    bench.again()
    assert bench.child.submitted[0].sampling.seed == first


def test_a_request_that_ends_its_engine_twice_is_given_up_and_refused_from_then_on(
    bench: Bench,
) -> None:
    bench.load()
    bench.submit("bad")
    bench.child.works_on("bad")
    bench.again()
    bench.child.works_on("bad")
    bench.child.end(-11)
    (end,) = [e for e in bench.heard.of("bad") if isinstance(e, Failed)]
    assert end.code is FailureCode.ENGINE and "-11" in end.message
    bench.pass_time(31)
    bench.child.ready()
    bench.engine.submit(replace(request("bad"), id="again"))
    (refused,) = bench.heard.of("again")
    assert isinstance(refused, Failed) and refused.code is FailureCode.BAD_REQUEST
    assert "ended its engine twice" in refused.message
    assert bench.engine.health().num_quarantined == 1
    bench.submit("good")
    assert bench.child.ids == ["good"]


def test_only_the_guilty_one_of_many_is_given_up(bench: Bench) -> None:
    """Eight rows; one of them ends the engine whenever it runs past its third token."""
    names = [f"r{i}" for i in range(8)]
    bad = "r5"
    bench.load()
    bench.submit(*names)
    bench.child.works_on(*names)
    for name in names:
        bench.child.tokens(name, 1, 2, 3)
    bench.again()
    num_tried = 0
    while True:
        name = bench.child.ids[num_tried]
        assert bench.child.ids[num_tried:] == [name], "one suspect at a time"
        bench.child.works_on(name)
        if name == bad:
            break
        bench.child.tokens(name, 4, 5, 6, 7)
        num_tried += 1
    assert bench.child.ids == names[:6]
    bench.submit("new")
    assert "new" not in bench.child.ids, "a new one joins only when no suspect is on trial"
    bench.again()
    failed = [e.request_id for e in bench.heard.events if isinstance(e, Failed)]
    assert failed == [bad]
    assert sorted(bench.child.ids) == sorted({*names, "new"} - {bad}), "the others all at once"


def test_many_rows_survive_many_deaths_that_are_not_theirs(bench: Bench) -> None:
    names = ["a", "b", "c"]
    bench.load()
    bench.submit(*names, max_tokens=10**6)
    for turn in range(5):
        for name in names:
            assert name in bench.child.ids
            bench.child.works_on(name)
            for _ in range(4 ** (turn + 1)):
                bench.child.tokens(name, 7)
        if turn < 4:
            bench.again()
    assert not [e for e in bench.heard.events if isinstance(e, Failed)]


def test_an_engine_that_fails_inside_is_ended_and_its_requests_go_on(bench: Bench) -> None:
    """It is out of memory, say: every step raises, though the process lives."""
    first = bench.load()
    bench.submit("a", "b")
    first.works_on("a", "b")
    first.tokens("a", 1)
    first.says(
        Failed("a", FailureCode.CRASH, "the engine failed twice on this request"),
        Failed("b", FailureCode.CRASH, "the engine failed twice on this request"),
    )
    bench.engine.tick()
    assert first.num_kills == 1 and bench.child.submitted[0].emitted == (1,)
    assert "Failed" not in [*bench.heard.kinds("a"), *bench.heard.kinds("b")]


def test_rows_that_wait_are_no_suspects(bench: Bench) -> None:
    bench.load()
    bench.submit("a", "b", "c")
    bench.child.works_on("a")
    bench.again()
    assert bench.child.ids == ["a"]
    bench.child.works_on("a")
    bench.again()
    assert [e.request_id for e in bench.heard.events if isinstance(e, Failed)] == ["a"]
    assert bench.child.ids == ["b", "c"]
    bench.child.works_on("b", "c")
    bench.again()
    assert not bench.heard.kinds("b").count("Failed")


def test_an_answer_that_only_lacked_its_end_is_over(bench: Bench) -> None:
    bench.load()
    bench.submit("a", max_tokens=2)
    bench.child.works_on("a")
    bench.child.tokens("a", 1, 2)
    bench.again()
    (end,) = [e for e in bench.heard.of("a") if isinstance(e, Finished)]
    assert end.reason is FinishReason.LENGTH and end.stats.generated_tokens == 2
    assert bench.child.ids == []


def test_aborts_before_during_and_after(bench: Bench) -> None:
    bench.submit("early")
    bench.engine.abort("early")
    assert bench.heard.kinds("early") == ["Finished"]
    bench.load()
    bench.submit("a", "b")
    bench.child.works_on("a", "b")
    bench.engine.abort("a")
    assert bench.child.aborted == ["a"]
    bench.again()
    assert bench.heard.kinds("a")[-1] == "Finished" and bench.child.ids == ["b"]
    bench.engine.abort("b")
    bench.child.finishes("b", reason=FinishReason.ABORT)
    bench.engine.abort("unknown")
    assert bench.engine.health().num_live == 0


def test_starts_wait_longer_and_longer_in_a_storm(bench: Bench) -> None:
    bench.load()
    waits: list[float] = []
    for _ in range(6):
        count, died = len(bench.children), bench.clock.now
        bench.child.end(-9)
        while len(bench.children) == count:
            bench.engine.tick()
            bench.clock.now += 0.25
        waits.append(bench.clock.now - died - 0.25)
        bench.child.ready()
        bench.engine.tick()
    assert waits == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0]
    bench.pass_time(100)
    count = len(bench.children)
    bench.child.end(-9)
    bench.engine.tick()
    assert len(bench.children) == count + 1, "after a while of peace it does not wait"


def test_a_model_that_can_not_be_loaded_fails_its_requests_and_is_tried_again_later(
    bench: Bench,
) -> None:
    bench.submit("a")
    bench.engine.load()
    bench.child.become(EngineState.LOADING)
    bench.child.end(1, error="no weights here")
    assert bench.engine.state() is EngineState.FAILED
    assert bench.engine.error() == "no weights here"
    bench.submit("b")
    messages = [e.message for e in bench.heard.events if isinstance(e, Failed)]
    assert messages == ["no weights here"] * 2
    assert not bench.engine.health().can_retry
    bench.clock.now += 6
    assert bench.engine.health().can_retry
    bench.submit("c")
    assert bench.engine.phase is Phase.UNLOADED and not bench.heard.of("c")
    bench.load()
    assert bench.child.ids == ["c"] and bench.engine.error() is None


def test_an_engine_that_dies_while_loading_is_given_up_after_three_times(bench: Bench) -> None:
    bench.submit("a")
    bench.engine.load()
    for _ in range(2):
        bench.child.end(-9)
        assert bench.engine.state() is EngineState.STARTING
        bench.pass_time(31)
    bench.child.end(-9)
    assert bench.engine.state() is EngineState.FAILED
    (end,) = bench.heard.of("a")
    assert isinstance(end, Failed) and "died while it loaded" in end.message


def test_a_process_that_can_not_be_started_is_an_error_of_its_requests(bench: Bench) -> None:
    bench.errors.append(EngineError("engine.blas names x, which is not a file"))
    bench.submit("a")
    bench.engine.load()
    (end,) = bench.heard.of("a")
    assert isinstance(end, Failed) and "engine.blas" in end.message


def test_a_hung_engine_is_killed_and_its_requests_go_on(bench: Bench) -> None:
    bench.load()
    bench.submit("a")
    bench.child.works_on("a")
    bench.child.is_frozen = True
    for _ in range(12):
        bench.clock.now += 1
        bench.engine.tick()
    first, second = bench.children
    assert first.num_kills == 1 and second.ids == ["a"]


def test_an_unload_waits_for_requests_and_requests_for_an_unload(bench: Bench) -> None:
    child = bench.load()
    child.is_stubborn = True
    bench.submit("a")
    assert not bench.engine.unload(5.0)
    bench.child.finishes("a")
    assert bench.engine.unload(5.0) and child.stops == [5.0]
    assert bench.engine.state() is EngineState.DRAINING
    bench.submit("late")
    bench.engine.load()
    assert child.ids == ["a"] and len(bench.children) == 1
    bench.clock.now += 9
    bench.engine.tick()
    assert child.num_kills == 1 and bench.engine.phase is Phase.UNLOADED
    bench.load()
    assert bench.child.ids == ["late"] and not bench.heard.of("late")


def test_an_unload_ends_a_load(bench: Bench) -> None:
    bench.engine.load()
    bench.child.become(EngineState.LOADING)
    assert bench.engine.unload(60.0)
    assert bench.child.num_kills == 1 and bench.engine.state() is EngineState.UNLOADED


def test_idle_time_counts_from_the_end_of_the_last_request(bench: Bench) -> None:
    assert bench.engine.health().idle_s is None
    bench.load()
    bench.pass_time(3)
    assert bench.engine.health().idle_s == 3.0
    bench.submit("a")
    bench.pass_time(50)
    assert bench.engine.health().idle_s is None
    bench.child.finishes("a")
    bench.pass_time(2)
    assert bench.engine.health().idle_s == 2.0


def test_a_model_that_is_to_leave_takes_nothing_new(bench: Bench) -> None:
    bench.load()
    bench.submit("a")
    bench.engine.take_new(does=False)
    bench.submit("b")
    assert bench.child.ids == ["a"] and bench.engine.health().num_submitted == 1
    bench.child.works_on("a")
    bench.again()
    assert bench.child.ids == ["a"], "what it had goes on"
    bench.child.finishes("a")
    assert bench.engine.unload(1.0)
    bench.engine.take_new(does=True)
    bench.load()
    assert bench.child.ids == ["b"]


def test_stop_ends_everything_and_nothing_starts_again(bench: Bench) -> None:
    bench.load()
    bench.submit("a")
    assert bench.engine.stop(1.0) == 0
    assert bench.engine.state() is EngineState.STOPPED
    bench.submit("b")
    assert bench.heard.kinds("a") == bench.heard.kinds("b") == ["Failed"]
    bench.engine.tick()
    bench.engine.load()
    assert len(bench.children) == 1


@pytest.mark.parametrize("is_loaded", [False, True])
def test_an_engine_that_does_not_read_has_so_many_requests_and_no_more(*, is_loaded: bool) -> None:
    bench = Bench(max_live=3)
    if is_loaded:
        bench.load()
    bench.submit("a", "b", "c", "d")
    (end,) = bench.heard.of("d")
    assert isinstance(end, Failed) and end.code is FailureCode.OVERLOADED
    if not is_loaded:
        bench.load()
    bench.engine.abort("a")
    bench.submit("e")
    assert isinstance(bench.heard.of("e")[-1], Failed), "it has not heard of the abort"
    bench.child.finishes("a", reason=FinishReason.ABORT)
    bench.submit("f")
    assert bench.child.ids == ["a", "b", "c", "f"] and not bench.heard.of("f")
