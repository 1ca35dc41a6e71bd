"""The status object of a server (GET /admin/api/status) as values, whatever it lacks.

Knows nothing about how they are shown.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast


@dataclass(frozen=True, slots=True)
class Tier:
    """What a tier holds and may hold."""

    blocks: int = 0
    bytes: int = 0
    budget_bytes: int = 0

    def __add__(self, other: "Tier") -> "Tier":
        return Tier(
            self.blocks + other.blocks,
            self.bytes + other.bytes,
            self.budget_bytes + other.budget_bytes,
        )


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """One model."""

    id: str
    state: str
    error: str | None
    cache_note: str
    waiting: int
    prefilling: int
    decoding: int
    finished: int
    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    memory: Tier
    disk: Tier
    prompt_tokens: int
    cached_memory_tokens: int
    cached_disk_tokens: int
    bad: Mapping[str, int]

    @property
    def hit_rate(self) -> float | None:
        """Cached per prompt tokens, 0..1; None before the first prompt."""
        cached = self.cached_memory_tokens + self.cached_disk_tokens
        return cached / self.prompt_tokens if self.prompt_tokens else None


@dataclass(frozen=True, slots=True)
class RecentRequest:
    """One of the last requests that are over; `part` is where its prompt left what is stored."""

    id: str
    time: float
    model: str
    client: str
    outcome: str
    prompt_tokens: int
    cached_memory: int
    cached_disk: int
    uncached: int
    ttft_s: float | None
    miss: str
    part: str


@dataclass(frozen=True, slots=True)
class Status:
    """A whole server."""

    version: str = ""
    address: str = ""
    uptime_s: float = 0.0
    is_draining: bool = False
    finished: int = 0
    failed: int = 0
    aborted: int = 0
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    hit_rate: float | None = None
    uncached_mean: float | None = None
    models: tuple[ModelStatus, ...] = field(default=())
    recent: tuple[RecentRequest, ...] = ()

    @property
    def memory(self) -> Tier:
        """The memory tiers of all models together; each has its own."""
        return sum((model.memory for model in self.models), Tier())

    @property
    def disk(self) -> Tier:
        """The disk tier: all models share one folder, so the fullest view of it is the truth."""
        return max((model.disk for model in self.models), key=lambda t: t.bytes, default=Tier())

    def total(self, name: str) -> float:
        """The sum of a figure over all models."""
        return sum(getattr(model, name) for model in self.models)


def read_status(answer: Mapping[str, object]) -> Status:
    """The values of a status object; what is missing or of another type counts as nothing."""
    requests, ttft, turns = (_map(answer, key) for key in ("requests", "ttft_s", "turns"))
    return Status(
        version=_text(answer, "version"),
        address=_text(answer, "address"),
        uptime_s=_number(answer, "uptime_s") or 0.0,
        is_draining=answer.get("is_draining") is True,
        finished=_int(requests, "finished"),
        failed=_int(requests, "failed"),
        aborted=_int(requests, "aborted"),
        ttft_p50_s=_number(ttft, "p50"),
        ttft_p95_s=_number(ttft, "p95"),
        hit_rate=_number(turns, "hit_rate"),
        uncached_mean=_number(turns, "uncached_mean"),
        models=tuple(map(_model, _maps(answer, "models"))),
        recent=tuple(map(_recent, _maps(answer, "recent"))),
    )


def _model(item: Mapping[str, object]) -> ModelStatus:
    speed, counters = _map(item, "tokens_per_s"), _map(item, "counters")
    tokens = _tokens(item)
    bad = _map(counters, "bad")
    return ModelStatus(
        id=_text(item, "id"),
        state=_text(item, "state"),
        error=_text(item, "error") or None,
        cache_note=_text(item, "cache_note"),
        waiting=_int(item, "waiting"),
        prefilling=_int(item, "loading") + _int(item, "prefilling"),
        decoding=_int(item, "decoding"),
        finished=_int(item, "finished_requests"),
        prefill_tokens_per_s=_number(speed, "prefill") or 0.0,
        decode_tokens_per_s=_number(speed, "decode") or 0.0,
        memory=_tier(item, "memory"),
        disk=_tier(item, "disk"),
        prompt_tokens=tokens[0],
        cached_memory_tokens=tokens[1],
        cached_disk_tokens=tokens[2],
        bad={reason: _int(bad, reason) for reason in bad if _int(bad, reason)},
    )


def _tokens(item: Mapping[str, object]) -> tuple[int, int, int]:
    """Prompt tokens, and those from memory and disk; of its engine where a server says no more."""
    found, names = _map(item, "tokens"), ("prompt", "cached_memory", "cached_disk")
    if not found:
        found = _map(item, "counters")
        names = ("prompt_tokens", "cached_memory_tokens", "cached_disk_tokens")
    prompt, memory, disk = (_int(found, name) for name in names)
    return prompt, memory, disk


def _recent(item: Mapping[str, object]) -> RecentRequest:
    return RecentRequest(
        id=_text(item, "id"),
        time=_number(item, "time") or 0.0,
        model=_text(item, "model"),
        client=_text(item, "client"),
        outcome=_text(item, "outcome"),
        prompt_tokens=_int(item, "prompt_tokens"),
        cached_memory=_int(item, "cached_memory"),
        cached_disk=_int(item, "cached_disk"),
        uncached=_int(item, "uncached"),
        ttft_s=_number(item, "ttft_s"),
        miss=_text(item, "miss"),
        part=_text(item, "part"),
    )


def _maps(item: Mapping[str, object], key: str) -> list[Mapping[str, object]]:
    value = item.get(key)
    items = cast(list[object], value) if isinstance(value, list) else []
    return [cast(Mapping[str, object], one) for one in items if isinstance(one, dict)]


def _tier(item: Mapping[str, object], key: str) -> Tier:
    tier = _map(item, key)
    return Tier(_int(tier, "blocks"), _int(tier, "bytes"), _int(tier, "budget_bytes"))


def _map(item: Mapping[str, object], key: str) -> Mapping[str, object]:
    value = item.get(key)
    return cast(Mapping[str, object], value) if isinstance(value, dict) else {}


def _text(item: Mapping[str, object], key: str) -> str:
    value = item.get(key)
    return value if isinstance(value, str) else ""


def _int(item: Mapping[str, object], key: str) -> int:
    return int(_number(item, key) or 0)


def _number(item: Mapping[str, object], key: str) -> float | None:
    value = item.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if math.isfinite(value) else None
