"""Usage by day, model, client and API key as text and as JSON, and what the cache saved.

Saved seconds are an estimate: cached tokens at the model's measured rate of prefill, less the time
that loading and restoring them took. Knows nothing about how totals are kept.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import date

from omlx.cli.view.text import columns, count, harmless
from omlx.storage.tally import DiskTally, Tally
from omlx.storage.usage import DayTally, Usage
from omlx.units import format_duration, format_size

SCHEMA = 1
_MOST_LINES = 15
_DAYS_A_YEAR = 365.25
_PARTS = ("queue", "load", "warm_up", "restore", "prefill", "bookkeeping")
_HEADER = ("turns", "prompt", "cached", "uncached/turn", "generated", "saved")


@dataclass(frozen=True, slots=True)
class Period:
    """The days that are shown, such as 2026-11-30."""

    first_day: str
    last_day: str
    num_days: int


@dataclass(frozen=True, slots=True)
class Line:
    """Totals under one name; `saved_s` is None where no prefill was measured."""

    name: str
    tally: Tally
    saved_s: float | None

    @property
    def uncached_per_turn(self) -> float | None:
        """Prompt tokens that were not cached, by turn; None without a turn."""
        turns, uncached = self.tally.turns, self.tally.prompt_tokens - self.tally.cached
        return uncached / turns if turns else None

    @property
    def hit_rate(self) -> float | None:
        """Cached per prompt tokens, 0..1; None without a prompt."""
        return self.tally.cached / self.tally.prompt_tokens if self.tally.prompt_tokens else None

    @property
    def ttft_parts_s(self) -> dict[str, float] | None:
        """The parts of the mean TTFT, in seconds; None without a first token."""
        started = self.tally.started
        if not started:
            return None
        return {part: getattr(self.tally, f"{part}_s") / started for part in _PARTS}


@dataclass(frozen=True, slots=True)
class Report:
    """What is to be shown; `rates` are prompt tokens a second by model.

    Bytes a day are over `num_counted_days`: from the first day on which anything was counted.
    """

    period: Period
    total: Line
    models: Sequence[Line]
    clients: Sequence[Line]
    keys: Sequence[Line]
    days: Sequence[Line]
    rates: Mapping[str, float]
    moved: DiskTally
    moved_by_day: Mapping[str, DiskTally]
    moved_by_model: Mapping[str, DiskTally]
    num_counted_days: int
    endurance_bytes: int

    @property
    def written_per_day(self) -> float:
        """Bytes written in a day."""
        return self.moved.written_bytes / self.num_counted_days

    @property
    def life_days(self) -> float | None:
        """How long a disk of this endurance lasts at this rate; None where nothing was written."""
        return self.endurance_bytes / self.written_per_day if self.moved.written_bytes else None


def make_report(found: Usage, all_time: Usage, *, period: Period, endurance_bytes: int) -> Report:
    """Bring the totals of a period together; rates that it lacks are those of all time."""
    rates = {**_rates(all_time), **_rates(found)}

    def lines(key: Callable[[DayTally], str]) -> list[Line]:
        grouped: dict[str, list[DayTally]] = {}
        for one in found.requests:
            grouped.setdefault(key(one), []).append(one)
        return [_line(name, rows, rates) for name, rows in grouped.items()]

    days = lines(lambda one: one.day)
    return Report(
        period,
        _line("total", found.requests, rates),
        _by_turns(lines(lambda one: one.model)),
        _by_turns(lines(lambda one: one.client)),
        _by_turns(lines(lambda one: one.key)),
        sorted(days, key=lambda line: line.name),
        rates,
        found.moved,
        found.moved_by(lambda one: one.day),
        found.moved_by(lambda one: one.model),
        _num_days(found.days, period.last_day),
        endurance_bytes,
    )


def _rates(usage: Usage) -> dict[str, float]:
    found = {model: tally.prefill_rate for model, tally in usage.by(lambda one: one.model).items()}
    return {model: rate for model, rate in found.items() if rate is not None}


def _line(name: str, rows: Iterable[DayTally], rates: Mapping[str, float]) -> Line:
    tally, saved = Tally(), list[float]()
    for row in rows:
        tally += row.tally
        rate = rates.get(row.model)
        if rate is not None:
            saved.append(row.tally.cached / rate - row.tally.load_s - row.tally.restore_s)
    return Line(name, tally, sum(saved) if saved else None)


def _by_turns(lines: Iterable[Line]) -> list[Line]:
    return sorted(lines, key=lambda line: (-line.tally.turns, line.name))


def _num_days(days: Sequence[str], last_day: str) -> int:
    """From the first of the days to the last one, both included."""
    first = next((day for day in days if day), last_day)
    return max(1, (date.fromisoformat(last_day) - date.fromisoformat(first)).days + 1)


def usage_text(report: Report) -> str:
    """A table by model, client and key, then what was saved, waited for and written."""
    period, total = report.period, report.total
    head = f"usage on {count(period.num_days, 'day')} up to {period.last_day} (UTC)"
    if not total.tally.requests and not report.moved.written_bytes:
        return f"{head}\n\nnothing yet"
    tables = [
        _table("model", report.models),
        _table("client", report.clients, unnamed="unknown"),
        _table("key", report.keys, unnamed="(none)"),
    ]
    return "\n\n".join([head, *tables, columns(_summary(report))])


def _table(title: str, lines: Sequence[Line], *, unnamed: str = "unknown") -> str:
    rows: list[tuple[str, ...]] = [(title, *_HEADER)]
    for line in lines[:_MOST_LINES]:
        rows.append((harmless(line.name) or unnamed, *_cells(line)))
    table = columns(rows, right=range(1, len(_HEADER) + 1))
    left = len(lines) - _MOST_LINES
    return table if left <= 0 else f"{table}\n{left:,} more in --json"


def _cells(line: Line) -> tuple[str, ...]:
    per_turn = line.uncached_per_turn
    return (
        f"{line.tally.turns:,}",
        f"{line.tally.prompt_tokens:,}",
        "-" if line.hit_rate is None else f"{line.hit_rate * 100:.1f} %",
        "-" if per_turn is None else f"{per_turn:,.0f}",
        f"{line.tally.generated:,}",
        "-" if line.saved_s is None else _signed(line.saved_s),
    )


def _signed(seconds: float) -> str:
    return format_duration(seconds) if seconds >= 0 else "-" + format_duration(-seconds)


def _summary(report: Report) -> list[tuple[str, str]]:
    total, moved = report.total, report.moved
    rows = [("requests", _requests(total.tally))]
    if total.tally.cached:
        rows.append(("saved", _saved(total)))
    if total.ttft_parts_s is not None:
        rows.append(("TTFT", _ttft(total.ttft_parts_s)))
    rows.append(
        (
            "disk",
            f"{format_size(moved.written_bytes)} written, {format_size(moved.evicted_bytes)} "
            f"evicted; {format_size(report.written_per_day)} written a day",
        )
    )
    if report.life_days is not None:
        rows.append(("disk life", _life(report.life_days, report.endurance_bytes)))
    return rows


def _requests(tally: Tally) -> str:
    others = tally.requests - tally.answers
    rest = f", {count(others, 'other')} failed or given up" if others else ""
    return f"{count(tally.answers, 'answer')}{rest}"


def _saved(total: Line) -> str:
    tokens = f"{count(total.tally.cached, 'token')} of prefill"
    if total.saved_s is None:
        return f"{tokens}; no prefill was measured to tell the time"
    return f"{tokens}, about {_signed(total.saved_s)} at the measured rates"


def _ttft(parts_s: Mapping[str, float]) -> str:
    whole = sum(parts_s.values())
    largest = sorted(parts_s.items(), key=lambda part: -part[1])
    named = [
        f"{part.replace('_', '-')} {format_duration(seconds)}"
        for part, seconds in largest
        if seconds >= 0.01 * whole
    ]
    return f"mean {format_duration(whole)}: {', '.join(named)}"


def _life(days: float, endurance_bytes: int) -> str:
    years = days / _DAYS_A_YEAR
    lasts = f"{years:,.0f} years" if years >= 2 else f"{days:,.0f} days"
    return (
        f"{lasts} at this rate, if it may be written {format_size(endurance_bytes)} "
        "(cache.disk_endurance)"
    )


def usage_json(report: Report) -> str:
    """The same for machines: tokens, seconds, bytes; null is not known."""
    whole = {
        "schema": SCHEMA,
        "first_day": report.period.first_day,
        "last_day": report.period.last_day,
        "days": report.period.num_days,
        "counted_days": report.num_counted_days,
        "total": _line_json(report.total),
        "models": [
            {
                "model": line.name,
                "prefill_tokens_per_s": report.rates.get(line.name),
                **_line_json(line),
            }
            for line in report.models
        ],
        "clients": [{"client": line.name, **_line_json(line)} for line in report.clients],
        "keys": [{"key": line.name, **_line_json(line)} for line in report.keys],
        "by_day": [{"day": line.name, **_line_json(line)} for line in report.days],
        "disk": {
            **_moved_json(report.moved),
            "written_bytes_per_day": report.written_per_day,
            "evicted_bytes_per_day": report.moved.evicted_bytes / report.num_counted_days,
            "endurance_bytes": report.endurance_bytes,
            "life_days": report.life_days,
            "models": [
                {"model": model, **_moved_json(moved)}
                for model, moved in sorted(report.moved_by_model.items())
            ],
            "by_day": [
                {"day": day, **_moved_json(moved)}
                for day, moved in sorted(report.moved_by_day.items())
            ],
        },
    }
    return json.dumps(whole, indent=2)


def _line_json(line: Line) -> dict[str, object]:
    figures = {one.name: getattr(line.tally, one.name) for one in fields(Tally)}
    counts = {name: value for name, value in figures.items() if not name.endswith("_s")}
    parts = line.ttft_parts_s
    for name in ("prefilled", "long_prefilled"):
        del counts[name]
    return {
        **counts,
        "hit_rate": line.hit_rate,
        "uncached_per_turn": line.uncached_per_turn,
        "saved_tokens": line.tally.cached,
        "saved_s": line.saved_s,
        "ttft_mean_s": None if parts is None else sum(parts.values()),
        "ttft_parts_s": parts,
    }


def _moved_json(moved: DiskTally) -> dict[str, int]:
    return {"written_bytes": moved.written_bytes, "evicted_bytes": moved.evicted_bytes}
