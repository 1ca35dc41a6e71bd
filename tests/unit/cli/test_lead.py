"""The three figures that lead, their verdicts, and that the docs give the same limits."""

import re
from pathlib import Path

import pytest
import yaml

from omlx.cli.view import lead
from omlx.cli.view.lead import Verdict, figures, lead_json, lead_text
from omlx.cli.view.palette import ACCENT, BAD, GOOD, WATCH
from omlx.cli.view.status import Status, read_status
from omlx.units import format_size
from tests.unit.cli.test_top import told

DOCS = Path(__file__).parents[3] / "docs"
GUIDE, ALERTS = DOCS / "guide" / "views.md", DOCS / "monitoring" / "alerts.yml"


def of(**fields: object) -> Status:
    return read_status({**told(), **fields})


def clients(*means: float) -> dict[str, object]:
    return {
        "clients": [
            {"client": f"c{number}", "turns": 10, "uncached_mean": mean}
            for number, mean in enumerate(means)
        ]
    }


@pytest.mark.parametrize(
    ("mean", "verdict"),
    [(0, "good"), (4_000, "good"), (4_001, "watch"), (10_000, "watch"), (10_001, "bad")],
)
def test_uncached_tokens_per_turn(mean: float, verdict: str) -> None:
    uncached, _, _ = figures(of(last_day=clients(mean)))
    assert uncached.verdict is Verdict(verdict)
    assert uncached.text == f"c0 {mean:,} {verdict}"


def test_the_client_that_wants_attention_comes_first() -> None:
    status = of(last_day=clients(5, 20_000, 5_000, 7, 1, 2, 3))
    uncached, _, _ = figures(status)
    assert uncached.verdict is Verdict.BAD
    assert uncached.text == (
        "c1 20,000 bad, c2 5,000 watch, c0 5 good, c3 7 good, c4 1 good, 2 more"
    )


@pytest.mark.parametrize(
    ("p50", "verdict"),
    [(0.0, "good"), (2.0, "good"), (2.01, "watch"), (10.0, "watch"), (10.1, "bad")],
)
def test_ttft(p50: float, verdict: str) -> None:
    parts = {"prefill": 1.0, "queue": 0.2, "warm_up": 0.3, "load": 0.001}
    _, ttft, _ = figures(of(ttft_s={"p50": p50, "p95": 11.0, "parts": parts}))
    assert ttft.verdict is Verdict(verdict)
    assert ttft.note == "prefill 1.0 s + warm-up 300 ms + queue 200 ms"


@pytest.mark.parametrize(
    ("written", "evicted", "verdicts"),
    [
        (0, 0, ("good", "good")),
        (100 * 10**9, 16 * 10**9, ("good", "good")),
        (101 * 10**9, 16 * 10**9 + 1, ("watch", "watch")),
        (330 * 10**9, 64 * 10**9, ("watch", "watch")),
        (331 * 10**9, 64 * 10**9 + 1, ("bad", "bad")),
    ],
)
def test_bytes_of_a_day(written: int, evicted: int, verdicts: tuple[str, str]) -> None:
    """The budget of the disk tier is 64 GB."""
    day = {"covered_s": 90.0, "written_bytes": written, "evicted_bytes": evicted}
    _, _, disk = figures(of(last_day=day))
    assert tuple(str(piece).rpartition(" ")[2] for piece in disk.pieces) == verdicts
    assert disk.note == "in 1m 30s"


def test_what_is_not_known_is_not_judged() -> None:
    uncached, ttft, disk = figures(Status())
    assert (uncached.verdict, ttft.verdict, disk.verdict) == (None, None, Verdict.GOOD)
    assert (uncached.text, ttft.text) == ("no turns yet", "no answers yet")


def test_as_text_and_as_json() -> None:
    assert lead_text(of()) == [
        ("uncached/turn", "codex 12,000 bad, unknown 5,000 watch, claude-cli 412 good"),
        (
            "TTFT",
            "p50 120 ms good, p95 1.2 s "
            "(prefill 900 ms + bookkeeping 72 ms + load 48 ms + restore 11 ms)",
        ),
        ("disk/day", "2.1 GB written good, 17.0 GB evicted watch (in 2h 0m)"),
    ]
    found = lead_json(of())
    assert found["disk_day"] == {
        "verdict": "watch",
        "covered_s": 7200.0,
        "written_bytes": 2_100_000_000,
        "evicted_bytes": 17_000_000_000,
    }
    assert lead_json(Status())["ttft_s"] == {
        "verdict": None,
        "p50": None,
        "p95": None,
        "mean_parts": {},
    }


def test_the_alerts_have_the_same_limits() -> None:
    rules = {
        rule["alert"]: rule["expr"]
        for group in yaml.safe_load(ALERTS.read_text())["groups"]
        for rule in group["rules"]
    }
    for name, watch, bad in (
        ("UncachedTokens", lead.UNCACHED_GOOD, lead.UNCACHED_WATCH),
        ("Ttft", lead.TTFT_GOOD_S, lead.TTFT_WATCH_S),
        ("DiskWritten", lead.WRITTEN_GOOD_BYTES, lead.WRITTEN_WATCH_BYTES),
    ):
        for level, limit in (("Watch", watch), ("Bad", bad)):
            (found,) = re.findall(r"> (\d\S*)", rules[f"Omlx{name}{level}"])
            assert float(found) == limit
    budget = 'max by (instance) (omlx_cache_budget_bytes{tier="disk"})'
    assert rules["OmlxDiskEvictedWatch"].endswith(f"> {lead.EVICTED_GOOD} * {budget}")
    assert lead.EVICTED_WATCH == 1 and rules["OmlxDiskEvictedBad"].endswith(f"> {budget}")


def test_the_guide_gives_the_same_limits() -> None:
    rows = [line for line in GUIDE.read_text().splitlines() if line.startswith("| ")]

    def row(label: str) -> str:
        return next(line for line in rows if line.startswith(f"| {label}"))

    assert f"| {lead.UNCACHED_GOOD:,} | {lead.UNCACHED_WATCH:,} |" in row("uncached tokens")
    assert f"| {lead.TTFT_GOOD_S:.0f} s | {lead.TTFT_WATCH_S:.0f} s |" in row("TTFT")
    sizes = [format_size(size).replace(".0", "") for size in (
        lead.WRITTEN_GOOD_BYTES, lead.WRITTEN_WATCH_BYTES
    )]  # fmt: skip
    assert f"| {sizes[0]} | {sizes[1]} |" in row("disk bytes written")
    shares = [
        f"{share:.0%}".replace("%", " %") for share in (lead.EVICTED_GOOD, lead.EVICTED_WATCH)
    ]
    assert f"| {shares[0]} | {shares[1]} |" in row("disk bytes evicted")


def _luminance(number: int) -> float:
    """Of a colour among the 216, as WCAG has it."""
    levels = (0, 95, 135, 175, 215, 255)
    red, green, blue = (levels[(number - 16) // size % 6] for size in (36, 6, 1))

    def linear(level: int) -> float:
        share = level / 255
        return share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4

    return 0.2126 * linear(red) + 0.7152 * linear(green) + 0.0722 * linear(blue)


@pytest.mark.parametrize("style", [GOOD, WATCH, BAD, ACCENT])
def test_colours_can_be_read_on_black_and_on_white(style: str) -> None:
    light = _luminance(int(style.removeprefix("color(").removesuffix(")")))
    assert min((light + 0.05) / 0.05, 1.05 / (light + 0.05)) > 3.8
