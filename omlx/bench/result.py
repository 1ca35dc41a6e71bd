"""What a bench measured: samples with labels, ratios, the machine, and all as one JSON document.

Knows nothing about how anything is measured or shown.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from enum import StrEnum

from omlx.bench.spread import Interval, Spread, paired_ratio, spread

SCHEMA = 1
"""Raised when a key of the document changes its meaning or goes away; new keys don't raise it."""

Value = str | int | float | bool | None
Case = Mapping[str, Value]


class Process(StrEnum):
    """Whether the process that answered had answered before."""

    COLD = "cold"
    WARM = "warm"


class Start(StrEnum):
    """Where the prefix of a prompt came from."""

    MISS = "miss"
    MEMORY = "memory"
    DISK = "disk"
    MIXED = "mixed"


@dataclass(frozen=True, slots=True)
class Label:
    """Under what conditions samples were taken; `concurrency` is requests at the same time."""

    process: Process
    start: Start
    concurrency: int = 1

    def __str__(self) -> str:
        return f"{self.process} process, {self.start}, {self.concurrency} at once"


@dataclass(frozen=True, slots=True)
class Measure:
    """Samples of one figure, one a round or request, in the order in which they were taken.

    `unit` is that of each sample: "s", "tokens/s", "tokens", "bytes", "bytes/s", "share" (0 to 1).
    `side` names who was measured where there are several, `case` at what, as {"tokens": 512}.
    """

    name: str
    unit: str
    samples: tuple[float, ...]
    label: Label
    side: str = ""
    case: Case = field(default_factory=dict[str, Value])

    def spread(self) -> Spread:
        """Median, extremes and percentiles of the samples; ValueError if there are none."""
        return spread(self.samples)


@dataclass(frozen=True, slots=True)
class Ratio:
    """One figure of `side` divided by that of `base`, in paired rounds."""

    name: str
    side: str
    base: str
    label: Label
    interval: Interval
    case: Case = field(default_factory=dict[str, Value])


@dataclass(frozen=True, slots=True)
class Check:
    """Something that holds or doesn't, and why; `is_passed` None: it could not be checked."""

    name: str
    is_passed: bool | None
    reason: str
    figures: Case = field(default_factory=dict[str, Value])


@dataclass(frozen=True, slots=True)
class Report:
    """One run of a bench.

    `kind` is the command, `options` what it was told, `sides` what is known of each target: its
    version, caching and buffering. `machine` comes from `omlx.bench.machine.describe`.
    """

    kind: str
    seed: int
    model: str
    machine: Case
    options: Mapping[str, object] = field(default_factory=dict[str, object])
    sides: Mapping[str, Mapping[str, object]] = field(
        default_factory=dict[str, Mapping[str, object]]
    )
    measures: tuple[Measure, ...] = ()
    ratios: tuple[Ratio, ...] = ()
    checks: tuple[Check, ...] = ()
    notes: tuple[str, ...] = ()
    created: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))

    def find(
        self, name: str, *, side: str | None = None, case: Case | None = None
    ) -> tuple[Measure, ...]:
        """The measures of a name, of a side and with at least this case where those are given."""
        return tuple(
            measure
            for measure in self.measures
            if measure.name == name
            and side in (None, measure.side)
            and all(measure.case.get(key) == value for key, value in (case or {}).items())
        )


def ratio_of(a: Measure, b: Measure) -> Ratio:
    """a / b of two sides that were measured in the same rounds; ValueError if they don't pair."""
    same = (a.name, a.unit, a.label, dict(a.case)) == (b.name, b.unit, b.label, dict(b.case))
    if not same or a.side == b.side:
        raise ValueError(f"no pair of sides: {a.side} {a.name}, {b.side} {b.name}")
    return Ratio(a.name, a.side, b.side, a.label, paired_ratio(a.samples, b.samples), a.case)


def report_object(report: Report) -> dict[str, object]:
    """The document as plain values: what `to_json` writes."""
    return {
        "schema": SCHEMA,
        "kind": report.kind,
        "created": report.created,
        "seed": report.seed,
        "model": report.model,
        "machine": dict(report.machine),
        "options": dict(report.options),
        "sides": {name: dict(facts) for name, facts in report.sides.items()},
        "measures": [_measure_object(measure) for measure in report.measures],
        "ratios": [_ratio_object(ratio) for ratio in report.ratios],
        "checks": [
            {
                "name": check.name,
                "passed": check.is_passed,
                "reason": check.reason,
                "figures": dict(check.figures),
            }
            for check in report.checks
        ],
        "notes": list(report.notes),
    }


def to_json(report: Report, *, indent: int | None = None) -> str:
    """The report as one JSON document, on one line unless an indent is given; no NaN in it."""
    return json.dumps(report_object(report), indent=indent, allow_nan=False)


def _measure_object(measure: Measure) -> dict[str, object]:
    return {
        "name": measure.name,
        "unit": measure.unit,
        "side": measure.side,
        "case": dict(measure.case),
        "label": _label_object(measure.label),
        "samples": list(measure.samples),
        "spread": asdict(measure.spread()) if measure.samples else None,
    }


def _ratio_object(ratio: Ratio) -> dict[str, object]:
    return {
        "name": ratio.name,
        "side": ratio.side,
        "base": ratio.base,
        "case": dict(ratio.case),
        "label": _label_object(ratio.label),
        **asdict(ratio.interval),
    }


def _label_object(label: Label) -> dict[str, object]:
    return {
        "process": label.process.value,
        "start": label.start.value,
        "concurrency": label.concurrency,
    }


def has_failed(checks: Sequence[Check]) -> bool:
    """Whether a check failed; those that could not be made don't count."""
    return any(check.is_passed is False for check in checks)
