"""`omlx usage`: periods, tables, what was saved, and names that a terminal would act on."""

import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from omlx.cli.view.usage import Period, make_report, usage_json, usage_text
from omlx.storage.entry import JournalEntry, TtftParts
from omlx.storage.journal import Journal
from omlx.storage.tally import DiskTally, Tally
from omlx.storage.usage import DayDisk, DayTally, Usage
from tests.unit.cli.conftest import Cli

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "view"
DAY = 86_400.0
WEEK = Period("2026-11-24", "2026-11-30", 7)
COLD = Tally(
    requests=1, answers=1, turns=1, prompt_tokens=16_000, computed=16_000, generated=90, started=1,
    queue_s=0.25, prefill_s=32.0, bookkeeping_s=0.05, prefilled=16_000, long_prefilled=16_000,
    long_prefill_s=32.0,
)  # fmt: skip
WARM = Tally(
    requests=42, answers=40, turns=41, prompt_tokens=900_000, cached_memory=700_000,
    cached_disk=180_000, computed=20_000, generated=12_345, started=40, queue_s=1.0, load_s=2.0,
    restore_s=1.0, prefill_s=60.0, bookkeeping_s=2.0, prefilled=20_000,
)  # fmt: skip
USAGE = Usage(
    [
        DayTally("2026-11-26", "Qwen3-8B-4bit", "claude-cli", "laptop", COLD),
        DayTally("2026-11-26", "Qwen3-8B-4bit", "claude-cli", "laptop", WARM),
        DayTally("2026-11-30", "Qwen3-8B-4bit", "codex_exec", "", WARM),
        DayTally("2026-11-30", "tiny", "", "", Tally(requests=2, turns=1, prompt_tokens=10)),
    ],
    [
        DayDisk("2026-11-26", "Qwen3-8B-4bit", DiskTally(40 * 10**9, 0)),
        DayDisk("2026-11-30", "Qwen3-8B-4bit", DiskTally(10 * 10**9, 5 * 10**9)),
    ],
)


def report(usage: Usage = USAGE, all_time: Usage | None = None, period: Period = WEEK):
    return make_report(usage, all_time or usage, period=period, endurance_bytes=600 * 10**12)


def check_golden(name: str, text: str) -> None:
    path = GOLDEN / f"{name}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        path.write_text(text + "\n")
    assert text + "\n" == path.read_text()


def test_the_tables() -> None:
    check_golden("usage", usage_text(report()))


def test_every_line_fits_into_eighty_columns_with_usual_names() -> None:
    lines = usage_text(report()).splitlines()
    assert max(map(len, lines)) <= 100
    assert all(len(line) <= 80 for line in lines if line.startswith(("Qwen3", "client", "key")))


def test_saved_seconds_are_tokens_at_the_measured_rate_less_loading() -> None:
    found = report()
    # 16,000 tokens took 32 s; 880,000 were cached on each of two days, 3 s loading and restoring.
    assert found.rates == {"Qwen3-8B-4bit": 500.0}
    assert found.total.saved_s == pytest.approx(2 * (880_000 / 500 - 3.0))
    clients = {line.name: line for line in found.clients}
    assert clients["codex_exec"].saved_s == pytest.approx(880_000 / 500 - 3.0)
    assert clients[""].saved_s is None
    assert clients["claude-cli"].uncached_per_turn == pytest.approx(36_000 / 42)


def test_a_rate_that_the_period_lacks_is_that_of_all_time() -> None:
    row = DayTally("2026-11-30", "m", "c", "k", Tally(1, 1, 1, 99, 90))
    alone = Usage([row], [])
    assert report(alone).total.saved_s is None
    assert "no prefill was measured" in usage_text(report(alone))
    before = DayTally("2026-01-01", "m", "c", "k", COLD)
    found = report(alone, Usage([before, row], []))
    assert found.total.saved_s == pytest.approx(90 / 500)


def test_a_cache_that_costs_more_than_it_saves_says_so() -> None:
    slow = replace(WARM, cached_memory=0, cached_disk=500, load_s=60.0)
    rows = [DayTally("2026-11-30", "m", "", "", COLD), DayTally("2026-11-30", "m", "", "", slow)]
    found = report(Usage(rows, []))
    assert found.total.saved_s == pytest.approx(1.0 - 61.0)
    assert "about -1m 0s" in usage_text(found)


def test_days_of_life_are_counted_from_the_first_day_with_anything() -> None:
    found = report()
    assert found.num_counted_days == 5
    assert found.written_per_day == 10 * 10**9
    assert found.life_days == 60_000
    assert report(Usage(USAGE.requests, [])).life_days is None
    soon = make_report(USAGE, USAGE, period=WEEK, endurance_bytes=10**12)
    assert "100 days at this rate, if it may be written 1.0 TB" in usage_text(soon)


def test_names_are_only_printed() -> None:
    row = DayTally("2026-11-30", "\x1b[2J\nm", "c\x07", "", COLD)
    text = usage_text(report(Usage([row], [])))
    assert "\x1b" not in text and "\x07" not in text
    assert "\ufffd[2J m" in text and "c\ufffd" in text


def test_many_names_are_cut_and_none_of_them_in_json() -> None:
    rows = [DayTally("2026-11-30", "m", f"c{i}", "", COLD) for i in range(1000)]
    found = report(Usage(rows, []))
    assert "985 more in --json" in usage_text(found)
    assert len(json.loads(usage_json(found))["clients"]) == 1000


def test_json() -> None:
    found = json.loads(usage_json(report()))
    assert (found["schema"], found["first_day"], found["last_day"]) == (1, *WEEK_DAYS)
    assert (found["days"], found["counted_days"]) == (7, 5)
    total = found["total"]
    assert (total["requests"], total["answers"], total["turns"]) == (87, 81, 84)
    assert total["prompt_tokens"] == 16_000 + 2 * 900_000 + 10
    assert (total["cached_memory"], total["cached_disk"]) == (1_400_000, 360_000)
    assert (total["computed"], total["generated"]) == (56_000, 90 + 2 * 12_345)
    assert total["saved_tokens"] == 1_760_000
    assert total["hit_rate"] == pytest.approx(1_760_000 / 1_816_010)
    assert total["ttft_mean_s"] == pytest.approx(sum(total["ttft_parts_s"].values()))
    for name in ("models", "clients", "keys", "by_day"):
        for figure in ("requests", "turns", "prompt_tokens", "generated", "computed"):
            assert sum(one[figure] for one in found[name]) == total[figure], (name, figure)
    assert [one["model"] for one in found["models"]] == ["Qwen3-8B-4bit", "tiny"]
    assert found["models"][0]["prefill_tokens_per_s"] == 500
    assert found["models"][1]["saved_s"] is None
    disk = found["disk"]
    assert (disk["written_bytes"], disk["evicted_bytes"]) == (50 * 10**9, 5 * 10**9)
    assert (disk["written_bytes_per_day"], disk["life_days"]) == (10**10, 60_000)
    assert disk["by_day"][1] == {
        "day": "2026-11-30", "written_bytes": 10**10, "evicted_bytes": 5 * 10**9,
    }  # fmt: skip


WEEK_DAYS = (WEEK.first_day, WEEK.last_day)


def test_nothing_yet() -> None:
    nothing = report(Usage([], []))
    assert usage_text(nothing) == "usage on 7 days up to 2026-11-30 (UTC)\n\nnothing yet"
    assert json.loads(usage_json(nothing))["total"]["hit_rate"] is None


# ---- the command


@pytest.fixture
def kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A journal with a request of today, of five days and of twenty days ago."""
    monkeypatch.setenv("OMLX_HOME", str(home))
    path, now = home / "state" / "journal.sqlite3", time.time()
    book = Journal(path, max_bytes=10**9, max_age_s=DAY, clock=lambda: now)
    entry = JournalEntry(
        request_id="r", time=now, ended=now, model="m", outcome="stop", client="curl",
        prompt_tokens=500, cached_memory=100, computed=500, generated=3,
        parts=TtftParts(0.0, 0.0, 0.0, 0.0, 1.0, 0.0),
    )  # fmt: skip
    for days in (20, 5, 0):
        book.add(replace(entry, time=now - days * DAY))
    book.add_disk({"m": DiskTally(10**9, 0)})
    book.close()
    return path


@pytest.mark.parametrize(
    ("args", "num_days", "num_requests"),
    [
        ((), 7, 2),
        (("week",), 7, 2),
        (("today",), 1, 1),
        (("--days", "6"), 6, 2),
        (("--days", "30"), 30, 3),
    ],
)
def test_periods(
    cli: Cli, kept: Path, args: tuple[str, ...], num_days: int, num_requests: int
) -> None:
    found = json.loads(cli("usage", *args, "--json").out)
    assert (found["days"], found["total"]["requests"]) == (num_days, num_requests)
    assert found["disk"]["written_bytes"] == 10**9
    assert found["disk"]["endurance_bytes"] == 600 * 10**12
    text = cli("usage", *args).out
    assert f"{num_requests * 500:,}" in text and "1.0 GB written" in text


def test_the_endurance_is_a_setting(cli: Cli, kept: Path, home: Path) -> None:
    (home / "config.toml").write_text('[cache]\ndisk_endurance = "150TB"\n')
    assert json.loads(cli("usage", "--json").out)["disk"]["endurance_bytes"] == 150 * 10**12
    given = cli("usage", "today", "--disk-endurance", "10GB", "--json").out
    assert json.loads(given)["disk"]["life_days"] == 10
    wrong = cli("usage", "--disk-endurance", "1kB")
    assert wrong.code == 2 and "--disk-endurance: 1kB is less than 1GB" in wrong.err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("today", "--days", "3"), "--days and today exclude each other"),
        (("--days", "0"), "--days"),
        (("--days", "2000"), "--days"),
        (("yesterday",), "yesterday"),
    ],
)
def test_wrong_usage(cli: Cli, kept: Path, args: tuple[str, ...], said: str) -> None:
    outcome = cli("usage", *args)
    assert outcome.code == 2 and said in outcome.err and not outcome.out


def test_no_journal(cli: Cli, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMLX_HOME", str(home))
    outcome = cli("usage")
    assert outcome.code == 1 and "there is no journal" in outcome.err
    assert "journal.enabled" in outcome.err
