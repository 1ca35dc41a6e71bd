"""The dashboard as text at two widths, and the status that it reads."""

import io

import pytest
from rich.console import Console

from omlx.cli.view.dashboard import plain_line, render
from omlx.cli.view.status import Status, Tier, read_status
from omlx.cli.view.text import columns, count
from omlx.engine.request import (
    CacheCounters,
    EngineSnapshot,
    EngineState,
    TierUsage,
)
from omlx.server.admin import ModelView, ServerView, status
from omlx.server.figures import EngineView, TokenTotals, Totals
from tests.golden import same_as_golden

SNAPSHOT = EngineSnapshot(
    waiting=1,
    loading=1,
    prefilling=1,
    decoding=3,
    finished_requests=1200,
    decode_tokens_per_s=45.23,
    prefill_tokens_per_s=800.2,
    memory=TierUsage(8, 2_100_000_000, 4_000_000_000),
    disk=TierUsage(100, 10_000_000_000, 64_000_000_000),
    counters=CacheCounters(
        prompt_tokens=12000,
        cached_memory_tokens=10000,
        cached_disk_tokens=440,
        bad={"checksum": 1, "empty": 0},
    ),
)
BROKEN = EngineSnapshot(cache_note="its layers are not cached in this version")
LONG_ID = "some-organization/A-Model-With-A-Long-Name-80B-A3B-Instruct-4bit"


def answer() -> dict[str, object]:
    """The status that the server itself makes."""
    return status(
        ServerView("0.1.0", 724.0, "http://127.0.0.1:8000", False),
        Totals(
            active=5,
            waiting=1,
            finished=1200,
            failed=0,
            aborted=2,
            ttft_p50_s=0.12,
            ttft_p95_s=1.2,
            turns=1206,
            prompt_tokens=2_894_400,
            cached_tokens=2_518_128,
            tokens={"SmolLM2-135M": TokenTotals(5, 12_000, 10_000, 440, 1_560, 77)},
        ),
        [
            ModelView(EngineView("SmolLM2-135M", EngineState.READY, SNAPSHOT), 8192, None),
            ModelView(EngineView(LONG_ID, EngineState.FAILED, BROKEN), None, "not enough memory"),
        ],
    )


def _drawn(state: Status, width: int) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width, color_system=None, legacy_windows=False)
    console.print(render(state, width=width, notes=["log: /home/me/.omlx/logs/serve.log"]))
    return out.getvalue()


@pytest.mark.parametrize("width", [80, 200])
def test_the_picture_at_two_widths(width: int) -> None:
    text = _drawn(read_status(answer()), width)
    assert all(len(line) <= width for line in text.splitlines())
    same_as_golden(f"view/dashboard-{width}.txt", text)


def test_a_server_that_has_just_begun_can_be_drawn(width: int = 80) -> None:
    same_as_golden("view/dashboard-empty.txt", _drawn(Status(), width))


@pytest.mark.parametrize("width", [1, 20, 40, 119, 120, 500])
def test_any_width_can_be_drawn(width: int) -> None:
    assert all(len(line) <= width for line in _drawn(read_status(answer()), width).splitlines())


def test_markup_in_a_name_is_only_text() -> None:
    told = answer()
    told["models"][0]["id"] = "[red]x[/nope]"  # type: ignore[index]
    assert "[red]x[/nope]" in _drawn(read_status(told), 80)


def test_the_plain_line() -> None:
    assert plain_line(read_status(answer())) == (
        "waiting 1, prefilling 2, decoding 3, done 1200, failed 0, aborted 2; hit rate 87.0 %; "
        "uncached tokens per turn 312; TTFT p50 120 ms, p95 1.2 s; decode 45.2 tok/s; "
        "memory 2.1 GB of 4.0 GB; disk 10.0 GB of 64.0 GB; "
        f"SmolLM2-135M ready, {LONG_ID} failed"
    )
    assert "hit rate -; uncached tokens per turn -; TTFT p50 -" in plain_line(Status())


def test_the_status_as_values() -> None:
    state = read_status(answer())
    first = state.models[0]
    assert (first.waiting, first.prefilling, first.decoding) == (1, 2, 3)
    assert first.hit_rate == pytest.approx(0.87)
    assert first.bad == {"checksum": 1}
    assert state.models[1].hit_rate is None
    assert state.memory == Tier(8, 2_100_000_000, 4_000_000_000)
    assert state.disk == Tier(100, 10_000_000_000, 64_000_000_000)
    assert (state.finished, state.aborted, state.uptime_s) == (1200, 2, 724.0)


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"models": 1, "requests": [], "ttft_s": None, "uptime_s": "x"},
        {"models": [1, {}, {"memory": 1, "counters": {"bad": []}, "waiting": True}]},
        {"uptime_s": float("nan"), "requests": {"finished": float("inf")}},
    ],
)
def test_a_status_of_any_shape_can_be_read_and_drawn(told: dict[str, object]) -> None:
    state = read_status(told)
    assert state.finished == 0
    assert plain_line(state)
    assert _drawn(state, 80)


def test_columns_are_aligned_and_never_cut() -> None:
    rows = [("a", "1", "x" * 200), ("bcd", "22", "")]
    assert columns(rows, right=(1,), indent=" ") == f" a     1  {'x' * 200}\n bcd  22"
    assert columns([]) == ""


def test_counts_have_their_noun() -> None:
    assert [count(n, "block") for n in (0, 1, 1234)] == ["0 blocks", "1 block", "1,234 blocks"]
