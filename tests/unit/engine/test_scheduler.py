"""The scheduler against a naive model: bounds, first come first served, nothing forgotten."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from omlx.engine.scheduler import Limits, Scheduler, Stage

CHUNK = 100


def ready(*lengths: int, max_active: int = 8) -> Scheduler:
    """A scheduler with requests "0", "1", … whose prompts have so many uncached tokens."""
    scheduler = Scheduler(Limits(max_active, 64, CHUNK))
    for i in range(len(lengths)):
        assert scheduler.enqueue(str(i))
    scheduler.admit()
    for i, length in enumerate(lengths):
        scheduler.loaded(str(i), length)
    return scheduler


def test_no_more_than_max_active_are_admitted() -> None:
    scheduler = Scheduler(Limits(2, 10, CHUNK))
    for name in "abcd":
        scheduler.enqueue(name)
    assert scheduler.admit() == ["a", "b"]
    assert scheduler.admit() == []
    scheduler.remove("a")
    assert scheduler.admit() == ["c"]


def test_a_full_queue_refuses_but_free_places_count() -> None:
    scheduler = Scheduler(Limits(2, 1, CHUNK))
    assert [scheduler.enqueue(name) for name in "abcd"] == [True, True, True, False]
    assert scheduler.stage("d") is None
    scheduler.admit()
    assert not scheduler.enqueue("d")
    scheduler.remove("b")
    assert scheduler.enqueue("d")


def test_a_queue_of_nothing_still_serves() -> None:
    scheduler = Scheduler(Limits(1, 0, CHUNK))
    assert [scheduler.enqueue(name) for name in "ab"] == [True, False]
    assert scheduler.admit() == ["a"]
    assert not scheduler.enqueue("c")


@pytest.mark.parametrize(
    ("lengths", "chosen"),
    [
        ([500], 1),
        ([500, 1], 1),
        ([1, 500], 1),
        ([50, 50], 2),
        ([51, 50], 1),
        ([50, 51], 1),
        ([30, 30, 30, 30], 3),
        ([1, 1, 30, 30], 4),
        ([25, 25, 25, 25, 25], 4),
        ([100, 1], 1),
    ],
)
def test_prompts_start_together_while_their_sum_fits_a_chunk(
    lengths: list[int], chosen: int
) -> None:
    scheduler = ready(*lengths)
    assert scheduler.start_prefills() == [str(i) for i in range(chosen)]


def test_nothing_starts_beside_a_running_prefill() -> None:
    scheduler = ready(10, 95)
    assert scheduler.start_prefills() == ["0"]
    assert not scheduler.can_proceed()
    assert scheduler.start_prefills() == []
    scheduler.decoding("0")
    assert scheduler.can_proceed()
    assert scheduler.start_prefills() == ["1"]


def test_a_prefill_that_is_removed_makes_way() -> None:
    scheduler = ready(95, 95)
    scheduler.start_prefills()
    scheduler.remove("0")
    assert scheduler.start_prefills() == ["1"]


def test_restarted_requests_go_before_those_that_wait() -> None:
    scheduler = Scheduler(Limits(3, 5, CHUNK))
    for name in "abcde":
        scheduler.enqueue(name)
    scheduler.admit()
    scheduler.loaded("b", 5)
    scheduler.start_prefills()
    scheduler.loaded("a", 5)
    scheduler.requeue(["a", "b", "c"])
    assert {scheduler.stage(name) for name in "abcde"} == {Stage.WAITING}
    assert scheduler.start_prefills() == []
    assert scheduler.admit() == ["a", "b", "c"]
    for name in "abc":
        scheduler.remove(name)
    assert scheduler.admit() == ["d", "e"]


def test_whoever_was_admitted_first_starts_first() -> None:
    """Whenever the cache has answered, or another request has let go of it."""
    scheduler = Scheduler(Limits(4, 4, CHUNK))
    for name in "abcd":
        scheduler.enqueue(name)
    scheduler.admit()
    scheduler.loaded("c", 95)
    scheduler.loaded("b", 95)
    assert scheduler.start_prefills() == ["b"]
    scheduler.requeue(["a", "b"])
    assert scheduler.admit() == ["a", "b"]
    for name in "bda":
        scheduler.loaded(name, 95)
    started: list[str] = []
    while chosen := scheduler.start_prefills():
        started += chosen
        for name in chosen:
            scheduler.decoding(name)
    assert started == ["c", "d", "a", "b"]


class Model(RuleBasedStateMachine):
    """Random requests, ends and restarts; FIFO holds among those that were never restarted."""

    @initialize(
        max_active=st.integers(1, 4), max_waiting=st.integers(0, 4), chunk=st.integers(1, 40)
    )
    def begin(self, max_active: int, max_waiting: int, chunk: int) -> None:
        self.limits = Limits(max_active, max_waiting, chunk)
        self.scheduler = Scheduler(self.limits)
        self.waiting: list[str] = []
        self.stages: dict[str, Stage] = {}
        self.sizes: dict[str, int] = {}
        self.admitted: list[str] = []
        self.num_made = 0

    def of(self, *stages: Stage) -> list[str]:
        return [name for name, stage in self.stages.items() if stage in stages]

    @property
    def order(self) -> list[str]:
        """Those that are ready, in order of admission."""
        return [name for name in self.admitted if self.stages[name] is Stage.READY]

    def free(self) -> int:
        return self.limits.max_active - (len(self.stages) - len(self.waiting))

    @rule()
    def enqueue(self) -> None:
        name = f"r{self.num_made}"
        self.num_made += 1
        has_room = len(self.waiting) < self.limits.max_waiting + self.free()
        assert self.scheduler.enqueue(name) == has_room
        if has_room:
            self.waiting.append(name)
            self.stages[name] = Stage.WAITING

    @rule()
    def admit(self) -> None:
        free = self.free()
        expected, self.waiting = self.waiting[:free], self.waiting[free:]
        assert self.scheduler.admit() == expected
        self.admitted += expected
        for name in expected:
            self.stages[name] = Stage.LOADING

    @precondition(lambda self: self.of(Stage.LOADING))
    @rule(data=st.data(), size=st.integers(1, 50))
    def load(self, data: st.DataObject, size: int) -> None:
        name = data.draw(st.sampled_from(self.of(Stage.LOADING)))
        self.scheduler.loaded(name, size)
        self.stages[name] = Stage.READY
        self.sizes[name] = size

    @rule()
    def start(self) -> None:
        is_busy = bool(self.of(Stage.PREFILLING))
        order, chosen = self.order, self.scheduler.start_prefills()
        assert chosen == order[: len(chosen)]
        if is_busy or not order:
            assert chosen == []
            return
        assert chosen, "something ready must start"
        total = sum(self.sizes[name] for name in chosen)
        assert len(chosen) == 1 or total <= self.limits.prefill_chunk
        more = order[: len(chosen) + 1]
        if len(more) > len(chosen):
            assert sum(self.sizes[name] for name in more) > self.limits.prefill_chunk
        for name in chosen:
            self.stages[name] = Stage.PREFILLING

    @precondition(lambda self: self.of(Stage.PREFILLING))
    @rule(data=st.data())
    def decode(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.of(Stage.PREFILLING)))
        self.scheduler.decoding(name)
        self.stages[name] = Stage.DECODING

    @precondition(lambda self: self.stages)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.stages)))
        self.scheduler.remove(name)
        self.scheduler.remove(name)  # a second time passes
        del self.stages[name]
        for names in (self.waiting, self.admitted):
            if name in names:
                names.remove(name)

    @rule()
    def restart_all(self) -> None:
        names = [name for name in self.stages if self.stages[name] is not Stage.WAITING]
        self.scheduler.requeue(names)
        self.waiting = [*names, *self.waiting]
        self.admitted = []
        for name in names:
            self.stages[name] = Stage.WAITING

    @invariant()
    def agrees(self) -> None:
        for name, stage in self.stages.items():
            assert self.scheduler.stage(name) is stage
        for stage in Stage:
            assert self.scheduler.count(stage) == len(self.of(stage))
        assert self.free() >= 0
        assert len(self.waiting) <= self.limits.max_waiting + self.free()
        may_admit = bool(self.waiting) and self.free() > 0
        may_start = bool(self.order) and not self.of(Stage.PREFILLING)
        assert self.scheduler.can_proceed() == (may_admit or may_start)

    def teardown(self) -> None:
        """Whatever is left can be brought to its end."""
        for _ in range(len(getattr(self, "stages", ())) * 3):
            for name in self.scheduler.admit():
                self.scheduler.loaded(name, 1)
                self.stages[name] = Stage.READY
            for name in self.of(Stage.LOADING):
                self.scheduler.loaded(name, 1)
                self.stages[name] = Stage.READY
            for name in self.of(Stage.PREFILLING, Stage.DECODING):
                self.scheduler.remove(name)
                del self.stages[name]
            for name in self.scheduler.start_prefills():
                self.stages[name] = Stage.PREFILLING
        assert getattr(self, "stages", {}) == {}


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=50, stateful_step_count=25, deadline=None, database=None)
