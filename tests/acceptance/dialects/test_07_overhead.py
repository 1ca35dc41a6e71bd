"""Point 7: what a request costs beside its engine, and the CPU that streams of events take."""

from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import Figure
from tests.acceptance.scripted import run_bench

MOST_CPU = 0.25  # of one core, at 1,000 events a second
NUM_EVENTS = 1000


@pytest.fixture(scope="module")
def result(demo: Path) -> Any:
    words = ["--requests", "200", "--rate", str(NUM_EVENTS), "--seconds", "8"]
    return run_bench("dialects.py", "--model", str(demo), *words, kept_as="dialects-overhead.json")


def test_large_requests(result: Any, figure: Figure) -> None:
    assert {cost["dialect"] for cost in result["requests"]} == {"chat", "messages"}
    for cost in result["requests"]:
        assert cost["requests"] >= 200 and cost["messages"] == 180, cost
        assert 95_000 <= cost["body_bytes"] <= 110_000, cost
        assert 0 < cost["overhead"]["p50_ms"] <= cost["overhead"]["p99_ms"], cost
    figure("everything but the engine, 100 KB and 180 messages: " + _listed(result["requests"]))


def test_streams_leave_the_core_to_others(result: Any, figure: Figure) -> None:
    assert {(run["dialect"], run["streams"]) for run in result["paced"]} == {
        (dialect, streams) for dialect in ("chat", "messages") for streams in (1, 8, 64)
    }
    for run in result["paced"]:
        assert run["engine_events_per_s"] >= 0.97 * NUM_EVENTS, run
        assert run["server_cpu_share_of_a_core"] <= MOST_CPU, run
    for kind in result["calls"]:  # else a parser had nothing to do
        assert kind["has_calls"] is (kind["model"] == "tools"), kind
    shares = [run["server_cpu_share_of_a_core"] for run in result["paced"]]
    figure(f"server at {NUM_EVENTS} events/s, 1 to 64 streams: at most {max(shares):.1%} of a core")


def test_streams_as_fast_as_they_go(result: Any, figure: Figure) -> None:
    for run in result["free"]:
        assert run["engine_events_per_s"] >= 2 * NUM_EVENTS, run
    lowest = {
        num: min(run["engine_events_per_s"] for run in result["free"] if run["streams"] == num)
        for num in (1, 8, 64)
    }
    figure("events/s: " + ", ".join(f"{n} streams {rate:,}" for n, rate in lowest.items()))


def _listed(costs: list[dict[str, Any]]) -> str:
    return ", ".join(
        f"{cost['dialect']} ({cost['model']}, {cost['conversations']}) "
        f"p50 {cost['overhead']['p50_ms']} ms, p99 {cost['overhead']['p99_ms']} ms"
        for cost in costs
    )
