"""The status object of a server (GET /admin/api/status) as values, whatever it lacks.

Texts come from clients and folders: what a terminal would act on is replaced in them. Knows nothing
about how they are shown.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from omlx.cli.view.plain import int_of, map_of, maps_of, number_of, text_of
from omlx.cli.view.text import harmless


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
class Moves:
    """What happened to blocks since an engine started; bytes are of the disk."""

    stored: int = 0
    written: int = 0
    read: int = 0
    evicted_memory: int = 0
    evicted_disk: int = 0
    dropped: int = 0
    bad: int = 0
    bytes_written: int = 0
    bytes_read: int = 0
    bytes_evicted: int = 0

    def __add__(self, other: "Moves") -> "Moves":
        return Moves(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True, slots=True)
class Writes:
    """Bytes on their way to disk."""

    dirty_bytes: int = 0
    queued_bytes: int = 0

    def __add__(self, other: "Writes") -> "Writes":
        return Writes(self.dirty_bytes + other.dirty_bytes, self.queued_bytes + other.queued_bytes)


@dataclass(frozen=True, slots=True)
class Process:
    """The process of an engine; the id is None where there is none."""

    pid: int | None = None
    restarts: int = 0
    memory_bytes: int = 0
    limit_bytes: int = 0
    is_stalled: bool = False


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
    moves: Moves = Moves()
    writes: Writes = Writes()
    process: Process = Process()

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
    generated: int
    ttft_s: float | None
    miss: str
    part: str

    @property
    def hit_rate(self) -> float | None:
        """Cached per prompt tokens, 0..1; None without a prompt."""
        cached = self.cached_memory + self.cached_disk
        return min(1.0, cached / self.prompt_tokens) if self.prompt_tokens > 0 else None


@dataclass(frozen=True, slots=True)
class ClientTurns:
    """The turns of one client in the last day; `mean` is uncached tokens per turn."""

    client: str
    turns: int
    mean: float


@dataclass(frozen=True, slots=True)
class LastDay:
    """The 24 hours to now, of which the server has run `covered_s`."""

    covered_s: float = 0.0
    written_bytes: int = 0
    evicted_bytes: int = 0
    clients: tuple[ClientTurns, ...] = ()


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
    ttft_parts_s: Mapping[str, float] = field(default_factory=dict[str, float])
    last_day: LastDay = LastDay()
    machine_bytes: int = 0
    available_bytes: int = 0

    @property
    def memory(self) -> Tier:
        """The memory tiers of all models together; each has its own."""
        return sum((model.memory for model in self.models), Tier())

    @property
    def disk(self) -> Tier:
        """The disk tier: all models share one folder, so the fullest view of it is the truth."""
        return max((model.disk for model in self.models), key=lambda t: t.bytes, default=Tier())

    @property
    def moves(self) -> Moves:
        """What happened to the blocks of all models."""
        return sum((model.moves for model in self.models), Moves())

    @property
    def writes(self) -> Writes:
        """The bytes of all models that are on their way to disk."""
        return sum((model.writes for model in self.models), Writes())

    def total(self, name: str) -> float:
        """The sum of a figure over all models."""
        return sum(getattr(model, name) for model in self.models)


def read_status(answer: Mapping[str, object]) -> Status:
    """The values of a status object; what is missing or of another type counts as nothing."""
    requests, ttft, turns = (map_of(answer, key) for key in ("requests", "ttft_s", "turns"))
    parts, machine = map_of(ttft, "parts"), map_of(answer, "machine_memory")
    return Status(
        version=text_of(answer, "version"),
        address=text_of(answer, "address"),
        uptime_s=number_of(answer, "uptime_s") or 0.0,
        is_draining=answer.get("is_draining") is True,
        finished=int_of(requests, "finished"),
        failed=int_of(requests, "failed"),
        aborted=int_of(requests, "aborted"),
        ttft_p50_s=number_of(ttft, "p50"),
        ttft_p95_s=number_of(ttft, "p95"),
        hit_rate=number_of(turns, "hit_rate"),
        uncached_mean=number_of(turns, "uncached_mean"),
        models=tuple(map(_model, maps_of(answer, "models"))),
        recent=tuple(map(_recent, maps_of(answer, "recent"))),
        ttft_parts_s={harmless(part): number_of(parts, part) or 0.0 for part in parts},
        last_day=_last_day(map_of(answer, "last_day")),
        machine_bytes=int_of(machine, "total_bytes"),
        available_bytes=int_of(machine, "available_bytes"),
    )


def _last_day(item: Mapping[str, object]) -> LastDay:
    return LastDay(
        covered_s=number_of(item, "covered_s") or 0.0,
        written_bytes=int_of(item, "written_bytes"),
        evicted_bytes=int_of(item, "evicted_bytes"),
        clients=tuple(
            ClientTurns(
                text_of(one, "client"), int_of(one, "turns"), number_of(one, "uncached_mean") or 0.0
            )
            for one in maps_of(item, "clients")
        ),
    )


def _model(item: Mapping[str, object]) -> ModelStatus:
    speed, counters = map_of(item, "tokens_per_s"), map_of(item, "counters")
    prompt, from_memory, from_disk = _tokens(item)
    bad = map_of(counters, "bad")
    return ModelStatus(
        id=text_of(item, "id"),
        state=text_of(item, "state"),
        error=text_of(item, "error") or None,
        cache_note=text_of(item, "cache_note"),
        waiting=int_of(item, "waiting"),
        prefilling=int_of(item, "loading") + int_of(item, "prefilling"),
        decoding=int_of(item, "decoding"),
        finished=int_of(item, "finished_requests"),
        prefill_tokens_per_s=number_of(speed, "prefill") or 0.0,
        decode_tokens_per_s=number_of(speed, "decode") or 0.0,
        memory=_tier(item, "memory"),
        disk=_tier(item, "disk"),
        prompt_tokens=prompt,
        cached_memory_tokens=from_memory,
        cached_disk_tokens=from_disk,
        bad={harmless(reason): int_of(bad, reason) for reason in bad if int_of(bad, reason)},
        moves=_moves(counters),
        writes=Writes(
            int_of(map_of(item, "writes"), "dirty_bytes"),
            int_of(map_of(item, "writes"), "queued_bytes"),
        ),
        process=_process(item),
    )


def _moves(counters: Mapping[str, object]) -> Moves:
    bad = map_of(counters, "bad")
    return Moves(
        stored=int_of(counters, "blocks_stored"),
        written=int_of(counters, "blocks_written"),
        read=int_of(counters, "blocks_read"),
        evicted_memory=int_of(counters, "evicted_memory"),
        evicted_disk=int_of(counters, "evicted_disk"),
        dropped=int_of(counters, "dropped_writes"),
        bad=sum(int_of(bad, reason) for reason in bad),
        bytes_written=int_of(counters, "bytes_written"),
        bytes_read=int_of(counters, "bytes_read"),
        bytes_evicted=int_of(counters, "bytes_evicted"),
    )


def _process(item: Mapping[str, object]) -> Process:
    use = map_of(item, "memory_use")
    return Process(
        pid=int_of(item, "pid") or None,
        restarts=int_of(item, "restarts"),
        memory_bytes=int_of(use, "process_bytes"),
        limit_bytes=int_of(use, "limit_bytes"),
        is_stalled=item.get("is_stalled") is True,
    )


def _tokens(item: Mapping[str, object]) -> tuple[int, int, int]:
    """Prompt tokens, and those from memory and disk; of its engine where a server says no more."""
    found, names = map_of(item, "tokens"), ("prompt", "cached_memory", "cached_disk")
    if not found:
        found = map_of(item, "counters")
        names = ("prompt_tokens", "cached_memory_tokens", "cached_disk_tokens")
    prompt, memory, disk = (int_of(found, name) for name in names)
    return prompt, memory, disk


def _recent(item: Mapping[str, object]) -> RecentRequest:
    return RecentRequest(
        id=text_of(item, "id"),
        time=number_of(item, "time") or 0.0,
        model=text_of(item, "model"),
        client=text_of(item, "client"),
        outcome=text_of(item, "outcome"),
        prompt_tokens=int_of(item, "prompt_tokens"),
        cached_memory=int_of(item, "cached_memory"),
        cached_disk=int_of(item, "cached_disk"),
        uncached=int_of(item, "uncached"),
        generated=int_of(item, "generated"),
        ttft_s=number_of(item, "ttft_s"),
        miss=text_of(item, "miss"),
        part=text_of(item, "part"),
    )


def _tier(item: Mapping[str, object], key: str) -> Tier:
    tier = map_of(item, key)
    return Tier(int_of(tier, "blocks"), int_of(tier, "bytes"), int_of(tier, "budget_bytes"))
