"""What goes into an engine and what comes out: plain values, the same in a process and across one.

Knows nothing about text, HTTP, mlx or how a request is computed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

from omlx.cache.policy import StorePolicy


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer has to look like; `text` is made by a function of omlx.engine.constrain.

    With `after`, a text like "</think>", the answer is free up to it, but can't end before it.
    """

    text: str
    after: str = ""


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How a token is chosen from the logits; temperature 0 is greedy.

    `logit_bias` is added to the logits of tokens. A stop sequence of one token can't come before
    `min_tokens` are there, unless `grammar` leaves nothing else. With `logprobs` each token comes
    with its own and so many of the best: of the model's raw logits, before anything changes them.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    seed: int | None = None
    grammar: Grammar | None = None
    logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0


class RequestClass(Enum):
    """What waits for an answer: a person, a program, or a program that has time."""

    INTERACTIVE = "interactive"
    NORMAL = "normal"
    BATCH = "batch"


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence to continue: `tokens` is the prompt, `stop` the token sequences that end it.

    Its first `head` tokens are what other conversations share: system and tools; 0 is not known.
    A later prompt may differ from its token `stable` on, where the template will print what comes
    after in another way; 0 is nowhere. `store` says where its blocks may go; requests of one
    `tenant` share what a tenant may have.
    An answer that repeats itself for `repetition_guard` tokens is ended; 0 is never. `emitted` are
    tokens that another engine has delivered of the answer: they count towards `max_tokens`, and
    seed, penalties and stops go on after them. Only requests of one `salt` share blocks.
    """

    id: str
    tokens: tuple[int, ...]
    max_tokens: int
    sampling: SamplingParams = field(default_factory=SamplingParams)
    stop: tuple[tuple[int, ...], ...] = ()
    head: int = 0
    stable: int = 0
    store: StorePolicy = StorePolicy.ALL
    request_class: RequestClass = RequestClass.NORMAL
    tenant: str = ""
    repetition_guard: int = 0
    emitted: tuple[int, ...] = ()
    salt: str = ""


@dataclass(frozen=True, slots=True)
class RequestStats:
    """Figures of one request; times in seconds, ttft_s from its arrival at the engine.

    ttft_s is the sum of queue_s, load_s (from disk), restore_s (into layer caches), prefill_s and
    bookkeeping_s, which is the rest.
    """

    prompt_tokens: int
    cached_memory: int
    cached_disk: int
    generated_tokens: int
    queue_s: float
    load_s: float
    prefill_s: float
    decode_s: float
    ttft_s: float
    restore_s: float = 0.0
    bookkeeping_s: float = 0.0


class FinishReason(Enum):
    """Why a sequence ended."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    REPETITION = "repetition"


class FailureCode(Enum):
    """Whose fault a failed request is; after a CRASH a new engine may still be able to."""

    BAD_REQUEST = "bad_request"
    OVERLOADED = "overloaded"
    ENGINE = "engine"
    CRASH = "crash"


@dataclass(frozen=True, slots=True)
class Trail:
    """Where a prompt leaves what is stored: its first `shared` tokens are.

    Names are hexadecimal: `blocks` of the prompt's full blocks, `rest` of what follows them;
    `nearest` of the stored block that goes on otherwise, None where nothing does. A model with
    recurrent layers `needs_snapshot`: it goes on from the last one before there.
    """

    root: str
    block_size: int
    blocks: tuple[str, ...]
    rest: str | None
    shared: int
    nearest: str | None
    needs_snapshot: bool = False


@dataclass(frozen=True, slots=True)
class Admitted:
    """The request leaves the queue; so many prompt tokens came from each tier of the cache.

    `trail` is None where nothing could be looked up: the model has no cache.
    """

    request_id: str
    cached_memory: int
    cached_disk: int
    trail: Trail | None = None


@dataclass(frozen=True, slots=True)
class Prefilled:
    """`done` of `total` uncached prompt tokens are computed."""

    request_id: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class Started:
    """The first token is there, and follows; the stats say what it waited for."""

    request_id: str
    stats: RequestStats


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token; a stop token is never delivered.

    `logprob` and the best tokens with theirs, best first, are there where they were asked for.
    """

    request_id: str
    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The last event of a request that ended as it should."""

    request_id: str
    reason: FinishReason
    stats: RequestStats


@dataclass(frozen=True, slots=True)
class Failed:
    """The last event of a request that could not be served."""

    request_id: str
    code: FailureCode
    message: str


Event = Admitted | Prefilled | Started | Token | Finished | Failed
Listener = Callable[[Sequence[Event]], None]


class EngineState(Enum):
    """Where an engine is in its life; an unloaded one loads for the next request."""

    UNLOADED = "unloaded"
    STARTING = "starting"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class TierUsage:
    """What one tier of the cache holds and may hold."""

    blocks: int = 0
    bytes: int = 0
    budget_bytes: int = 0


@dataclass(frozen=True, slots=True)
class WriteUsage:
    """Bytes on their way to disk: dirty ones wait in memory, queued ones are being written; and
    those written today (UTC), against the limit of a day where there is one."""

    dirty_bytes: int = 0
    queued_bytes: int = 0
    max_queued_bytes: int = 0
    today_bytes: int = 0
    max_day_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class SnapshotUsage:
    """Snapshots of recurrent layers in both tiers, of which they are a part."""

    memory: TierUsage = field(default_factory=TierUsage)
    disk: TierUsage = field(default_factory=TierUsage)


@dataclass(frozen=True, slots=True)
class CacheCounters:
    """Counts since the engine started; tokens are prompt tokens, `bad` and `dropped` by reason.

    `dropped` are blocks that were not written, `dropped_writes` all of them. `bytes_evicted` are
    those of the files in `evicted_disk`.
    """

    prompt_tokens: int = 0
    cached_memory_tokens: int = 0
    cached_disk_tokens: int = 0
    blocks_stored: int = 0
    blocks_written: int = 0
    bytes_written: int = 0
    blocks_read: int = 0
    bytes_read: int = 0
    evicted_memory: int = 0
    evicted_disk: int = 0
    bytes_evicted: int = 0
    dropped_writes: int = 0
    bad: dict[str, int] = field(default_factory=dict[str, int])
    dropped: dict[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True, slots=True)
class CacheFigures:
    """What a cache holds and what happened in it."""

    memory: TierUsage = field(default_factory=TierUsage)
    disk: TierUsage = field(default_factory=TierUsage)
    snapshots: SnapshotUsage = field(default_factory=SnapshotUsage)
    writes: WriteUsage = field(default_factory=WriteUsage)
    counters: CacheCounters = field(default_factory=CacheCounters)


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """Bytes of an engine. The limit is what it may use now, of the one for all engines, and
    `told_bytes` what the server said last, None before it has said anything.

    Predicted: `least_bytes` of weights with one short row, `needed_bytes` with the rows in work,
    `wanted_bytes` with those that wait for memory. `cache_bytes` can be given back. Measured:
    `active_bytes` of arrays, `freed_bytes` of buffers kept for reuse, and `process_bytes`, the
    footprint of the process where arrays are in the system's memory, else the sum of both.
    """

    limit_bytes: int = 0
    least_bytes: int = 0
    needed_bytes: int = 0
    wanted_bytes: int = 0
    cache_bytes: int = 0
    active_bytes: int = 0
    freed_bytes: int = 0
    process_bytes: int = 0
    told_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class StartFigures:
    """What the start of an engine took: seconds to load the weights, of so many bytes, and seconds
    of the steps that warmed it up; and the names of the kernels that serve it."""

    load_s: float = 0.0
    warm_up_s: float = 0.0
    weight_bytes: int = 0
    kernels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class EngineSnapshot:
    """The latest figures of an engine, at most a second old while it works.

    `life` is another text after each start of the engine: counters begin again then.
    """

    waiting: int = 0
    loading: int = 0
    prefilling: int = 0
    decoding: int = 0
    finished_requests: int = 0
    failed_requests: int = 0
    generated_tokens: int = 0
    preemptions: int = 0
    decode_tokens_per_s: float = 0.0
    prefill_tokens_per_s: float = 0.0
    cache_note: str = ""
    memory_use: MemoryUse = field(default_factory=MemoryUse)
    start: StartFigures = field(default_factory=StartFigures)
    memory: TierUsage = field(default_factory=TierUsage)
    disk: TierUsage = field(default_factory=TierUsage)
    snapshots: SnapshotUsage = field(default_factory=SnapshotUsage)
    writes: WriteUsage = field(default_factory=WriteUsage)
    counters: CacheCounters = field(default_factory=CacheCounters)
    life: str = ""


class Engine(Protocol):
    """One loaded model. Any thread may call its methods; all but `stop` return at once."""

    @property
    def model_id(self) -> str:
        """The id of the model that it serves."""
        ...

    def start(self, listener: Listener) -> None:
        """Begin to load; `listener` is called with the events of each step, on another thread."""
        ...

    def submit(self, request: EngineRequest) -> None:
        """Queue a request; its events end with exactly one Finished or Failed."""
        ...

    def abort(self, request_id: str) -> None:
        """End a request within one step; a Finished with reason ABORT follows. Unknown ids pass."""
        ...

    def state(self) -> EngineState:
        """Where the engine is in its life."""
        ...

    def error(self) -> str | None:
        """Why the engine failed, one sentence; None while it has not."""
        ...

    def snapshot(self) -> EngineSnapshot | None:
        """The latest figures; None before the model is loaded."""
        ...

    def stop(self, timeout_s: float) -> int | None:
        """Write what is in memory to disk, end, wait at most so long; the exit code if known."""
        ...
