"""Counts and times of requests, for Prometheus and for the status page.

Knows nothing about how requests are served. Any thread may use it.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from omlx.engine.lifecycle import EngineHealth
from omlx.engine.request import EngineSnapshot, EngineState
from omlx.server.idle import Outcome
from omlx.server.session import Course
from omlx.stats import Recent

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_SECONDS = (0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)
# Parts of a time are shorter than the whole.
_PART_SECONDS = (0.001, 0.0025, 0.005, 0.01, *_SECONDS)
_ANSWERS = ("stop", "length", "repetition")


@dataclass(frozen=True, slots=True)
class EngineView:
    """What one engine says of itself at one moment."""

    model_id: str
    state: EngineState
    snapshot: EngineSnapshot
    health: EngineHealth = EngineHealth()


@dataclass(frozen=True, slots=True)
class Totals:
    """The figures of all requests so far; times in seconds, of the last thousand or so."""

    active: int
    waiting: int
    finished: int
    failed: int
    aborted: int
    ttft_p50_s: float | None
    ttft_p95_s: float | None
    turns: int
    prompt_tokens: int
    cached_tokens: int


class Metrics:
    """Watches requests; `engines` gives the engines' figures when they are asked for."""

    def __init__(self, engines: Callable[[], Iterable[EngineView]]) -> None:
        self._lock = threading.Lock()
        self._ttft = Recent()
        self._active = 0
        self._waiting = 0
        self._outcomes = {"finished": 0, "failed": 0, "aborted": 0}
        self._turns = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self.registry = CollectorRegistry()
        self.registry.register(_EngineCollector(engines, self.totals))
        self._by_outcome = self._counter("requests", "Requests by outcome", "model", "outcome")
        self._errors = self._counter("errors", "Errors sent to clients", "status")
        self._prompt = self._counter("prompt_tokens", "Prompt tokens", "model")
        self._cached = self._counter(
            "cached_prompt_tokens", "Prompt tokens from the cache", "model", "tier"
        )
        self._changes = self._counter(
            "prompt_changes", "What gave prompts a stable form", "model", "rule"
        )
        self._rerenders = self._counter(
            "idle_rerenders", "Next prompts computed while clients run tools", "model", "outcome"
        )
        self._rerendered_tokens = self._counter(
            "idle_rerendered_tokens", "Tokens of them that were not cached", "model"
        )
        self._generated = self._counter("generated_tokens", "Generated tokens", "model")
        self._ttft_s = self._seconds("ttft_seconds", "From arrival to the first token")
        self._queue_s = self._seconds("queue_seconds", "From arrival to admission")
        self._request_s = self._seconds("request_seconds", "From arrival to the end")
        self._part_s = Histogram(
            "omlx_ttft_part_seconds",
            "What the first token waited for; the parts sum to ttft_seconds",
            ("model", "part"),
            registry=self.registry,
            buckets=_PART_SECONDS,
        )

    def _counter(self, name: str, help_text: str, *labels: str) -> Counter:
        return Counter(f"omlx_{name}", help_text, labels, registry=self.registry)

    def _seconds(self, name: str, help_text: str) -> Histogram:
        return Histogram(
            f"omlx_{name}", help_text, ("model",), registry=self.registry, buckets=_SECONDS
        )

    def opened(self, course: Course) -> None:
        """A request was submitted to its engine (mutates)."""
        with self._lock:
            self._active += 1
            self._waiting += 1

    def admitted(self, course: Course) -> None:
        """A request left the queue (mutates)."""
        usage = course.usage
        with self._lock:
            self._waiting -= 1
            self._turns += 1
            self._prompt_tokens += usage.prompt
            self._cached_tokens += usage.cached
        model = course.model_id
        self._prompt.labels(model).inc(usage.prompt)
        self._cached.labels(model, "memory").inc(course.cached_memory)
        self._cached.labels(model, "disk").inc(course.cached_disk)
        if course.admitted is not None:
            self._queue_s.labels(model).observe(course.admitted - course.arrived)

    def closed(self, course: Course) -> None:
        """A request is over, one way or the other (mutates)."""
        outcome = "finished" if course.outcome in _ANSWERS else course.outcome
        ttft_s = None if course.first_token is None else course.first_token - course.arrived
        with self._lock:
            self._active -= 1
            self._waiting -= course.admitted is None
            self._outcomes[outcome] += 1
            if ttft_s is not None:
                self._ttft.add(ttft_s)
        model = course.model_id
        self._by_outcome.labels(model, course.outcome).inc()
        self._generated.labels(model).inc(course.generated)
        if ttft_s is not None:
            self._ttft_s.labels(model).observe(ttft_s)
        if course.parts is not None:
            for part, seconds in course.parts.by_name().items():
                self._part_s.labels(model, part).observe(seconds)
        if course.ended is not None:
            self._request_s.labels(model).observe(course.ended - course.arrived)

    def changed(self, model: str, changes: Mapping[str, int]) -> None:
        """A prompt was given a stable form (mutates)."""
        for rule, num in changes.items():
            self._changes.labels(model, rule).inc(num)

    def rerendered(self, model: str, outcome: str, num_tokens: int) -> None:
        """A next prompt was computed, with so many tokens that were not cached (mutates)."""
        self._rerenders.labels(model, outcome).inc()
        if outcome == Outcome.DONE.value:
            self._rerendered_tokens.labels(model).inc(num_tokens)

    def error_sent(self, status: int) -> None:
        """A request got an error as its answer, or as the end of one (mutates)."""
        self._errors.labels(str(status)).inc()

    def totals(self) -> Totals:
        """The figures of all requests so far."""
        with self._lock:
            return Totals(
                active=self._active,
                waiting=self._waiting,
                **self._outcomes,
                ttft_p50_s=self._ttft.percentile(0.5),
                ttft_p95_s=self._ttft.percentile(0.95),
                turns=self._turns,
                prompt_tokens=self._prompt_tokens,
                cached_tokens=self._cached_tokens,
            )

    def exposition(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)


class _EngineCollector(Collector):
    """Figures that are read when they are asked for."""

    def __init__(
        self, engines: Callable[[], Iterable[EngineView]], totals: Callable[[], Totals]
    ) -> None:
        self._engines = engines
        self._totals = totals

    def collect(self) -> Iterator[Metric]:
        """The figures of this moment."""
        totals = self._totals()
        yield GaugeMetricFamily("omlx_active_requests", "Requests not over", totals.active)
        yield GaugeMetricFamily("omlx_waiting_requests", "Requests in a queue", totals.waiting)
        engines = list(self._engines())
        state = GaugeMetricFamily("omlx_engine_ready", "1 if it is ready", labels=["model"])
        for engine in engines:
            state.add_metric([engine.model_id], float(engine.state is EngineState.READY))
        yield state
        yield from _lives(engines)
        yield from _rows(engines)
        yield from _memory(engines)
        yield from _tiers(engines)
        yield from _snapshots(engines)
        yield from _writes(engines)
        yield from _cache_counters(engines)


def _lives(engines: Iterable[EngineView]) -> Iterator[Metric]:
    starts = CounterMetricFamily(
        "omlx_engine_restarts", "Engines that died or hung and were started again", labels=["model"]
    )
    age = GaugeMetricFamily(
        "omlx_engine_last_step_age_seconds", "Since the last turn of the loop", labels=["model"]
    )
    refused = GaugeMetricFamily(
        "omlx_engine_quarantined_prompts", "Prompts refused for ending engines", labels=["model"]
    )
    start = GaugeMetricFamily(
        "omlx_engine_start_seconds", "What the last start took", labels=["model", "part"]
    )
    for engine in engines:
        start.add_metric([engine.model_id, "load"], engine.snapshot.start.load_s)
        start.add_metric([engine.model_id, "warm_up"], engine.snapshot.start.warm_up_s)
        labels, health = [engine.model_id], engine.health
        starts.add_metric(labels, health.num_restarts)
        refused.add_metric(labels, health.num_quarantined)
        if health.last_step_age_s is not None:
            age.add_metric(labels, health.last_step_age_s)
    yield from (starts, age, refused, start)


def _rows(engines: Iterable[EngineView]) -> Iterator[Metric]:
    rows = GaugeMetricFamily(
        "omlx_engine_requests", "Requests at an engine by phase", labels=["model", "phase"]
    )
    speed = GaugeMetricFamily(
        "omlx_engine_tokens_per_second", "Recent speed by phase", labels=["model", "phase"]
    )
    preemptions = CounterMetricFamily(
        "omlx_engine_preemptions", "Requests that had to leave for others", labels=["model"]
    )
    for engine in engines:
        model, figures = engine.model_id, engine.snapshot
        preemptions.add_metric([model], figures.preemptions)
        rows.add_metric([model, "waiting"], figures.waiting)
        rows.add_metric([model, "loading"], figures.loading)
        rows.add_metric([model, "prefill"], figures.prefilling)
        rows.add_metric([model, "decode"], figures.decoding)
        speed.add_metric([model, "prefill"], figures.prefill_tokens_per_s)
        speed.add_metric([model, "decode"], figures.decode_tokens_per_s)
    yield from (rows, speed, preemptions)


def _memory(engines: Iterable[EngineView]) -> Iterator[Metric]:
    limit = GaugeMetricFamily(
        "omlx_engine_memory_limit_bytes", "Share of engine.memory_limit", labels=["model"]
    )
    held = GaugeMetricFamily(
        "omlx_engine_memory_bytes", "Memory of an engine by what it is", labels=["model", "part"]
    )
    for engine in engines:
        model, use = engine.model_id, engine.snapshot.memory_use
        limit.add_metric([model], use.limit_bytes)
        held.add_metric([model, "needed"], use.needed_bytes)
        held.add_metric([model, "cache"], use.cache_bytes)
        held.add_metric([model, "active"], use.active_bytes)
        held.add_metric([model, "freed"], use.freed_bytes)
        held.add_metric([model, "process"], use.process_bytes)
    yield from (limit, held)


def _tiers(engines: Iterable[EngineView]) -> Iterator[Metric]:
    labels = ["model", "tier"]
    blocks = GaugeMetricFamily("omlx_cache_blocks", "Blocks held", labels=labels)
    held = GaugeMetricFamily("omlx_cache_bytes", "Bytes held", labels=labels)
    budget = GaugeMetricFamily("omlx_cache_budget_bytes", "Bytes allowed", labels=labels)
    for engine in engines:
        tiers = (("memory", engine.snapshot.memory), ("disk", engine.snapshot.disk))
        for tier, usage in tiers:
            blocks.add_metric([engine.model_id, tier], usage.blocks)
            held.add_metric([engine.model_id, tier], usage.bytes)
            budget.add_metric([engine.model_id, tier], usage.budget_bytes)
    yield from (blocks, held, budget)


def _snapshots(engines: Iterable[EngineView]) -> Iterator[Metric]:
    labels = ["model", "tier"]
    number = GaugeMetricFamily("omlx_cache_snapshots", "Snapshots held", labels=labels)
    held = GaugeMetricFamily("omlx_cache_snapshot_bytes", "Bytes of snapshots", labels=labels)
    budget = GaugeMetricFamily(
        "omlx_cache_snapshot_budget_bytes", "Bytes of snapshots allowed", labels=labels
    )
    for engine in engines:
        figures = engine.snapshot.snapshots
        for tier, usage in (("memory", figures.memory), ("disk", figures.disk)):
            number.add_metric([engine.model_id, tier], usage.blocks)
            held.add_metric([engine.model_id, tier], usage.bytes)
            budget.add_metric([engine.model_id, tier], usage.budget_bytes)
    yield from (number, held, budget)


def _writes(engines: Iterable[EngineView]) -> Iterator[Metric]:
    def gauge(name: str, help_text: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"omlx_cache_{name}_bytes", help_text, labels=["model"])

    dirty = gauge("dirty", "Bytes in memory that are still to be written")
    queued = gauge("write_queue", "Bytes that are being written or wait for it")
    room = gauge("write_queue_max", "Most bytes in the write queue, by the free memory")
    today = gauge("written_today", "Bytes written since midnight UTC")
    limit = gauge("max_write_per_day", "Most bytes written in a day, where there is a limit")
    for engine in engines:
        labels, writes = [engine.model_id], engine.snapshot.writes
        dirty.add_metric(labels, writes.dirty_bytes)
        queued.add_metric(labels, writes.queued_bytes)
        room.add_metric(labels, writes.max_queued_bytes)
        today.add_metric(labels, writes.today_bytes)
        if writes.max_day_bytes is not None:
            limit.add_metric(labels, writes.max_day_bytes)
    yield from (dirty, queued, room, today, limit)


def _cache_counters(engines: Iterable[EngineView]) -> Iterator[Metric]:
    events = CounterMetricFamily(
        "omlx_cache_events", "What happened to blocks", labels=["model", "event"]
    )
    moved = CounterMetricFamily(
        "omlx_cache_moved_bytes", "Bytes written and read", labels=["model", "direction"]
    )
    bad = CounterMetricFamily(
        "omlx_cache_bad_files", "Files dropped, by reason", labels=["model", "reason"]
    )
    dropped = CounterMetricFamily(
        "omlx_cache_dropped_writes", "Blocks not written, by reason", labels=["model", "reason"]
    )
    for engine in engines:
        model, counters = engine.model_id, engine.snapshot.counters
        for event, count in (
            ("stored", counters.blocks_stored),
            ("written", counters.blocks_written),
            ("read", counters.blocks_read),
            ("evicted_memory", counters.evicted_memory),
            ("evicted_disk", counters.evicted_disk),
            ("dropped_write", counters.dropped_writes),
        ):
            events.add_metric([model, event], count)
        moved.add_metric([model, "write"], counters.bytes_written)
        moved.add_metric([model, "read"], counters.bytes_read)
        for reason, count in sorted(counters.bad.items()):
            bad.add_metric([model, reason], count)
        for reason, count in sorted(counters.dropped.items()):
            dropped.add_metric([model, reason], count)
    yield from (events, moved, bad, dropped)
