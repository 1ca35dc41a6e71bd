"""Every setting once: its type, default, limits, flag and help.

Knows nothing about files, variables or the command line; `leaf` derives their names from here.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from omlx.settings.engines import Auto, Engine, Kernels, Scheduler
from omlx.settings.option import Option, Unit
from omlx.settings.prompts import Agent, Prompt
from omlx.settings.server import Server


@dataclass(frozen=True, slots=True)
class Models:
    """Where models are looked for."""

    dir: Annotated[
        tuple[Path, ...],
        Option(
            "Folder below which every model is served; may be given several times. "
            "None means models/ in OMLX_HOME.",
            flag="--model-dir",
        ),
    ] = ()
    max_loaded: Annotated[
        int | None,
        Option(
            "Most models loaded at the same time; the least recently used makes room. "
            "None means no limit.",
            flag="--max-loaded-models",
            low=1,
            high=1000,
        ),
    ] = None
    hub_cache: Annotated[
        bool | Auto,
        Option("Serve the models of the Hugging Face cache, too; auto does if no folder is named."),
    ] = "auto"
    alias: Annotated[
        tuple[tuple[str, str], ...],
        Option("Another name for a model, or for a profile of one; may be given several times."),
    ] = ()


@dataclass(frozen=True, slots=True)
class Cache:
    """The prefix cache and its two tiers, memory and disk."""

    enabled: Annotated[bool, Option("Keep prefixes and look them up.", flag="--cache")] = True
    dir: Annotated[
        Path | None,
        Option("Folder of the disk tier. None means cache/ in OMLX_HOME.", flag="--cache-dir"),
    ] = None
    block_size: Annotated[int, Option("Tokens in a block.", low=16, high=4096)] = 256
    isolate: Annotated[
        str,
        Option(
            "Who shares prefixes: everyone, or with key only those who send the same API key.",
            flag="--cache-isolate",
            choices=("none", "key"),
        ),
    ] = "none"
    memory_size: Annotated[
        int | Auto,
        Option(
            "Most bytes in the memory tier; auto is a quarter of the memory, at most 16GB.",
            flag="--cache-memory-size",
            unit=Unit.SIZE,
        ),
    ] = "auto"
    max_size: Annotated[
        int | Auto,
        Option(
            "Most bytes in the disk tier; auto is a tenth of the free space, at most 64GB.",
            flag="--cache-max-size",
            unit=Unit.SIZE,
        ),
    ] = "auto"
    store: Annotated[
        str,
        Option(
            "Where the blocks of requests that say nothing go: all tiers, memory only, or off for "
            "none, while look-ups go on.",
            flag="--cache-store",
            choices=("all", "memory", "off"),
            per_model=True,
        ),
    ] = "all"
    load: Annotated[
        str,
        Option(
            "Whether prefixes are loaded from disk: auto loads what takes longer to compute again, "
            "never only writes.",
            flag="--cache-load",
            choices=("auto", "always", "never"),
        ),
    ] = "auto"
    snapshot_interval: Annotated[
        int,
        Option(
            "Tokens between two snapshots that a model with recurrent layers takes in a prompt.",
            flag="--cache-snapshot-interval",
            low=256,
            high=10**6,
        ),
    ] = 4096
    snapshot_max_size: Annotated[
        int | Auto,
        Option(
            "Most bytes on disk for snapshots of recurrent layers; auto is a quarter of max_size.",
            flag="--cache-snapshot-max-size",
            unit=Unit.SIZE,
        ),
    ] = "auto"
    max_write_per_day: Annotated[
        int | None,
        Option(
            "Most bytes stored on disk in a day (UTC). None means no limit.",
            flag="--cache-max-write-per-day",
            unit=Unit.SIZE,
        ),
    ] = None
    disk_endurance: Annotated[
        int,
        Option(
            "Bytes that the disk may be written with in its life, as its maker says (TBW); only "
            "omlx usage reckons with it.",
            flag="--disk-endurance",
            unit=Unit.SIZE,
            low=1_000_000_000,
        ),
    ] = 600_000_000_000_000
    max_disk_rate: Annotated[
        int,
        Option(
            "Most bytes that the disk tier reads and writes in a second, for each model; 0 is no "
            "limit.",
            flag="--cache-max-disk-rate",
            unit=Unit.SIZE,
        ),
    ] = 0
    min_free: Annotated[
        int,
        Option(
            "Free space on the disk that the disk tier never uses.",
            flag="--cache-min-free",
            unit=Unit.SIZE,
        ),
    ] = 10_000_000_000
    write_delay: Annotated[
        float,
        Option(
            "How long a block rests in the memory tier before it is stored on disk.",
            flag="--cache-write-delay",
            unit=Unit.DURATION,
            high=86400,
        ),
    ] = 2.0

    warm_prompts: Annotated[
        tuple[Path, ...],
        Option(
            "File of a request's JSON body, or of one a line (.jsonl), whose prompt is loaded or "
            "computed once its model is loaded and nothing else runs; may be given several times.",
            flag="--warm-prompt",
            is_file=True,
        ),
    ] = ()
    warm_heads: Annotated[
        int,
        Option(
            "So many heads (system and tools) that most requests in the journal shared are loaded "
            "once their model is; 0 is none.",
            low=0,
            high=1000,
        ),
    ] = 0

    @property
    def is_on(self) -> bool:
        """Whether anything can be kept at all."""
        return self.enabled and bool(self.memory_size or self.max_size)


@dataclass(frozen=True, slots=True)
class Sampling:
    """What a request that names no value gets; None leaves it to the server."""

    temperature: Annotated[
        float | None,
        Option("Default temperature; 0 is greedy.", low=0, high=5, per_model=True),
    ] = None
    top_p: Annotated[
        float | None, Option("Default top_p; 1 is off.", low=0, high=1, per_model=True)
    ] = None
    top_k: Annotated[
        int | None, Option("Default top_k; 0 is off.", low=0, high=10**6, per_model=True)
    ] = None
    min_p: Annotated[
        float | None, Option("Default min_p; 0 is off.", low=0, high=1, per_model=True)
    ] = None
    repetition_penalty: Annotated[
        float | None,
        Option("Default repetition penalty; 1 is off.", low=0.01, high=10, per_model=True),
    ] = None
    presence_penalty: Annotated[
        float | None,
        Option("Default presence penalty; 0 is off.", low=-2, high=2, per_model=True),
    ] = None
    frequency_penalty: Annotated[
        float | None,
        Option("Default frequency penalty; 0 is off.", low=-2, high=2, per_model=True),
    ] = None
    max_tokens: Annotated[
        int | None,
        Option(
            "Default limit of generated tokens; none is the rest of the window.",
            low=1,
            high=10**9,
            per_model=True,
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Parser:
    """How what a model says is split, where its chat template doesn't tell."""

    tools: Annotated[
        str,
        Option(
            "How the model writes calls of tools: auto, none, or the name of a format.",
            flag="--tool-parser",
            per_model=True,
        ),
    ] = "auto"
    reasoning: Annotated[
        str,
        Option(
            "How the model marks its reasoning: auto, none, or the name of a format.",
            flag="--reasoning-parser",
            per_model=True,
        ),
    ] = "auto"


@dataclass(frozen=True, slots=True)
class Journal:
    """One row of figures for each request, for `omlx cache inspect --request`."""

    enabled: Annotated[bool, Option("Keep a row of figures of each request.", flag="--journal")] = (
        True
    )
    text: Annotated[
        bool, Option("Keep the text of prompts in it as well.", flag="--journal-text")
    ] = False
    max_age: Annotated[
        float,
        Option(
            "How long a row is kept.",
            flag="--journal-max-age",
            unit=Unit.DURATION,
            low=60,
            high=10**9,
        ),
    ] = 30 * 86_400.0
    max_size: Annotated[
        int,
        Option(
            "Most bytes in the journal; the oldest rows go first.",
            flag="--journal-max-size",
            unit=Unit.SIZE,
            low=1_000_000,
        ),
    ] = 200_000_000


@dataclass(frozen=True, slots=True)
class Log:
    """What is logged, and where to."""

    level: Annotated[
        str,
        Option(
            "How much is logged.",
            flag="--log-level",
            choices=("debug", "info", "warning", "error"),
        ),
    ] = "info"
    file: Annotated[
        Path | None,
        Option(
            "File that the log and all else on stderr goes to; omlx start names one.",
            flag="--log-file",
            is_file=True,
        ),
    ] = None
    max_size: Annotated[
        int,
        Option(
            "Size of log.file at which a new one is begun; the old one gets the suffix .1.",
            flag="--log-max-size",
            unit=Unit.SIZE,
            low=10_000,
        ),
    ] = 10_000_000
    keep: Annotated[
        int,
        Option(
            "So many old files of the log are kept.",
            flag="--log-keep",
            low=1,
            high=100,
        ),
    ] = 5


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, in groups that are tables in TOML."""

    server: Server = field(default_factory=Server)
    models: Models = field(default_factory=Models)
    cache: Cache = field(default_factory=Cache)
    scheduler: Scheduler = field(default_factory=Scheduler)
    engine: Engine = field(default_factory=Engine)
    kernels: Kernels = field(default_factory=Kernels)
    sampling: Sampling = field(default_factory=Sampling)
    log: Log = field(default_factory=Log)
    journal: Journal = field(default_factory=Journal)
    parser: Parser = field(default_factory=Parser)
    prompt: Prompt = field(default_factory=Prompt)
    agent: Agent = field(default_factory=Agent)
    context_window: Annotated[
        int | None,
        Option(
            "Most tokens of a prompt and its answer, where the model itself allows more.",
            low=16,
            high=10**9,
            per_model=True,
        ),
    ] = None
    thinking: Annotated[
        bool | None,
        Option(
            "Tell chat templates that have a switch for it to let the model think first, or not "
            "to. None leaves it to the template.",
            per_model=True,
        ),
    ] = None
