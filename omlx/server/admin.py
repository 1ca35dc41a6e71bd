"""The state of the server in one object, for GET /admin/api/status and the dashboard.

Knows nothing about who shows it. The shape (times in seconds, sizes in bytes, null = not known):

    {"version": str, "uptime_s": float, "address": str, "is_draining": bool,
     "machine_memory": {"total_bytes", "available_bytes": int} | null,
     "last_day": {"covered_s": float, "written_bytes", "evicted_bytes": int,
                  "clients": [{"client": str, "turns", "prompt_tokens", "cached_tokens": int,
                               "uncached_mean": float}]},
     "requests": {"active", "waiting", "finished", "failed", "aborted": int},
     "ttft_s": {"p50", "p95": float | null, "parts": {part: float}},
     "turns": {"count", "prompt_tokens", "cached_tokens": int,
               "uncached_mean": float | null, "hit_rate": float 0..1 | null},
     "tokens_per_s": {"prefill", "decode": float},
     "models": [{"id": str, "state": "unloaded" | "starting" | "loading" | "ready" | "draining" |
                 "stopped" | "failed", "error": str | null, "last_step_age_s": float | null,
                 "is_stalled": bool, "pid": int | null,
                 "restarts", "quarantined_prompts", "requests": int,
                 "window": int | null, "cache_note": str,
                 "load_s", "warm_up_s": float, "weight_bytes": int, "kernels": [str],
                 "waiting", "loading", "prefilling", "decoding": int,
                 "finished_requests", "failed_requests", "generated_tokens", "preemptions": int,
                 "tokens_per_s": {"prefill", "decode": float},
                 "tokens": {"turns", "prompt", "cached_memory", "cached_disk", "computed",
                            "generated": int},
                 "memory": {"blocks", "bytes", "budget_bytes": int}, "disk": the same,
                 "snapshots": {"memory", "disk": the same},
                 "writes": {"dirty_bytes", "queued_bytes", "max_queued_bytes", "today_bytes": int,
                            "max_day_bytes": int | null},
                 "counters": {"prompt_tokens", "cached_memory_tokens", "cached_disk_tokens",
                              "blocks_stored", "blocks_written", "bytes_written", "blocks_read",
                              "bytes_read", "evicted_memory", "evicted_disk", "bytes_evicted",
                              "dropped_writes": int, "bad": {reason: int},
                              "dropped": {reason: int}}}],
     "recent": [{"id": str, "time": float, "model", "client", "outcome": str, "prompt_tokens",
                 "cached_memory", "cached_disk", "uncached", "generated": int,
                 "ttft_s": float | null, "miss": "none" | "cold" | "diverged" | "evicted" |
                 "snapshot" | "uncacheable" | "disabled", "part": str | null}]}

"requests" count since the server started; "ttft_s" is of the last thousand or so, and its "parts"
are means, which sum to the mean. A turn is a request that left the queue; "uncached_mean" is prompt
tokens computed per turn. "last_day" are the 24 hours to now, of which the server has run
"covered_s"; those beyond 64 clients count as "other". "tokens" of a model
are those of its requests that are over, "counters" its engine's own, since that started. "recent"
are the last 20 requests that are over, the newest first, without any text; "part" is where a prompt
left what was stored. "memory" and "disk" count snapshots of recurrent layers, too; "writes" are
bytes on their way to disk, and those of today (UTC) against the limit of a day. "load_s" is how
long the weights took to load, "warm_up_s" the steps before the model was ready; "kernels" are those
of omlx that serve it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

from omlx.engine.request import EngineSnapshot
from omlx.server.figures import EngineView, TokenTotals, Totals


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model as the status shows it."""

    engine: EngineView
    window: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class ServerView:
    """The server as the status shows it."""

    version: str
    uptime_s: float
    address: str
    is_draining: bool
    machine_memory: Mapping[str, int] | None = None
    last_day: Mapping[str, object] | None = None


def status(
    server: ServerView,
    totals: Totals,
    models: Iterable[ModelView],
    recent: Sequence[dict[str, object]] = (),
    *,
    ttft_parts_s: Mapping[str, float] | None = None,
) -> dict[str, object]:
    """The status object, of plain values only."""
    models = list(models)
    snapshots = [model.engine.snapshot for model in models]
    return {
        **asdict(server),
        "requests": {
            "active": totals.active,
            "waiting": totals.waiting,
            "finished": totals.finished,
            "failed": totals.failed,
            "aborted": totals.aborted,
        },
        "ttft_s": {
            "p50": totals.ttft_p50_s,
            "p95": totals.ttft_p95_s,
            "parts": dict(ttft_parts_s or {}),
        },
        "turns": _turns(totals),
        "tokens_per_s": {
            "prefill": sum(one.prefill_tokens_per_s for one in snapshots),
            "decode": sum(one.decode_tokens_per_s for one in snapshots),
        },
        "models": [_model(model, totals) for model in models],
        "recent": list(recent),
    }


def _turns(totals: Totals) -> dict[str, object]:
    prompt, cached = totals.prompt_tokens, totals.cached_tokens
    return {
        "count": totals.turns,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "uncached_mean": (prompt - cached) / totals.turns if totals.turns else None,
        "hit_rate": cached / prompt if prompt else None,
    }


def _model(model: ModelView, totals: Totals) -> dict[str, object]:
    figures: EngineSnapshot = model.engine.snapshot
    tokens = totals.tokens.get(model.engine.model_id, TokenTotals())
    return {
        "id": model.engine.model_id,
        "state": model.engine.state.value,
        "error": model.error,
        "last_step_age_s": model.engine.health.last_step_age_s,
        "pid": model.engine.health.pid,
        "is_stalled": model.engine.health.is_stalled,
        "restarts": model.engine.health.num_restarts,
        "quarantined_prompts": model.engine.health.num_quarantined,
        "requests": model.engine.health.num_live,
        "window": model.window,
        "cache_note": figures.cache_note,
        **asdict(figures.start),
        "waiting": figures.waiting,
        "loading": figures.loading,
        "prefilling": figures.prefilling,
        "decoding": figures.decoding,
        "finished_requests": figures.finished_requests,
        "failed_requests": figures.failed_requests,
        "generated_tokens": figures.generated_tokens,
        "preemptions": figures.preemptions,
        "tokens_per_s": {
            "prefill": figures.prefill_tokens_per_s,
            "decode": figures.decode_tokens_per_s,
        },
        "tokens": asdict(tokens),
        "memory_use": asdict(figures.memory_use),
        "memory": asdict(figures.memory),
        "disk": asdict(figures.disk),
        "snapshots": asdict(figures.snapshots),
        "writes": asdict(figures.writes),
        "counters": asdict(figures.counters),
    }
