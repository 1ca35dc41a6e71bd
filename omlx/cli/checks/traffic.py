"""What the journal tells of requests that cost more than they need to: symptom, cause, fix.

Knows nothing about servers; every judgement is a function of rows.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from omlx.storage.entry import JournalEntry, MissReason, Part, PartKind
from omlx.storage.usage import Usage
from omlx.units import format_duration, format_size

PAGE = "docs/guide/doctor.md"
_LEAST_TURNS = 5  # of one kind, before anything is said about them
_LEAST_SHARE = 0.1
_LEAST_WRITTEN = 5 * 10**9
_LOW_DISK_HIT = 0.02  # of a model's prompt tokens
_LEAST_LOADS = 3
_LOAD_S = 1.0  # a wait for a model that was not loaded; less is a wait among others
_BATCH_AT_ONCE = 3.0  # requests of one client that run at the same time, on average
_LEAST_BATCH = 20
_SLOWED = 2.0  # times the TTFT beside batch work
_WAITED_S = 1.0
_LEAST_GENERATED = 1000


@dataclass(frozen=True, slots=True)
class Symptom:
    """One finding: what was seen, why, and what to do; `anchor` is its section in the docs."""

    name: str
    anchor: str
    seen: str
    cause: str
    fix: str

    @property
    def section(self) -> str:
        """Where the docs tell more."""
        return f"{PAGE}#{self.anchor}"

    def shown(self) -> dict[str, str]:
        """The symptom as plain values."""
        return {
            "name": self.name,
            "symptom": self.seen,
            "cause": self.cause,
            "fix": self.fix,
            "docs": self.section,
        }


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is known of some days: rows, the oldest first, totals, settings, and the device.

    `kernels` are the states of the kernels of a GPU; empty on a CPU, or where that is not known.
    """

    rows: Sequence[JournalEntry]
    usage: Usage
    ttl_s: Mapping[str, float | None]
    kernels: Mapping[str, str]


Judge = Callable[[Traffic], Iterator[Symptom]]


# ---- heads


def unstable_tools(traffic: Traffic) -> Iterator[Symptom]:
    """Clients whose tools are not the same from turn to turn of a conversation."""
    for client, breaks, num in _breaks(traffic.rows, PartKind.TOOL):
        names = Counter(part.name or f"number {part.idx}" for _, part in breaks)
        often = ", ".join(name for name, _ in names.most_common(3))
        yield Symptom(
            "unstable tools",
            "unstable-tools",
            f"{len(breaks)} of {num} turns of {client} within a conversation left what was stored "
            f"at a tool (most often {often}); {_lost(breaks):,} tokens were computed again",
            "the client sends other tools, or other texts in them, than a turn before: servers of "
            "tools that come and go, or lists that hold times or counts",
            "name the tools that the client may offer, and let its tool servers start before it; "
            "omlx cache inspect --request ID shows the first word that differs",
        )


def volatile_heads(traffic: Traffic) -> Iterator[Symptom]:
    """Clients whose system text changes from turn to turn of a conversation."""
    for client, breaks, num in _breaks(traffic.rows, PartKind.SYSTEM):
        yield Symptom(
            "volatile heads",
            "volatile-heads",
            f"{len(breaks)} of {num} turns of {client} within a conversation left what was stored "
            f"in the system text; {_lost(breaks):,} tokens were computed again",
            "something in the system text changes with each turn, such as a time, a count, a "
            "state of the work",
            "switch it off in the client, or move it behind the conversation; omlx cache inspect "
            "--request ID shows the first word that differs",
        )


Break = tuple[JournalEntry, Part]


def _breaks(rows: Sequence[JournalEntry], kind: PartKind) -> Iterator[tuple[str, list[Break], int]]:
    """By client, the turns that left what was stored in such a part, and how many turns there are.

    The first turn of a conversation does not count: nothing promised that it would be known.
    """
    known: set[tuple[str, str, str]] = set()
    turns: Counter[str] = Counter()
    breaks: dict[str, list[Break]] = defaultdict(list)
    for row in rows:
        if not row.is_admitted:
            continue
        name = row.client or "an unknown client"
        conversation = (name, row.model, row.session)
        if conversation not in known:
            known.add(conversation)
            continue
        turns[name] += 1
        part = _part_at(row, row.shared)
        if row.miss is MissReason.DIVERGED and part is not None and part.kind is kind:
            breaks[name].append((row, part))
    for name, found in breaks.items():
        if len(found) >= _LEAST_TURNS and len(found) >= _LEAST_SHARE * turns[name]:
            yield name, found, turns[name]


def _part_at(row: JournalEntry, token_idx: int) -> Part | None:
    return next((s.part for s in row.spans if s.start <= token_idx < s.end), None)


def _lost(breaks: Sequence[Break]) -> int:
    return sum(max(0, row.prompt_tokens - row.shared) for row, _ in breaks)


# ---- work beside work


def batch_beside_interactive(traffic: Traffic) -> Iterator[Symptom]:
    """Clients that wait while another one has many requests running at the same time."""
    groups: dict[tuple[str, str], list[JournalEntry]] = defaultdict(list)
    for row in traffic.rows:
        groups[(row.client or "an unknown client", row.key)].append(row)
    batch = {g for g, rows in groups.items() if len(rows) >= _LEAST_BATCH and _is_batch(rows)}
    for worker in batch:
        for group, rows in groups.items():
            if group not in batch and (said := _slowed(rows, groups[worker])):
                yield Symptom(
                    "batch beside interactive work",
                    "batch-beside-interactive-work",
                    f"{group[0]} {said} while {worker[0]} had many requests running",
                    "they count as equally urgent, and share the places and the tokens",
                    "send the header X-Omlx-Class: batch (or service_tier: flex) with those of "
                    f"{worker[0]}, or set scheduler.request_class for the model that it uses",
                )


def _is_batch(rows: Sequence[JournalEntry]) -> bool:
    """Whether on average several requests of a client ran when one of them came."""
    running: list[float] = []
    counts: list[int] = []
    for row in sorted(rows, key=lambda one: one.time):
        running = [end for end in running if end > row.time]
        running.append(row.ended)
        counts.append(len(running))
    return fmean(counts) >= _BATCH_AT_ONCE


def _slowed(rows: Sequence[JournalEntry], others: Sequence[JournalEntry]) -> str:
    """How requests that came beside others fared against those that did not; empty if well."""
    spans = _merged(others)
    beside: list[JournalEntry] = []
    alone: list[JournalEntry] = []
    for row in rows:
        if row.parts is not None:
            is_beside = any(begin <= row.time < end for begin, end in spans)
            (beside if is_beside else alone).append(row)
    if len(beside) < _LEAST_TURNS:
        return ""
    now = median(_ttft(row) for row in beside)
    if len(alone) >= _LEAST_TURNS:
        before = median(_ttft(row) for row in alone)
        if now >= _SLOWED * before and now - before >= _WAITED_S:
            return (
                f"waited {format_duration(now)} for a first token ({format_duration(before)} else)"
            )
        return ""
    queued = median(row.parts.queue_s for row in beside if row.parts is not None)
    return f"waited {format_duration(queued)} for a place" if queued >= _WAITED_S else ""


def _ttft(row: JournalEntry) -> float:
    assert row.parts is not None
    return row.parts.ttft_s - row.parts.warm_up_s  # the load of a model is nobody else's doing


def _merged(rows: Sequence[JournalEntry]) -> list[tuple[float, float]]:
    """The times when any of them ran."""
    spans: list[tuple[float, float]] = []
    for row in sorted(rows, key=lambda one: one.time):
        if spans and row.time <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], row.ended))
        else:
            spans.append((row.time, row.ended))
    return spans


# ---- disk and models


def low_hit_writing(traffic: Traffic) -> Iterator[Symptom]:
    """Models whose blocks are written to disk and hardly ever read again."""
    written = traffic.usage.moved_by(lambda one: one.model)
    tallies = traffic.usage.by(lambda one: one.model)
    for model, moved in written.items():
        tally = tallies.get(model)
        if moved.written_bytes < _LEAST_WRITTEN or tally is None or not tally.prompt_tokens:
            continue
        share = tally.cached_disk / tally.prompt_tokens
        if share < _LOW_DISK_HIT:
            yield Symptom(
                "low-hit SSD writing",
                "low-hit-ssd-writing",
                f"{format_size(moved.written_bytes)} of {model} were written to disk, and "
                f"{share:.1%} of its prompt tokens came from there",
                "its prompts do not come back once they have left memory: every one is another, "
                "or the memory tier is large enough by itself",
                'set cache.store to memory for this model ([model."..."] in config.toml), or '
                "cache.max_write_per_day; batch requests are kept in memory only",
            )


def ttl_thrash(traffic: Traffic) -> Iterator[Symptom]:
    """Models that are unloaded, and loaded again for the next request, time after time."""
    ends: dict[str, float] = {}
    loads: dict[str, list[tuple[float, float]]] = defaultdict(list)  # gap, wait
    crowded: Counter[str] = Counter()
    seen: list[tuple[float, str]] = []
    for row in traffic.rows:
        waited = 0.0 if row.parts is None else row.parts.warm_up_s
        last = ends.get(row.model)
        if waited >= _LOAD_S and last is not None and row.time > last:
            loads[row.model].append((row.time - last, waited))
            crowded[row.model] += any(t > last and m != row.model for t, m in seen[-200:])
        ends[row.model] = max(row.ended, last or 0.0)
        seen.append((row.time, row.model))
    for model, found in loads.items():
        if len(found) >= _LEAST_LOADS:
            yield _thrash(model, found, traffic.ttl_s.get(model), crowded[model])


def _thrash(
    model: str, loads: Sequence[tuple[float, float]], ttl_s: float | None, num_crowded: int
) -> Symptom:
    gap, waited = median(g for g, _ in loads), sum(w for _, w in loads)
    if ttl_s is not None and gap >= ttl_s:
        apart = f"requests come {format_duration(gap)} apart"
        cause = f"engine.ttl is {format_duration(ttl_s)}, and {apart}"
        fix = f"set engine.ttl for this model above {format_duration(2 * gap)}, or engine.pin"
    elif num_crowded * 2 > len(loads):
        cause = "other models were asked for in between, and took its place in memory"
        fix = (
            "raise models.max_loaded or engine.memory_limit, use smaller quantizations, or pin one"
        )
    else:
        cause = "its engine or the server ended in between"
        fix = "omlx logs tells why; a service keeps the server running"
    return Symptom(
        "time-to-live thrash",
        "time-to-live-thrash",
        f"{model} was loaded again {len(loads)} times, and requests waited "
        f"{format_duration(waited)} for that",
        cause,
        fix,
    )


def missing_kernels(traffic: Traffic) -> Iterator[Symptom]:
    """A GPU that generates without kernels which it could have."""
    missing = sorted(name for name, state in traffic.kernels.items() if state == "not built")
    generated = sum(row.generated for row in traffic.rows)
    if missing and generated >= _LEAST_GENERATED:
        yield Symptom(
            "missing kernels",
            "missing-kernels",
            f"{generated:,} tokens were generated without {', '.join(missing)}",
            "kernels are used only where they were built and verified for this device and this "
            "version of mlx",
            "omlx kernel build, then omlx restart",
        )


JUDGES: tuple[Judge, ...] = (
    unstable_tools,
    volatile_heads,
    batch_beside_interactive,
    low_hit_writing,
    ttl_thrash,
    missing_kernels,
)


def judge(traffic: Traffic) -> list[Symptom]:
    """All symptoms that the rows show."""
    return [symptom for each in JUDGES for symptom in each(traffic)]
