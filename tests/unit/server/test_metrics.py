import itertools

import pytest
from prometheus_client.parser import text_string_to_metric_families

from omlx.engine.lifecycle import EngineHealth
from omlx.engine.request import (
    CacheCounters,
    EngineSnapshot,
    EngineState,
    MemoryUse,
    RequestStats,
    SnapshotUsage,
    StartFigures,
    TierUsage,
    WriteUsage,
)
from omlx.server import admin
from omlx.server.figures import EngineView, TokenTotals
from omlx.server.labels import OTHER
from omlx.server.metrics import Metrics
from omlx.server.session import Caller, Course

SNAPSHOT = EngineSnapshot(
    waiting=1,
    prefilling=2,
    decoding=3,
    decode_tokens_per_s=40.0,
    prefill_tokens_per_s=500.0,
    cache_note="uncached: sliding window",
    memory_use=MemoryUse(900, 1, 200, 2, 300, 400, 500, 600),
    start=StartFigures(1.5, 2.5, 1000),
    memory=TierUsage(5, 600, 7000),
    disk=TierUsage(8, 900, 10000),
    snapshots=SnapshotUsage(TierUsage(1, 50, 500), TierUsage(2, 60, 600)),
    writes=WriteUsage(21, 22, 23, 24, 25),
    counters=CacheCounters(
        blocks_stored=11,
        bytes_written=12,
        evicted_memory=13,
        evicted_disk=14,
        dropped_writes=15,
        bad={"checksum": 2},
        dropped={"no_room": 10, "queue_full": 5},
    ),
)
ENGINES = [EngineView("m", EngineState.READY, SNAPSHOT)]


def course(*, model="m", **fields):
    return Course("r", model, arrived=10.0, prompt_tokens=100, **fields)


def play(metrics, *, admitted=True, model="m", who=None, **fields):
    """One request from beginning to end."""
    one = course(model=model, caller=who or Caller())
    metrics.opened(one)
    if admitted:
        one.cached_memory, one.cached_disk, one.admitted = 60, 20, 11.0
        metrics.admitted(one)
        one.first_token, one.generated = 12.0, 5
    one.ended, one.outcome = 14.0, fields.get("outcome", "stop")
    metrics.closed(one)


def samples(metrics):
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in families
        for sample in family.samples
    }


def test_totals():
    metrics = Metrics(lambda: ENGINES)
    play(metrics)
    play(metrics, outcome="length")
    play(metrics, outcome="failed")
    play(metrics, admitted=False, outcome="aborted")
    metrics.opened(course())
    totals = metrics.totals()
    assert (totals.active, totals.waiting) == (1, 1)
    assert (totals.finished, totals.failed, totals.aborted) == (2, 1, 1)
    assert (totals.turns, totals.prompt_tokens, totals.cached_tokens) == (3, 300, 240)
    assert totals.ttft_p50_s == totals.ttft_p95_s == 2.0


def test_exposition():
    metrics = Metrics(lambda: ENGINES)
    play(metrics)
    metrics.error_sent(429)
    found = samples(metrics)
    assert found["omlx_requests_total", "m", "stop"] == 1
    assert found["omlx_errors_total", "429"] == 1
    assert found["omlx_prompt_tokens_total", "m"] == 100
    assert found["omlx_cached_prompt_tokens_total", "m", "memory"] == 60
    assert found["omlx_cached_prompt_tokens_total", "disk", "m"] == 20
    assert found["omlx_generated_tokens_total", "m"] == 5
    assert found["omlx_ttft_seconds_sum", "m"] == 2.0
    assert found["omlx_queue_seconds_sum", "m"] == 1.0
    assert found["omlx_request_seconds_sum", "m"] == 4.0
    assert found[("omlx_active_requests",)] == 0
    assert found["omlx_engine_ready", "m"] == 1
    assert found["omlx_engine_requests", "decode", "m"] == 3
    assert found["omlx_cache_bytes", "disk", "m"] == 900
    assert found["omlx_cache_budget_bytes", "m", "memory"] == 7000
    assert found["omlx_engine_memory_limit_bytes", "m"] == 900
    parts = {"needed": 200, "cache": 300, "active": 400, "freed": 500, "process": 600}
    for part, size in parts.items():
        assert found["omlx_engine_memory_bytes", *sorted([part, "m"])] == size
    assert found["omlx_cache_bad_files_total", "checksum", "m"] == 2
    assert found["omlx_cache_moved_bytes_total", "m", "write"] == 12
    assert found["omlx_cache_events_total", "evicted_memory", "m"] == 13
    assert found["omlx_cache_events_total", "evicted_disk", "m"] == 14
    assert found["omlx_cache_events_total", "dropped_write", "m"] == 15
    assert found["omlx_cache_dropped_writes_total", "m", "no_room"] == 10
    assert found["omlx_cache_dropped_writes_total", "m", "queue_full"] == 5


def test_snapshots_and_writes_in_the_exposition():
    found = samples(Metrics(lambda: ENGINES))
    assert found["omlx_cache_snapshots", "m", "memory"] == 1
    assert found["omlx_cache_snapshot_bytes", "disk", "m"] == 60
    assert found["omlx_cache_snapshot_budget_bytes", "disk", "m"] == 600
    names = ("dirty", "write_queue", "write_queue_max", "written_today", "max_write_per_day")
    assert [found[f"omlx_cache_{name}_bytes", "m"] for name in names] == [21, 22, 23, 24, 25]
    without = [EngineView("m", EngineState.READY, EngineSnapshot())]
    assert ("omlx_cache_max_write_per_day_bytes", "m") not in samples(Metrics(lambda: without))


def test_tokens_by_where_they_came_from():
    metrics = Metrics(lambda: ENGINES)
    play(metrics, who=Caller(client="codex", key="laptop"))
    play(metrics, admitted=False, outcome="aborted")
    given_up = course(caller=Caller(client="codex"), admitted=11.0, cached_disk=10, prefilled=30)
    metrics.opened(given_up)
    metrics.admitted(given_up)
    metrics.closed(given_up)
    found = samples(metrics)
    for kind, of_all, of_key in (
        ("cached_memory", 60, 60),
        ("cached_disk", 30, 20),
        ("computed", 50, 20),
        ("generated", 5, 5),
    ):
        assert found["omlx_tokens_total", *sorted([kind, "m"])] == of_all
        assert found["omlx_client_tokens_total", *sorted([kind, "codex"])] == of_all
        assert found["omlx_key_tokens_total", *sorted([kind, "laptop"])] == of_key
    assert found["omlx_turn_uncached_tokens_count", "codex"] == 2
    assert found["omlx_turn_uncached_tokens_sum", "codex"] == 20 + 90
    assert found["omlx_cache_hit_rate", "m"] == pytest.approx(90 / 200)
    assert metrics.totals().tokens == {"m": TokenTotals(2, 200, 60, 30, 50, 5)}


def test_time_between_tokens_losses_and_bytes_on_disk():
    lost = itertools.count(3)
    metrics = Metrics(lambda: ENGINES, lambda: next(lost))
    metrics.gap(course(), 0.02)
    metrics.gap(course(), 0.04)
    metrics.moved("m", 1000, 10)
    metrics.moved("m", 500, 0)
    found = samples(metrics)
    assert found["omlx_itl_seconds_count", "m"] == 2
    assert found["omlx_itl_seconds_sum", "m"] == pytest.approx(0.06)
    assert found["omlx_disk_written_bytes_total", "m"] == 1500
    assert found["omlx_disk_evicted_bytes_total", "m"] == 10
    assert found[("omlx_journal_lost_rows_total",)] == 3
    assert found[("omlx_server_resident_bytes",)] > 1e6


HOSTILE = ("", "other", "a\nb", 'x" y="', "\x1b[2J", "back\\slash", "\udcff", "{}", "😀" * 99)


def test_the_number_of_series_is_bounded():
    """1,000 models, clients and keys that differ, hostile ones among them."""
    names = [f"{HOSTILE[i % len(HOSTILE)]}{i}" for i in range(1000)]
    counters = CacheCounters(bad={"checksum": 1}, dropped={"no_room": 1})
    snapshot = EngineSnapshot(counters=counters)
    engines = [EngineView(name, EngineState.READY, snapshot) for name in names]
    metrics = Metrics(lambda: engines)

    def ask(some):
        for name in some:
            play(metrics, model=name, who=Caller(client=name, key=name))
            metrics.gap(course(model=name), 0.01)
            metrics.changed(name, {"tool_order": 1})
            metrics.rerendered(name, "done", 5)
            metrics.moved(name, 1, 1)

    ask(names[:200])
    before = samples(metrics)
    ask(names)
    found = samples(metrics)
    assert found.keys() == before.keys()
    assert len(found) < 15_000

    def of(name, *labels):
        return [v for key, v in found.items() if key[0] == name and {*labels} <= {*key[1:]}]

    assert (len(of("omlx_requests_total")), sum(of("omlx_requests_total"))) == (33, 1200)
    for name, num in (("client", 32), ("key", 64)):
        values = of(f"omlx_{name}_tokens_total", "generated")
        assert (len(values), sum(values)) == (num + 1, 5 * 1200)
    for name in ("omlx_engine_ready", "omlx_cache_bad_files_total"):
        assert (len(of(name)), sum(of(name))) == (33, 1000)


def test_models_that_nobody_asks_for_take_no_names():
    idle = [EngineView(f"idle{i}", EngineState.UNLOADED, EngineSnapshot()) for i in range(100)]
    metrics = Metrics(lambda: [*idle, EngineView("busy", EngineState.READY, SNAPSHOT)])
    found = samples(metrics)
    assert found["omlx_engine_ready", "busy"] == 1
    assert found["omlx_engine_ready", OTHER] == 0
    assert len([key for key in found if key[0] == "omlx_engine_ready"]) == 2
    few = samples(Metrics(lambda: idle[:3]))
    assert found.keys() != few.keys() and few["omlx_engine_ready", "idle2"] == 0


def test_figures_of_models_beyond_the_limit_are_one():
    engines = [
        EngineView(f"m{i}", EngineState.READY, SNAPSHOT, EngineHealth(last_step_age_s=float(i)))
        for i in range(40)
    ]
    found = samples(Metrics(lambda: engines))
    assert found["omlx_engine_last_step_age_seconds", OTHER] == 39
    assert found["omlx_cache_bytes", "disk", OTHER] == 8 * 900
    assert found["omlx_engine_start_seconds", "load", OTHER] == 1.5


def test_the_parts_of_ttft_are_those_of_the_course():
    metrics = Metrics(lambda: ENGINES)
    one = course(submitted=10.5, admitted=11.0, first_token=18.0, ended=19.0, outcome="stop")
    one.stats = RequestStats(
        100, 0, 0, 0, queue_s=1.0, load_s=0.5, prefill_s=4.0, decode_s=0.0, ttft_s=6.0,
        restore_s=0.25, bookkeeping_s=0.25,
    )  # fmt: skip
    metrics.opened(one)
    metrics.admitted(one)
    metrics.closed(one)
    found = samples(metrics)
    parts = {
        next(label for label in labels if label != "m"): value
        for (name, *labels), value in found.items()
        if name == "omlx_ttft_part_seconds_sum"
    }
    assert parts == {
        "queue": 1.0,
        "load": 0.5,
        "warm_up": 0.0,
        "restore": 0.25,
        "prefill": 4.0,
        "bookkeeping": 2.25,
    }
    assert sum(parts.values()) == found["omlx_ttft_seconds_sum", "m"] == one.parts.ttft_s


def status(metrics, models=()):
    server = admin.ServerView("1.2.3", 5.0, "http://127.0.0.1:8000", is_draining=False)
    return admin.status(server, metrics.totals(), models)


def test_status_before_anything_has_happened():
    assert status(Metrics(lambda: [])) == {
        "version": "1.2.3",
        "uptime_s": 5.0,
        "address": "http://127.0.0.1:8000",
        "is_draining": False,
        "machine_memory": None,
        "last_day": None,
        "requests": {"active": 0, "waiting": 0, "finished": 0, "failed": 0, "aborted": 0},
        "ttft_s": {"p50": None, "p95": None, "parts": {}},
        "turns": {
            "count": 0,
            "prompt_tokens": 0,
            "cached_tokens": 0,
            "uncached_mean": None,
            "hit_rate": None,
        },
        "tokens_per_s": {"prefill": 0, "decode": 0},
        "models": [],
        "recent": [],
    }


def test_status_of_a_server_at_work():
    metrics = Metrics(lambda: ENGINES)
    play(metrics)
    play(metrics)
    found = status(metrics, [admin.ModelView(ENGINES[0], window=2048, error=None)])
    assert found["turns"]["uncached_mean"] == 20
    assert found["turns"]["hit_rate"] == pytest.approx(0.8)
    assert found["tokens_per_s"] == {"prefill": 500.0, "decode": 40.0}
    (model,) = found["models"]
    assert (model["id"], model["state"], model["window"]) == ("m", "ready", 2048)
    assert model["cache_note"] == "uncached: sliding window"
    assert (model["load_s"], model["warm_up_s"], model["weight_bytes"]) == (1.5, 2.5, 1000)
    assert (model["waiting"], model["prefilling"], model["decoding"]) == (1, 2, 3)
    assert model["memory"] == {"blocks": 5, "bytes": 600, "budget_bytes": 7000}
    assert model["tokens"] == {
        "turns": 2,
        "prompt": 200,
        "cached_memory": 120,
        "cached_disk": 40,
        "computed": 40,
        "generated": 10,
    }
    assert model["counters"]["bad"] == {"checksum": 2}
    assert model["counters"]["dropped"] == {"no_room": 10, "queue_full": 5}
    assert model["snapshots"]["disk"] == {"blocks": 2, "bytes": 60, "budget_bytes": 600}
    assert model["writes"] == {
        "dirty_bytes": 21,
        "queued_bytes": 22,
        "max_queued_bytes": 23,
        "today_bytes": 24,
        "max_day_bytes": 25,
    }
