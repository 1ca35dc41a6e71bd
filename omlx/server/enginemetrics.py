"""Metrics of the engines, read off their figures when they are asked for.

Knows nothing about requests or how engines get their figures.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from omlx.engine.request import EngineState
from omlx.server.figures import EngineView
from omlx.server.labels import Labels

_Merge = Callable[[float, float], float]


def _sum(one: float, other: float) -> float:
    return one + other


class _Family:
    """Samples of one metric; those whose labels are the same become one."""

    def __init__(self, name: str, help_text: str, *labels: str, merge: _Merge = _sum) -> None:
        self._name = name
        self._help = help_text
        self._labels = labels
        self._merge = merge
        self._values: dict[tuple[str, ...], float] = {}

    def add(self, *labels: str, value: float) -> None:
        """Add a sample (mutates)."""
        known = self._values.get(labels)
        self._values[labels] = value if known is None else self._merge(known, value)

    def gauge(self) -> Metric:
        """The samples as a gauge."""
        family = GaugeMetricFamily(self._name, self._help, labels=self._labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        return family

    def counter(self) -> Metric:
        """The samples as a counter."""
        family = CounterMetricFamily(self._name, self._help, labels=self._labels)
        for labels, value in self._values.items():
            family.add_metric(labels, value)
        return family


_Named = Sequence[tuple[str, EngineView]]


class EngineCollector(Collector):
    """Figures of all engines by model; those of models beyond the limit of `models` as one."""

    def __init__(self, engines: Callable[[], Iterable[EngineView]], models: Labels) -> None:
        self._engines = engines
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """The figures of this moment."""
        named = self._named(list(self._engines()))
        ready = _Family("omlx_engine_ready", "1 if it is ready", "model")
        for model, engine in named:
            ready.add(model, value=float(engine.state is EngineState.READY))
        yield ready.gauge()
        yield from _lives(named)
        yield from _rows(named)
        yield from _memory(named)
        yield from _tiers(named)
        yield from _snapshots(named)
        yield from _writes(named)
        yield from _cache_counters(named)

    def _named(self, engines: Sequence[EngineView]) -> _Named:
        """Each with its label; where there is no room for all, only what is loaded gets a new one,
        so that folders of models that nobody asks for don't take the names of those in use."""
        has_room = len(engines) <= self._models.limit

        def label(engine: EngineView) -> str:
            is_used = engine.state is not EngineState.UNLOADED
            find = self._models.of if has_room or is_used else self._models.known
            return find(engine.model_id)

        return [(label(engine), engine) for engine in engines]


def _lives(engines: _Named) -> Iterator[Metric]:
    starts = _Family(
        "omlx_engine_restarts", "Engines that died or hung and were started again", "model"
    )
    age = _Family(
        "omlx_engine_last_step_age_seconds", "Since the last turn of the loop", "model", merge=max
    )
    refused = _Family(
        "omlx_engine_quarantined_prompts", "Prompts refused for ending engines", "model"
    )
    start = _Family(
        "omlx_engine_start_seconds", "What the last start took", "model", "part", merge=max
    )
    for model, engine in engines:
        figures, health = engine.snapshot, engine.health
        start.add(model, "load", value=figures.start.load_s)
        start.add(model, "warm_up", value=figures.start.warm_up_s)
        starts.add(model, value=health.num_restarts)
        refused.add(model, value=health.num_quarantined)
        if health.last_step_age_s is not None:
            age.add(model, value=health.last_step_age_s)
    yield from (starts.counter(), age.gauge(), refused.gauge(), start.gauge())


def _rows(engines: _Named) -> Iterator[Metric]:
    rows = _Family("omlx_engine_requests", "Requests at an engine by phase", "model", "phase")
    speed = _Family("omlx_engine_tokens_per_second", "Recent speed by phase", "model", "phase")
    preemptions = _Family(
        "omlx_engine_preemptions", "Requests that had to leave for others", "model"
    )
    for model, engine in engines:
        figures = engine.snapshot
        preemptions.add(model, value=figures.preemptions)
        rows.add(model, "waiting", value=figures.waiting)
        rows.add(model, "loading", value=figures.loading)
        rows.add(model, "prefill", value=figures.prefilling)
        rows.add(model, "decode", value=figures.decoding)
        speed.add(model, "prefill", value=figures.prefill_tokens_per_s)
        speed.add(model, "decode", value=figures.decode_tokens_per_s)
    yield from (rows.gauge(), speed.gauge(), preemptions.counter())


def _memory(engines: _Named) -> Iterator[Metric]:
    limit = _Family("omlx_engine_memory_limit_bytes", "Share of engine.memory_limit", "model")
    held = _Family("omlx_engine_memory_bytes", "Memory of an engine by what it is", "model", "part")
    for model, engine in engines:
        use = engine.snapshot.memory_use
        limit.add(model, value=use.limit_bytes)
        held.add(model, "needed", value=use.needed_bytes)
        held.add(model, "cache", value=use.cache_bytes)
        held.add(model, "active", value=use.active_bytes)
        held.add(model, "freed", value=use.freed_bytes)
        held.add(model, "process", value=use.process_bytes)
    yield from (limit.gauge(), held.gauge())


def _tiers(engines: _Named) -> Iterator[Metric]:
    labels = ("model", "tier")
    blocks = _Family("omlx_cache_blocks", "Blocks held", *labels)
    held = _Family("omlx_cache_bytes", "Bytes held", *labels)
    budget = _Family("omlx_cache_budget_bytes", "Bytes allowed", *labels)
    for model, engine in engines:
        tiers = (("memory", engine.snapshot.memory), ("disk", engine.snapshot.disk))
        for tier, usage in tiers:
            blocks.add(model, tier, value=usage.blocks)
            held.add(model, tier, value=usage.bytes)
            budget.add(model, tier, value=usage.budget_bytes)
    yield from (blocks.gauge(), held.gauge(), budget.gauge())


def _snapshots(engines: _Named) -> Iterator[Metric]:
    labels = ("model", "tier")
    number = _Family("omlx_cache_snapshots", "Snapshots held", *labels)
    held = _Family("omlx_cache_snapshot_bytes", "Bytes of snapshots", *labels)
    budget = _Family("omlx_cache_snapshot_budget_bytes", "Bytes of snapshots allowed", *labels)
    for model, engine in engines:
        figures = engine.snapshot.snapshots
        for tier, usage in (("memory", figures.memory), ("disk", figures.disk)):
            number.add(model, tier, value=usage.blocks)
            held.add(model, tier, value=usage.bytes)
            budget.add(model, tier, value=usage.budget_bytes)
    yield from (number.gauge(), held.gauge(), budget.gauge())


def _writes(engines: _Named) -> Iterator[Metric]:
    def family(name: str, help_text: str) -> _Family:
        return _Family(f"omlx_cache_{name}_bytes", help_text, "model")

    dirty = family("dirty", "Bytes in memory that are still to be written")
    queued = family("write_queue", "Bytes that are being written or wait for it")
    room = family("write_queue_max", "Most bytes in the write queue, by the free memory")
    today = family("written_today", "Bytes written since midnight UTC")
    limit = family("max_write_per_day", "Most bytes written in a day, where there is a limit")
    for model, engine in engines:
        writes = engine.snapshot.writes
        dirty.add(model, value=writes.dirty_bytes)
        queued.add(model, value=writes.queued_bytes)
        room.add(model, value=writes.max_queued_bytes)
        today.add(model, value=writes.today_bytes)
        if writes.max_day_bytes is not None:
            limit.add(model, value=writes.max_day_bytes)
    for one in (dirty, queued, room, today, limit):
        yield one.gauge()


def _cache_counters(engines: _Named) -> Iterator[Metric]:
    events = _Family("omlx_cache_events", "What happened to blocks", "model", "event")
    moved = _Family("omlx_cache_moved_bytes", "Bytes written and read", "model", "direction")
    bad = _Family("omlx_cache_bad_files", "Files dropped, by reason", "model", "reason")
    dropped = _Family(
        "omlx_cache_dropped_writes", "Blocks not written, by reason", "model", "reason"
    )
    for model, engine in engines:
        counters = engine.snapshot.counters
        for event, count in (
            ("stored", counters.blocks_stored),
            ("written", counters.blocks_written),
            ("read", counters.blocks_read),
            ("evicted_memory", counters.evicted_memory),
            ("evicted_disk", counters.evicted_disk),
            ("dropped_write", counters.dropped_writes),
        ):
            events.add(model, event, value=count)
        moved.add(model, "write", value=counters.bytes_written)
        moved.add(model, "read", value=counters.bytes_read)
        for reason, count in sorted(counters.bad.items()):
            bad.add(model, reason, value=count)
        for reason, count in sorted(counters.dropped.items()):
            dropped.add(model, reason, value=count)
    for one in (events, moved, bad, dropped):
        yield one.counter()
