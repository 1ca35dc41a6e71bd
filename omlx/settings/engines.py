"""The settings of engines and of what they do next.

Knows nothing about files, variables or the command line, as `schema`, of which it is a part.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from omlx.settings.option import Option, Unit

Auto = Literal["auto"]
MemoryTier = Literal["safe", "balanced", "aggressive"]


@dataclass(frozen=True, slots=True)
class Scheduler:
    """How requests share an engine."""

    max_concurrent_requests: Annotated[
        int, Option("Requests that a model computes at the same time.", low=1, high=256)
    ] = 8
    max_queue: Annotated[
        int, Option("Requests that may wait for a model; more are refused.", low=0, high=100_000)
    ] = 64
    prefill_chunk: Annotated[
        int | Auto,
        Option("Most prompt tokens computed between two decode steps.", low=16, high=65536),
    ] = "auto"
    max_gap: Annotated[
        float,
        Option(
            "Most time between two tokens of a running stream, as far as the machine can: prompts "
            "are computed in pieces that keep it, but get at least half of the time.",
            unit=Unit.DURATION,
            low=0.01,
            high=60,
        ),
    ] = 0.25
    request_class: Annotated[
        str,
        Option(
            "Class of requests that name none: interactive ones come first, then normal, then "
            "batch.",
            choices=("interactive", "normal", "batch"),
            per_model=True,
        ),
    ] = "normal"
    repetition_guard: Annotated[
        int,
        Option(
            "End an answer whose last so many tokens are one piece of at most 64 over and over; "
            "0 is never.",
            low=0,
            high=1_000_000,
            per_model=True,
        ),
    ] = 0
    ageing: Annotated[
        float,
        Option(
            "After so long a wait a request counts as one class more urgent.",
            unit=Unit.DURATION,
            low=1,
            high=86400,
        ),
    ] = 30.0


@dataclass(frozen=True, slots=True)
class Engine:
    """The process that computes."""

    blas: Annotated[
        str,
        Option(
            "BLAS library for Linux on CPU: auto finds the system's, off takes none, "
            "else the path of one."
        ),
    ] = "auto"
    preload: Annotated[
        str,
        Option(
            "Whether a model is loaded at the start, not at its first request; auto does so for "
            "the only one, the default model and pinned ones.",
            choices=("auto", "always", "never"),
            per_model=True,
        ),
    ] = "auto"
    pin: Annotated[
        bool, Option("Keep a model loaded, whatever else is asked for.", per_model=True)
    ] = False
    ttl: Annotated[
        float | None,
        Option(
            "How long a model stays loaded after its last request. None means for ever.",
            unit=Unit.DURATION,
            low=0,
            high=10**9,
            per_model=True,
        ),
    ] = None
    warm_up: Annotated[
        bool,
        Option(
            "Run a few steps after a load, for some seconds at most, before a model counts as "
            "ready: its first requests then meet compiled kernels.",
            per_model=True,
        ),
    ] = True
    spare: Annotated[
        bool,
        Option(
            "Keep a spare engine process with its imports done (some 200MB), so that a model loads "
            "seconds sooner.",
        ),
    ] = True
    stall_timeout: Annotated[
        float,
        Option(
            "Silence after which an engine process that is stopped is ended and started again; "
            "six times as long for one that computes nothing.",
            unit=Unit.DURATION,
            low=3,
            high=86400,
        ),
    ] = 10.0
    step_timeout: Annotated[
        float,
        Option(
            "Longest step of an engine; one that takes longer is ended and started again.",
            unit=Unit.DURATION,
            low=5,
            high=86400,
        ),
    ] = 300.0
    load_timeout: Annotated[
        float,
        Option(
            "Longest load of a model; one that takes longer is ended and tried again.",
            unit=Unit.DURATION,
            low=10,
            high=604800,
        ),
    ] = 1800.0
    memory_limit: Annotated[
        int | MemoryTier,
        Option(
            "Most memory for a model, its requests and its cache: a size, or how much of the "
            "machine's is left to others: safe a quarter, balanced an eighth, aggressive a "
            "twentieth.",
            unit=Unit.SIZE,
            low=100_000_000,
        ),
    ] = "balanced"


@dataclass(frozen=True, slots=True)
class Kernels:
    """The kernels of omlx, where a GPU computes."""

    enabled: Annotated[
        bool,
        Option(
            "Let kernels that omlx kernel build has verified here serve a model where they are "
            "faster than mlx.",
            flag="--kernels",
        ),
    ] = True
    require: Annotated[
        bool,
        Option(
            "Refuse to load a model that a kernel could serve which is not verified on this "
            "device, where the log would only warn of it.",
            flag="--require-kernels",
        ),
    ] = False
