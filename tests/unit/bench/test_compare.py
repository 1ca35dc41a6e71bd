"""Comparisons of fake peers: what is measured, in what order, and what becomes of faults.

Knows nothing about real servers.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from omlx.bench.client import Target
from omlx.bench.compare import compare, turned
from omlx.bench.course import CASES, Plan, make_prompts
from omlx.bench.failure import BenchError
from omlx.bench.pagecache import Dropped
from omlx.bench.recipes import Recipe
from omlx.bench.result import Report, to_json
from omlx.bench.sides import GivenSide, Model, PeerSide, Side
from omlx.bench.step import Step
from omlx.bench.trace import Trace, TraceRequest
from omlx.bench.workload import Words
from tests.unit.bench.test_sides import FAKE

PLAN = Plan(
    head_tokens=60, streams=(1, 2), stream_tokens=12, stream_reply=4, agent_tokens=40, limit_s=20
)
TRACE = Trace(
    "small",
    4,
    8,
    tuple(
        TraceRequest(float(n), 20 + 8 * n, 2, tuple(range(1, 6 + 2 * n))) for n in range(3)
    ),
)  # fmt: skip

Make = Callable[..., PeerSide]


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omlx.bench.sides._SETTLE_S", 0.0)


@pytest.fixture(scope="module")
def words() -> Words:
    return Words(lambda text: len(text.split()))


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    sides: list[PeerSide] = []
    model = Model(tmp_path / "model", "model", 1000, tmp_path)

    def side(name: str, *modes: str, ready_s: float = 20) -> PeerSide:
        recipe = Recipe(
            name=name,
            title=name,
            command=("{python}", "-P", str(FAKE), "{port}", "{home}", *modes),
            ready="/health",
            request_model="bench",
            facts={"restart": "a fake"},
            ready_s=ready_s,
            stop_s=5,
        )
        sides.append(PeerSide(recipe, model, None, 8))
        return sides[-1]

    yield side
    assert all(one._program is None for one in sides), "nothing runs after a comparison"


def ttft_cases(report: Report, side: str) -> set[object]:
    return {measure.case["of"] for measure in report.find("ttft", side=side)}


def test_all_cases_of_all_sides(make: Make, words: Words) -> None:
    plan = Plan(
        head_tokens=60, num_tools=3, streams=(1, 2), stream_tokens=12, stream_reply=4,
        traces=(TRACE,), agent_tokens=40, limit_s=20,
    )  # fmt: skip
    sides = [make("ours", "keeps"), make("theirs")]
    steps: list[Step] = []
    report = compare(sides, plan, words, num_rounds=2, model="m", on_step=steps.append)
    cases = {"cold", "again", "more", "swapped", "restart", "agent", "streams"}
    assert ttft_cases(report, "ours") == ttft_cases(report, "theirs") == cases
    assert all(check.is_passed for check in report.checks), report.checks
    assert all(len(measure.samples) == 2 for measure in report.measures)
    (kept,) = report.find("uncached", side="ours", case={"of": "restart"})
    (lost,) = report.find("uncached", side="theirs", case={"of": "restart"})
    assert max(kept.samples) < 25 and min(lost.samples) > 50
    (again,) = report.find("uncached", side="theirs", case={"of": "again"})
    assert again.samples == (1, 1)
    (ready,) = report.find("ready", side="ours", case={"of": "restart"})
    (started,) = report.find("started", side="ours", case={"of": "restart"})
    assert all(a < b for a, b in zip(ready.samples, started.samples, strict=True))
    (events,) = report.find("tokens per event", side="ours")
    assert events.samples == (1, 1)
    assert report.sides["theirs"]["restart"] == "a fake"
    assert {m.label.concurrency for m in report.find("rate", side="ours")} == {1, 2}
    assert (steps[-1].done, steps[-1].total) == (4, 4)
    assert to_json(report)


def test_the_first_side_is_ahead_above_one(make: Make, words: Words) -> None:
    plan = Plan(("cold", "streams"), head_tokens=60, streams=(1,), stream_tokens=12, limit_s=20)
    sides = [make("fast"), make("slow", "slow=0.005")]
    report = compare(sides, plan, words, num_rounds=2, model="m")
    (rate,) = [one for one in report.ratios if one.name == "rate"]
    assert (rate.side, rate.base) == ("fast", "slow") and rate.interval.ratio > 1
    (cold,) = [one for one in report.ratios if one.name == "ttft" and one.case["of"] == "cold"]
    assert (cold.side, cold.base) == ("slow", "fast") and cold.interval.ratio > 1
    assert cold.interval.pairs == 2


def test_a_side_that_fails_loses_its_round_and_the_others_go_on(make: Make, words: Words) -> None:
    # Its third request of each process is "again"; a new one stands at its first again.
    sides = [make("good"), make("bad", "fails=3"), make("ends", "ends=2")]
    report = compare(sides, PLAN, words, num_rounds=1, model="m")
    assert ttft_cases(report, "bad") == {"cold"}
    assert ttft_cases(report, "ends") == set()
    passed = {check.name: (check.is_passed, check.reason) for check in report.checks}
    assert passed["good answers"][0]
    failed, reason = passed["bad answers"]
    assert failed is False and "round 1, again: bad answers with 500: the fake peer fails" in reason
    assert passed["ends answers"][1].startswith("round 1, cold: ends closed the connection")
    assert ttft_cases(report, "good") >= {"cold", "restart", "streams"}


def test_a_side_that_never_comes_is_told(make: Make, words: Words) -> None:
    sides = [make("good"), make("never", "never", ready_s=0.5), make("dies", "dies")]
    report = compare(sides, Plan(("cold",), head_tokens=40), words, num_rounds=1, model="m")
    reasons = {check.name: check.reason for check in report.checks if not check.is_passed}
    assert "round 1, start: never was not ready after" in reasons["never answers"]
    assert "the fake peer has no weights" in reasons["dies answers"]
    assert not [one for one in report.ratios if "never" in (one.side, one.base)]


def test_ratios_pair_the_rounds_that_both_have(make: Make, words: Words) -> None:
    sides = [Breaking(make("a"), set()), Breaking(make("b"), {1})]
    plan = Plan(("memory",))
    report = compare(sides, plan, words, num_rounds=3, model="m")
    (ratio,) = [one for one in report.ratios if one.name == "memory"]
    assert ratio.interval.pairs == 2
    assert [len(one.samples) for one in report.find("memory")] == [3, 2]


def test_a_slow_side_is_given_up(make: Make, words: Words) -> None:
    plan = Plan(("cold",), head_tokens=40, limit_s=0.4)
    report = compare([make("slow", "slow=0.3")], plan, words, num_rounds=1, model="m")
    (check,) = report.checks
    assert not check.is_passed and "slow" in check.reason


def test_a_side_without_usage_has_no_uncached_tokens(make: Make, words: Words) -> None:
    plan = Plan(("cold", "again"), head_tokens=40)
    report = compare([make("mute", "mute")], plan, words, num_rounds=1, model="m")
    assert report.find("ttft") and not report.find("uncached")
    assert report.checks[0].is_passed


def test_buffering_is_seen(make: Make, words: Words) -> None:
    plan = Plan(("streams",), streams=(1,), stream_tokens=12, stream_reply=8)
    report = compare([make("buffers", "buffers")], plan, words, num_rounds=1, model="m")
    (events,) = report.find("tokens per event")
    assert events.samples == (8,)


def test_no_round_begins_when_the_time_is_over(make: Make, words: Words) -> None:
    plan, sides = Plan(("memory",)), [Breaking(make("a"), set())]
    report = compare(sides, plan, words, num_rounds=5, model="m", is_over=lambda: True)
    assert report.find("memory")[0].samples == (7.0,)
    assert report.notes == ("1 of 5 rounds: the time was over",)


@pytest.mark.parametrize("num_sides", [1, 2, 3, 5])
def test_rounds_take_turns(num_sides: int) -> None:
    sides: list[Side] = [GivenSide(str(n), "http://127.0.0.1:1", "m") for n in range(num_sides)]
    orders = [[side.name for side in turned(sides, idx)] for idx in range(2 * num_sides)]
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    assert {order[0] for order in orders} == {side.name for side in sides}
    if num_sides > 2:
        assert all(a != b for a, b in pairwise(orders))


def test_prompts_are_the_same_for_a_seed_and_share_nothing_between_rounds(words: Words) -> None:
    plan = Plan(head_tokens=60, num_tools=2, traces=(TRACE,), agent_tokens=40)
    first, again = make_prompts(plan, words, 0), make_prompts(plan, words, 0)
    assert first == again
    other = make_prompts(plan, words, 1)
    assert first.head.split()[0] != other.head.split()[0]
    texts = [text for stream in first.streams.values() for text in stream]
    assert len({text.split()[0] for text in texts}) == len(texts)
    assert max(turn.num_prompt for turn in first.agents[0]) <= plan.agent_tokens


def test_cases_are_in_the_order_in_which_they_run() -> None:
    assert CASES.index("cold") < CASES.index("again") < CASES.index("restart")


@dataclass
class Breaking:
    """A fake peer that does not start in some of its rounds."""

    peer: PeerSide
    broken: set[int]
    can_restart: bool = False
    rounds: int = -1

    @property
    def name(self) -> str:
        return self.peer.name

    def start(self) -> float:
        self.rounds += 1
        if self.rounds in self.broken:
            raise BenchError("it has no wish to")
        return self.peer.start()

    def settle(self) -> None:
        """Nothing is put off."""

    def restart(self) -> tuple[float, Dropped]:
        raise AssertionError

    def target(self) -> Target:
        return self.peer.target()

    def memory_bytes(self) -> int:
        return 7

    def facts(self) -> dict[str, object]:
        return {}

    def close(self) -> None:
        self.peer.close()
