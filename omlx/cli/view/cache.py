"""The prefix cache as text and as JSON: what it holds, and what a prune drops.

Knows nothing about how it was read.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from omlx.cli.view.status import ModelStatus, Status, Tier, read_status
from omlx.cli.view.text import columns, count, harmless
from omlx.client import RunningServer
from omlx.storage.survey import Pruned, PrunePlan, RootSurvey, Strays
from omlx.units import format_duration, format_size

UNNAMED = "unknown model"


@dataclass(frozen=True, slots=True)
class ModelReport:
    """One model: its roots on disk, and its status at each running server that has it."""

    model: str | None
    roots: tuple[RootSurvey, ...]
    live: tuple[ModelStatus, ...]

    @property
    def bad(self) -> Counter[str]:
        """Bad files that are there, by reason."""
        found: Counter[str] = Counter()
        for root in self.roots:
            found.update({reason.value: number for reason, number in root.bad.items()})
        return found

    @property
    def dropped(self) -> Counter[str]:
        """Bad files that running servers met and dropped, by reason."""
        met: Counter[str] = Counter()
        for model in self.live:
            met.update(model.bad)
        return met

    def total(self, name: str) -> int:
        """The sum of a figure over the roots."""
        return sum(getattr(root, name) for root in self.roots)


@dataclass(frozen=True, slots=True)
class Report:
    """A whole cache."""

    directory: Path
    now: float
    models: tuple[ModelReport, ...]
    strays: Strays
    servers: tuple[tuple[RunningServer, Status], ...]


def make_report(
    directory: Path,
    roots: Sequence[RootSurvey],
    others: Strays,
    servers: Sequence[tuple[RunningServer, Mapping[str, object]]],
    *,
    now: float,
) -> Report:
    """Bring together what is on disk and what running servers say, by model."""
    known = tuple((server, read_status(answer)) for server, answer in servers)
    live = [model for _, status in known for model in status.models]
    # By what can be shown: a status has no other names.
    names = {_shown(root.model): root.model for root in roots}
    names = {**{model.id: model.id for model in live}, **names}
    models = tuple(
        ModelReport(
            names[shown],
            tuple(root for root in roots if _shown(root.model) == shown),
            tuple(model for model in live if model.id == shown),
        )
        for shown in sorted(names, key=lambda name: name or "")
    )
    return Report(directory, now, models, others, known)


def inspect_text(report: Report) -> str:
    """A few lines for each model, then the whole."""
    parts = [f"cache in {report.directory}"]
    for model in report.models:
        rows = list(_rows(model, report.now))
        parts.append(f"{_shown(model.model) or UNNAMED}\n{columns(rows, indent='  ')}")
    num_bytes = sum(model.total("num_bytes") for model in report.models)
    rows = [("total", f"{format_size(num_bytes)} in {count(len(report.models), 'model')}")]
    if report.strays.num_temps:
        rows.append(("being written", _files(report.strays.num_temps, report.strays.temp_bytes)))
    if report.strays.num_unknown:
        files = _files(report.strays.num_unknown, report.strays.unknown_bytes)
        rows.append(("not of omlx", files))
    return "\n\n".join([*parts, columns(rows)])


def _shown(name: str | None) -> str | None:
    return None if name is None else harmless(name)


def _rows(model: ModelReport, now: float) -> Iterator[tuple[str, str]]:
    blocks, tails = model.total("num_blocks"), model.total("num_tails")
    states = model.total("num_states")
    yield (
        "disk",
        f"{count(blocks, 'block')} ({count(tails, 'tail')}), "
        f"{count(states, 'snapshot') + ', ' if states else ''}"
        f"{count(model.total('num_tokens'), 'token')}, {format_size(model.total('num_bytes'))}",
    )
    newest = [root.newest for root in model.roots if root.newest is not None]
    oldest = [root.oldest for root in model.roots if root.oldest is not None]
    if newest:
        yield "last used", f"{_ago(now, max(newest))} (newest), {_ago(now, min(oldest))} (oldest)"
    for live in model.live:
        yield (
            "memory",
            f"{count(live.memory.blocks, 'block')}, {format_size(live.memory.bytes)} "
            f"of {format_size(live.memory.budget_bytes)}",
        )
        yield "hits", _hits(live)
    if model.bad:
        yield "bad files", _by_reason(model.bad)
    if model.dropped:
        yield "bad, dropped", _by_reason(model.dropped)
    other = model.total("num_other")
    if other:
        yield "other version", count(other, "file")
    if forms := [(r.root16, r.form) for r in model.roots if r.form]:
        yield "form", ", ".join(f"{root16} {harmless(form)}" for root16, form in forms)
    if len(model.roots) > 1:
        yield "roots", ", ".join(f"{r.root16} {count(r.num_blocks, 'block')}" for r in model.roots)


def _hits(live: ModelStatus) -> str:
    if live.hit_rate is None:
        return "no prompts yet"
    return (
        f"{live.hit_rate * 100:.1f} % of {count(live.prompt_tokens, 'prompt token')}: "
        f"{live.cached_memory_tokens:,} from memory, {live.cached_disk_tokens:,} from disk"
    )


def _by_reason(reasons: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {number}" for reason, number in sorted(reasons.items()))


def _ago(now: float, then: float) -> str:
    return f"{format_duration(max(0.0, now - then))} ago"


def _files(number: int, num_bytes: int) -> str:
    return f"{count(number, 'file')}, {format_size(num_bytes)}"


def inspect_json(report: Report) -> str:
    """The same figures for machines; times are seconds since 1970, null is not known."""
    whole = {
        "directory": str(report.directory),
        "models": [_model_json(model) for model in report.models],
        "temporary": _amount(report.strays.num_temps, report.strays.temp_bytes),
        "unknown": _amount(report.strays.num_unknown, report.strays.unknown_bytes),
        "servers": [
            {"pid": server.pid, "address": server.address, "version": server.version}
            for server, _ in report.servers
        ],
    }
    return json.dumps(whole, indent=2)


def _model_json(model: ModelReport) -> dict[str, object]:
    return {
        "model": model.model,
        "disk": {
            "blocks": model.total("num_blocks"),
            "tails": model.total("num_tails"),
            "snapshots": model.total("num_states"),
            "tokens": model.total("num_tokens"),
            "bytes": model.total("num_bytes"),
            "oldest": min((r.oldest for r in model.roots if r.oldest is not None), default=None),
            "newest": max((r.newest for r in model.roots if r.newest is not None), default=None),
            "bad": dict(model.bad),
            "other_version": model.total("num_other"),
            "roots": [
                {
                    "root": r.root16,
                    "blocks": r.num_blocks,
                    "bytes": r.num_bytes,
                    "form": r.form,
                }
                for r in model.roots
            ],
        },
        "memory": _tier_json([live.memory for live in model.live]),
        "hits": _hits_json(model.live),
        "dropped_bad": dict(model.dropped),
    }


def _tier_json(tiers: Sequence[Tier]) -> dict[str, int] | None:
    if not tiers:
        return None
    whole = sum(tiers, Tier())
    return {"blocks": whole.blocks, "bytes": whole.bytes, "budget_bytes": whole.budget_bytes}


def _hits_json(live: Sequence[ModelStatus]) -> dict[str, int] | None:
    if not live:
        return None
    return {
        "prompt_tokens": sum(model.prompt_tokens for model in live),
        "memory_tokens": sum(model.cached_memory_tokens for model in live),
        "disk_tokens": sum(model.cached_disk_tokens for model in live),
    }


def _amount(number: int, num_bytes: int) -> dict[str, int]:
    return {"files": number, "bytes": num_bytes}


def prune_text(plan: PrunePlan, outcome: Pruned | None, names: Mapping[str, str | None]) -> str:
    """What a prune drops or would drop, by model, and the sum."""
    if not plan.files:
        return "nothing to drop"
    rows = [
        (harmless(name), count(number, "file"), format_size(num_bytes))
        for name, (number, num_bytes) in _by_model(plan, names).items()
    ]
    if outcome is None:
        summary = f"would drop {_files(len(plan.files), plan.num_bytes)}"
    else:
        summary = f"dropped {_files(outcome.num_files, outcome.num_bytes)}"
    return f"{columns(rows, right=(1, 2))}\n{summary}"


def prune_json(plan: PrunePlan, outcome: Pruned | None, names: Mapping[str, str | None]) -> str:
    """The same for machines; `files` are places below the cache folder."""
    whole = {
        "dry_run": outcome is None,
        "planned": _amount(len(plan.files), plan.num_bytes),
        "dropped": None if outcome is None else _amount(outcome.num_files, outcome.num_bytes),
        "failed": 0 if outcome is None else outcome.num_failed,
        "models": [
            {"model": name, **_amount(*amount)} for name, amount in _by_model(plan, names).items()
        ],
        "files": [file.place for file in plan.files],
    }
    return json.dumps(whole, indent=2)


def _by_model(plan: PrunePlan, names: Mapping[str, str | None]) -> dict[str, tuple[int, int]]:
    amounts: dict[str, tuple[int, int]] = {}
    for file in plan.files:
        name = names.get(file.root16) or (UNNAMED if file.root16 else "temporary files")
        number, num_bytes = amounts.get(name, (0, 0))
        amounts[name] = (number + 1, num_bytes + file.size)
    return dict(sorted(amounts.items()))
