"""The scheduler: bounds, order, classes, shares, and that everything accepted ends."""

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from omlx.engine.request import RequestClass
from omlx.engine.scheduler import Limits, Scheduler
from omlx.engine.turns import Stage
from tests.fakes.sim import Sim

CHUNK = 100
INTERACTIVE, NORMAL, BATCH = RequestClass.INTERACTIVE, RequestClass.NORMAL, RequestClass.BATCH


class Clock:
    """A clock that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def make(max_active: int = 8, max_waiting: int = 64) -> Scheduler:
    return Scheduler(Limits(max_active, max_waiting), Clock())


def ready(*lengths: int, classes: str = "") -> Scheduler:
    """A scheduler with requests "0", "1", … whose prompts have so many uncached tokens to compute
    before the last one."""
    scheduler = make()
    for i in range(len(lengths)):
        word = {"i": INTERACTIVE, "b": BATCH}.get(classes[i : i + 1], NORMAL)
        assert scheduler.enqueue(str(i), word)
    scheduler.admit()
    for i, length in enumerate(lengths):
        scheduler.loaded(str(i), length + 1)
    return scheduler


def test_no_more_than_max_active_are_admitted() -> None:
    scheduler = make(2, 10)
    for name in "abcd":
        scheduler.enqueue(name)
    assert scheduler.admit() == ["a", "b"]
    assert scheduler.admit() == []
    scheduler.remove("a")
    assert scheduler.admit() == ["c"]


def test_a_full_queue_refuses_but_free_places_count() -> None:
    scheduler = make(2, 1)
    assert [scheduler.enqueue(name) for name in "abcd"] == [True, True, True, False]
    assert scheduler.stage("d") is None
    scheduler.admit()
    assert not scheduler.enqueue("d")
    scheduler.remove("b")
    assert scheduler.enqueue("d")


def test_a_queue_of_nothing_still_serves() -> None:
    scheduler = make(1, 0)
    assert [scheduler.enqueue(name) for name in "ab"] == [True, False]
    assert scheduler.admit() == ["a"]
    assert not scheduler.enqueue("c")


def test_programs_with_time_never_fill_the_queue() -> None:
    scheduler = make(1, 8)
    taken = sum(scheduler.enqueue(f"b{i}", BATCH) for i in range(20))
    assert taken == 7
    assert [scheduler.enqueue(f"n{i}", NORMAL) for i in range(3)] == [True, True, False]


# ---- classes and ageing


def test_the_more_urgent_class_comes_first_and_then_who_came_first() -> None:
    scheduler = make(1)
    names = {"n1": NORMAL, "b1": BATCH, "i1": INTERACTIVE, "n2": NORMAL, "i2": INTERACTIVE}
    for name, request_class in names.items():
        scheduler.enqueue(name, request_class)
    found: list[str] = []
    while admitted := scheduler.admit():
        found += admitted
        scheduler.remove(admitted[0])
    assert found == ["i1", "i2", "n1", "n2", "b1"]


def test_waiting_makes_a_request_more_urgent() -> None:
    clock = Clock()
    scheduler = Scheduler(Limits(1, 10, ageing_s=30.0), clock)
    scheduler.enqueue("b", BATCH)
    clock.now = 31.0
    scheduler.enqueue("n", NORMAL)
    assert scheduler.admit() == ["b"], "as urgent as normal, and earlier"
    scheduler.enqueue("b2", BATCH)
    scheduler.remove("b")
    clock.now = 60.0
    scheduler.enqueue("i", INTERACTIVE)
    assert scheduler.admit() == ["i"], "nobody has waited long enough for that"


def test_a_leader_is_as_urgent_as_who_waits_for_it() -> None:
    scheduler = make(2)
    scheduler.enqueue("leader", BATCH)
    scheduler.enqueue("other", NORMAL)
    scheduler.admit()
    scheduler.enqueue("waiter", INTERACTIVE)
    for name in ("leader", "other"):
        scheduler.loaded(name, 500)
    scheduler.inherit("leader", of="waiter")
    assert scheduler.choose(CHUNK) == ["leader"]
    assert scheduler.victim() == "other"
    scheduler.inherit("gone", of="waiter")


# ---- prefill


@pytest.mark.parametrize(
    ("lengths", "chosen"),
    [
        ([500], "0"),
        ([500, 1], "1"),
        ([1, 500], "0"),
        ([50, 50], "01"),
        ([51, 50], "0"),
        ([64, 63, 63], "1"),
        ([30, 30, 30, 30], "012"),
        ([1, 1, 30, 30], "0123"),
        ([25, 25, 25, 25, 25], "0123"),
        ([100, 0], "10"),
        ([0, 0, 100], "012"),
        ([100, 1], "1"),
    ],
)
def test_prompts_compute_together_while_their_sum_fits(lengths: list[int], chosen: str) -> None:
    assert ready(*lengths).choose(CHUNK) == [*chosen]


def test_short_prompts_pass_a_long_one_that_gets_half_of_the_steps() -> None:
    scheduler = ready(5000, *[150] * 4)
    left = {"0": 5000, **{str(i): 150 for i in range(1, 5)}}
    turns: list[str] = []
    for _ in range(16):
        (name,) = scheduler.choose(CHUNK)
        turns.append(name)
        left[name] -= min(left[name], CHUNK)
        scheduler.computed({name: left[name]})
        if not left[name]:
            scheduler.decoding(name)
    assert turns.count("0") == 8
    assert turns[:4] == ["1", "0", "1", "0"]
    assert all(left[str(i)] == 0 for i in range(1, 5))


def test_an_urgent_prompt_goes_first_but_not_always() -> None:
    scheduler = ready(5000, 5000, classes="bi")
    turns = [scheduler.choose(CHUNK)[0] for _ in range(8)]
    assert turns == ["1", "1", "1", "0"] * 2


def test_what_has_nothing_left_to_launch_takes_no_room() -> None:
    scheduler = ready(95, 500)
    assert scheduler.choose(CHUNK) == ["0"]
    scheduler.computed({"0": 0})
    assert scheduler.choose(CHUNK) == ["1"]
    scheduler.computed({"1": 400})
    scheduler.remove("1")
    assert scheduler.choose(CHUNK) == []


# ---- preemption


def running(scheduler: Scheduler, *names: str) -> None:
    for name in names:
        scheduler.loaded(name, 1)
        scheduler.choose(CHUNK)
        scheduler.decoding(name)


def test_the_least_urgent_and_last_row_leaves_for_a_more_urgent_request() -> None:
    scheduler = make(3)
    for name, request_class in {"n": NORMAL, "b1": BATCH, "b2": BATCH}.items():
        scheduler.enqueue(name, request_class)
    running(scheduler, *scheduler.admit())
    assert scheduler.victim() is None, "nobody waits"
    scheduler.enqueue("b3", BATCH)
    assert scheduler.victim() is None, "nobody waits that is more urgent"
    scheduler.enqueue("n2", NORMAL)
    assert scheduler.victim() == "b2"
    scheduler.preempt("b2", 7)
    assert scheduler.stage("b2") is Stage.PREEMPTED
    assert scheduler.victim() is None, "there is a place now"
    assert scheduler.admit() == ["n2"]
    scheduler.enqueue("i", INTERACTIVE)
    assert scheduler.victim() == "b1"
    scheduler.remove("i")
    scheduler.remove("n")
    assert scheduler.admit() == ["b2"], "back before the one that came later"


def test_what_loads_is_not_preempted_and_nobody_is_for_ever() -> None:
    scheduler = make(1)
    scheduler.enqueue("b", BATCH)
    scheduler.admit()
    count = 0
    for i in range(9):
        scheduler.enqueue(f"i{i}", INTERACTIVE)
        assert scheduler.victim() is None
        running(scheduler, "b")
        if scheduler.victim() is None:
            break
        scheduler.preempt("b", 3)
        count += 1
        assert scheduler.admit() == [f"i{i}"]
        scheduler.remove(f"i{i}")
        assert scheduler.admit() == ["b"]
    assert count == 4


def test_one_that_has_grown_old_in_the_queue_keeps_its_place() -> None:
    clock = Clock()
    scheduler = Scheduler(Limits(1, 10, ageing_s=30.0), clock)
    scheduler.enqueue("b", BATCH)
    clock.now = 61.0
    running(scheduler, *scheduler.admit())
    scheduler.enqueue("i", INTERACTIVE)
    assert scheduler.victim() is None


def test_restarted_requests_keep_their_places() -> None:
    scheduler = make(3, 5)
    for name in "abcde":
        scheduler.enqueue(name)
    scheduler.admit()
    scheduler.loaded("b", 5)
    scheduler.choose(CHUNK)
    scheduler.loaded("a", 5)
    scheduler.requeue(["c", "a", "b"])
    assert {scheduler.stage(name) for name in "abcde"} == {Stage.WAITING}
    assert scheduler.choose(CHUNK) == []
    assert scheduler.admit() == ["a", "b", "c"]
    for name in "abc":
        scheduler.remove(name)
    assert scheduler.admit() == ["d", "e"]


# ---- memory


def test_one_that_has_no_memory_yet_holds_up_those_behind_it() -> None:
    scheduler = Scheduler(Limits(8, 8), Clock(), lambda lengths: sum(lengths) <= 100)
    for name, num_tokens in {"a": 60, "b": 60, "c": 10}.items():
        scheduler.enqueue(name, num_tokens=num_tokens)
    assert scheduler.admit() == ["a"]
    assert not scheduler.can_proceed()
    scheduler.remove("a")
    assert scheduler.admit() == ["b", "c"]


def test_what_is_alone_is_always_admitted() -> None:
    scheduler = Scheduler(Limits(8, 8), Clock(), lambda _: False)
    for name in "ab":
        scheduler.enqueue(name)
    assert scheduler.admit() == ["a"]
    scheduler.remove("a")
    assert scheduler.admit() == ["b"]


def test_a_lower_class_leaves_for_memory_and_the_only_row_never_does() -> None:
    scheduler = Scheduler(Limits(8, 8), Clock(), lambda lengths: len(lengths) < 2)
    scheduler.enqueue("b", BATCH)
    running(scheduler, *scheduler.admit())
    scheduler.enqueue("i", INTERACTIVE)
    assert scheduler.admit() == []
    assert scheduler.victim() == "b"
    assert scheduler.last_come() is None
    scheduler.preempt("b", 1)
    assert scheduler.admit() == ["i"]


# ---- properties

QUICK = (Phase.explicit, Phase.generate)  # a long run can't be made shorter
WORDS = st.sampled_from(RequestClass)
JOBS = st.tuples(st.integers(1, 300), st.integers(1, 30), WORDS, st.sampled_from("xyz"))


@settings(max_examples=40, phases=QUICK, deadline=None, database=None)
@given(
    jobs=st.lists(st.tuples(st.integers(0, 20), JOBS), max_size=40),
    max_active=st.integers(1, 4),
    rows=st.integers(1, 4),
)
def test_everything_accepted_ends_within_its_memory(
    jobs: list[tuple[int, tuple[int, int, RequestClass, str]]], max_active: int, rows: int
) -> None:
    """No starvation; order within a class and tenant; never more rows than memory."""
    from omlx.engine.admission import Sizes

    sizes = Sizes(weights=1000, token=2, row=10)
    limit = 1000 + rows * (10 + 2 * 768)
    sim = Sim(Limits(max_active, 64, ageing_s=50.0), sizes=sizes, limit_bytes=limit)
    for pause, job in jobs:
        sim.submit(*job)
        for _ in range(pause):
            sim.tick()
            assert len(sim.in_work()) <= max_active
            assert sim.held_bytes() <= limit
    sim.until_idle()
    first: dict[tuple[RequestClass, str], list[int]] = {}
    for job in sim.order:
        if not job.num_preemptions:
            first.setdefault((job.request_class, job.tenant), []).append(int(job.id[1:]))
    for numbers in first.values():
        assert numbers == sorted(numbers)


@settings(max_examples=8, phases=QUICK, deadline=None, database=None)
@given(
    backlog=st.dictionaries(st.sampled_from("wxyz"), st.integers(5, 12), min_size=2),
    sizes=st.lists(st.tuples(st.integers(1, 300), st.integers(1, 40)), min_size=4, max_size=8),
    max_active=st.integers(1, 4),
)
def test_tenants_share_tokens_within_a_tenth(
    backlog: dict[str, int], sizes: list[tuple[int, int]], max_active: int
) -> None:
    """However many requests each has waiting, and however long they are."""
    sim = Sim(Limits(max_active, 64), room=256)
    names = sorted(backlog)
    num = 0
    while sum(sim.served.values()) < 30_000 * len(names):
        for i, tenant in enumerate(names):
            while sim.waiting(tenant) < backlog[tenant]:
                prompt, answer = sizes[(num * (i + 1)) % len(sizes)]
                num += 1
                assert sim.submit(prompt, answer, tenant=tenant) is not None
        sim.tick()
    fair = sum(sim.served.values()) / len(names)
    for tenant in names:
        assert abs(sim.served[tenant] - fair) <= 0.1 * fair, sim.served


@pytest.mark.parametrize("tenant", ["same", "new"])
@pytest.mark.parametrize("request_class", [NORMAL, BATCH])
def test_nobody_starves_behind_endless_urgent_requests(
    request_class: RequestClass, tenant: str
) -> None:
    """Also where each of them is a tenant of its own, who has had nothing yet."""
    sim = Sim(Limits(2, 16, ageing_s=30.0))
    for _ in range(8):
        sim.submit(40, 5, INTERACTIVE, "x0")
    job = sim.submit(100, 5, request_class, "poor")
    assert job is not None
    sim.scheduler._shares.charge("poor", 10**9)
    for i in range(2000):
        while len(sim.live) < 10:
            sim.submit(40, 5, INTERACTIVE, "x0" if tenant == "same" else f"x{i}")
        sim.tick()
        if job.ended is not None:
            break
    assert job.ended is not None and job.ended < 400


def test_an_idle_tenant_saves_nothing_up_and_keeps_its_debt() -> None:
    sim = Sim(Limits(1, 64))
    for _ in range(20):
        sim.submit(50, 1, tenant="busy")
    for _ in range(10):
        sim.tick()
    for _ in range(8):
        sim.submit(50, 1, tenant="late")
    before = sim.served["busy"]
    for _ in range(12):
        sim.tick()
    assert sim.served["late"] <= sim.served["busy"] - before + 100


class Model(RuleBasedStateMachine):
    """Random requests, ends and restarts of one class and tenant: first come first served."""

    @initialize(max_active=st.integers(1, 4), max_waiting=st.integers(0, 4))
    def begin(self, max_active: int, max_waiting: int) -> None:
        self.limits = Limits(max_active, max_waiting)
        self.scheduler = Scheduler(self.limits, Clock())
        self.waiting: list[str] = []
        self.stages: dict[str, Stage] = {}
        self.left: dict[str, int] = {}
        self.num_made = 0

    def of(self, *stages: Stage) -> list[str]:
        return [name for name, stage in self.stages.items() if stage in stages]

    def free(self) -> int:
        return self.limits.max_active - (len(self.stages) - len(self.waiting))

    @rule()
    def enqueue(self) -> None:
        name = f"{self.num_made:04}"
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
        for name in expected:
            self.stages[name] = Stage.LOADING

    @precondition(lambda self: self.of(Stage.LOADING))
    @rule(data=st.data(), size=st.integers(0, 50))
    def load(self, data: st.DataObject, size: int) -> None:
        name = data.draw(st.sampled_from(self.of(Stage.LOADING)))
        self.scheduler.loaded(name, size + 1)
        self.stages[name] = Stage.READY
        self.left[name] = size

    @rule(room=st.integers(1, 40))
    def compute(self, room: int) -> None:
        could = [n for n in self.of(Stage.PREFILLING) if self.left[n]] + self.of(Stage.READY)
        chosen = self.scheduler.choose(room)
        assert set(chosen) <= set(could) and len(set(chosen)) == len(chosen)
        assert bool(chosen) == bool(could), "something must compute"
        large = [self.left[n] for n in chosen if self.left[n]]
        assert len(large) < 2 or sum(large) <= room
        for name in chosen:
            self.stages[name] = Stage.PREFILLING
            self.left[name] -= min(room, self.left[name])
            self.scheduler.computed({name: self.left[name]})

    @precondition(lambda self: self.of(Stage.PREFILLING))
    @rule(data=st.data())
    def decode(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.of(Stage.PREFILLING)))
        self.scheduler.decoding(name)
        self.scheduler.decoded(name)
        self.stages[name] = Stage.DECODING

    @precondition(lambda self: self.stages)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.stages)))
        self.scheduler.remove(name)
        self.scheduler.remove(name)  # a second time passes
        del self.stages[name]
        if name in self.waiting:
            self.waiting.remove(name)

    @rule()
    def restart_all(self) -> None:
        names = [name for name in self.stages if self.stages[name] is not Stage.WAITING]
        self.scheduler.requeue(names)
        self.waiting = sorted([*names, *self.waiting])
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
        assert self.scheduler.can_proceed() == (may_admit or bool(self.of(Stage.READY)))
        assert self.scheduler.victim() is None


TestModel = Model.TestCase
TestModel.settings = settings(max_examples=50, stateful_step_count=25, deadline=None, database=None)
