"""Point 2: the scheduler's properties, on long random runs."""

import random

from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from omlx.engine.admission import Sizes
from omlx.engine.request import RequestClass
from omlx.engine.scheduler import Limits
from tests.acceptance.conftest import Figure
from tests.fakes.sim import Sim

JOBS = st.tuples(
    st.integers(0, 20),
    st.integers(1, 300),
    st.integers(1, 40),
    st.sampled_from(RequestClass),
    st.sampled_from("xyz"),
)


def test_everything_ends_in_order_and_within_its_memory(figure: Figure) -> None:
    totals = {"runs": 0, "requests": 0, "preemptions": 0}

    @settings(max_examples=1000, phases=[Phase.generate], deadline=None, database=None)
    @given(jobs=st.lists(JOBS, max_size=60), slots=st.integers(1, 5), rows=st.integers(1, 5))
    def check(jobs: list[tuple[int, int, int, RequestClass, str]], slots: int, rows: int) -> None:
        limit = 1000 + rows * (10 + 2 * 768)
        sizes = Sizes(weights=1000, token=2, row=10)
        sim = Sim(Limits(slots, 64, ageing_s=50.0), sizes=sizes, limit_bytes=limit)
        for pause, *job in jobs:
            sim.submit(*job)
            for _ in range(pause):
                sim.tick()
                assert len(sim.in_work()) <= slots
                assert sim.held_bytes() <= limit
        sim.until_idle()
        first: dict[tuple[RequestClass, str], list[int]] = {}
        for job in sim.order:
            if not job.num_preemptions:
                first.setdefault((job.request_class, job.tenant), []).append(int(job.id[1:]))
        assert all(numbers == sorted(numbers) for numbers in first.values())
        totals["runs"] += 1
        totals["requests"] += len(sim.jobs)
        totals["preemptions"] += sum(job.num_preemptions for job in sim.jobs.values())

    check()
    assert totals["preemptions"] > 0
    figure(
        f"{totals['runs']} random runs: all {totals['requests']} accepted requests ended, "
        f"{totals['preemptions']} preemptions; order within class and tenant kept; memory never "
        "over the ceiling"
    )


def test_shares(figure: Figure) -> None:
    worst = 0.0
    for seed in range(40):
        rng = random.Random(seed)
        names = [f"t{i}" for i in range(rng.randint(2, 6))]
        backlog = {name: rng.randint(4, 10) for name in names}
        longest = {name: rng.choice((30, 300, 1000)) for name in names}
        sim = Sim(Limits(rng.randint(1, 4), 64), room=256)
        while sum(sim.served.values()) < 40_000 * len(names):
            for name in names:
                while sim.waiting(name) < backlog[name]:
                    assert sim.submit(
                        rng.randint(1, longest[name]), rng.randint(1, 60), tenant=name
                    )
            sim.tick()
        fair = sum(sim.served.values()) / len(names)
        worst = max(worst, *(abs(sim.served[name] / fair - 1) for name in names))
    figure(f"shares of 2 to 6 tenants over 40 runs: at most {worst:.1%} from equal")
    assert worst <= 0.10


def test_starvation(figure: Figure) -> None:
    longest = 0.0
    for seed in range(20):
        rng = random.Random(seed)
        sim = Sim(Limits(2, 64, ageing_s=30.0))
        poor = [sim.submit(100, 5, word, "poor") for word in RequestClass]
        sim.scheduler._shares.charge("poor", 10**9)
        for i in range(3000):
            while len(sim.live) < 12:
                sim.submit(rng.randint(1, 80), 5, RequestClass.INTERACTIVE, f"x{i}")
            sim.tick()
            if all(job is not None and job.ended is not None for job in poor):
                break
        ends = [job.ended for job in poor if job is not None and job.ended is not None]
        assert len(ends) == 3
        longest = max(longest, *ends)
    figure(
        "endless interactive requests of new tenants: those of a tenant in debt, of each class, "
        f"ended after at most {longest:.0f} steps"
    )
