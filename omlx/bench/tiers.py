"""The time to the first token by where a prefix comes from: nowhere, memory, disk, after a restart.

Knows nothing about terminals. Every round has a fresh process and an empty store.
"""

import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from omlx.bench.client import Ask, Target, ask
from omlx.bench.kinds import KINDS, make_models
from omlx.bench.measured import Model, Samples, report_of, server_facts
from omlx.bench.result import Check, Label, Process, Ratio, Report, Start
from omlx.bench.servers import Serve
from omlx.bench.spread import paired_ratio
from omlx.bench.step import OnStep, Steps, quiet
from omlx.bench.throughput import estimate
from omlx.bench.tiercourse import NO_LIMIT, Course, Seen, served_with
from omlx.bench.workload import Words, token_ids

RATES = (100_000_000, 500_000_000, 2_000_000_000)
_PAIRS = (
    # what is compared with what: a hit with a miss of a process that was as warm
    ("memory hit", "miss"),
    ("disk hit", "miss"),
    ("restart", "first request"),
)


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured: prompts of `num_tokens`, and disks of so many bytes per second as well."""

    num_tokens: int = 2048
    rates: tuple[int, ...] = RATES
    kinds: tuple[str, ...] = KINDS
    rounds: int = 3
    seed: int = 7


def measure_kinds(options: Options, *, on_step: OnStep = quiet) -> Report:
    """Tiny random models of the kinds of layers that are asked for; BenchError."""
    with tempfile.TemporaryDirectory(prefix="omlx-bench-") as folder:
        models = make_models(options.kinds, Path(folder), seed=options.seed)
        return _measure(models, "tiny random models", options, on_step)


def measure_model(model: Model, options: Options, *, on_step: OnStep = quiet) -> Report:
    """One model of this machine; BenchError."""
    return _measure([model], model.id, options, on_step)


def measure_remote(
    target: Target, words: Words | None, options: Options, *, on_step: OnStep = quiet
) -> Report:
    """A server that runs already: a new prompt, and the same again. RequestError.

    What needs a restart, or its disk, can't be measured from outside.
    """
    samples = Samples()
    steps = Steps(options.rounds, on_step)
    words = words or Words(estimate)
    ask(target, Ask(words.text(32, seed=f"{options.seed} warm-up"), 2))
    case = {"layers": target.model, "tokens": options.num_tokens, "disk": NO_LIMIT}
    for round_idx in range(options.rounds):
        steps.begin(f"a miss and a repeat, round {round_idx + 1}")
        text = words.text(options.num_tokens, seed=f"{options.seed} remote {round_idx}")
        for step, start in (("miss", Start.MISS), ("repeat", Start.MIXED)):
            answer = ask(target, Ask(text, 2))
            label = Label(Process.WARM, start if answer.cached_tokens else Start.MISS)
            samples.add("ttft", "s", answer.first_s, label, {**case, "step": step})
            if answer.uncached_tokens is None:
                samples.note("the server does not say how many tokens it had cached")
            else:
                value = answer.uncached_tokens
                samples.add("uncached", "tokens", value, label, {**case, "step": step})
    steps.end()
    samples.note("which tier a repeat came from is not known from outside: prefix mixed")
    samples.note("a restart, and the disk, can't be measured of a server that others run")
    sides = {target.name or target.url: {"url": target.url, "extra": dict(target.extra)}}
    return report_of("cache", target.model, options, samples, sides=sides, notes=samples.notes)


def _measure(models: Sequence[Model], name: str, options: Options, on_step: OnStep) -> Report:
    samples = Samples()
    seen: dict[tuple[str, str, str], list[Seen]] = defaultdict(list)
    steps = Steps(options.rounds * len(models) * (3 + len(options.rates)), on_step)
    serves = {model.id: Serve((model.folder,), served_with()) for model in models}
    for round_idx in range(options.rounds):
        for model in models:
            prompts = _prompts(model, options, round_idx)
            what = f"{model.id}, round {round_idx + 1}"
            course = Course(serves[model.id], model, prompts, steps, what, samples.note)
            for one in course.run(options.rates):
                _take(one, model, options, samples)
                seen[model.id, one.step, one.disk].append(one)
    steps.end()
    return report_of(
        "cache",
        name,
        options,
        samples,
        sides={model.id: server_facts(serves[model.id]) for model in models},
        ratios=[ratio for model in models for ratio in _ratios(model.id, seen, options)],
        checks=[_check(key, found) for key, found in seen.items()],
        notes=samples.notes,
    )


def _prompts(model: Model, options: Options, round_idx: int) -> tuple[Sequence[int], Sequence[int]]:
    """Two prompts that share no block: random token ids, as layers don't care for words."""
    first, second = (
        token_ids(
            options.num_tokens,
            seed=f"{options.seed} cache {round_idx} {name}",
            num_vocab=model.num_vocab - 1,  # not the last one, which may end an answer
        )
        for name in "ab"
    )
    return first, second


def _take(seen: Seen, model: Model, options: Options, samples: Samples) -> None:
    case = {
        "layers": model.id,
        "tokens": options.num_tokens,
        "step": seen.step,
        "disk": seen.disk,
    }
    samples.add("ttft", "s", seen.ttft_s, seen.label, case)
    samples.add("uncached", "tokens", seen.uncached_tokens, seen.label, case)
    if seen.ready_s is not None:
        label = Label(Process.COLD, seen.label.start)
        samples.add("ready", "s", seen.ready_s, label, case)
    if seen.memory_bytes is not None:
        samples.add("memory", "bytes", seen.memory_bytes, seen.label, case)


def _ratios(
    model_id: str, seen: dict[tuple[str, str, str], list[Seen]], options: Options
) -> list[Ratio]:
    """How long a hit takes of what a miss takes, round by round."""
    found: list[Ratio] = []
    disks = dict.fromkeys(disk for name, _, disk in seen if name == model_id)
    for hit, miss in _PAIRS:
        for disk in disks:
            hits = seen.get((model_id, hit, disk), [])
            base = seen.get((model_id, miss, NO_LIMIT), [])
            if not hits or len(hits) != len(base):
                continue
            ratio = paired_ratio([one.ttft_s for one in hits], [one.ttft_s for one in base])
            case = {"layers": model_id, "tokens": options.num_tokens, "disk": disk}
            found.append(Ratio("ttft", hit, miss, hits[0].label, ratio, case))
    return found


def _check(key: tuple[str, str, str], found: Sequence[Seen]) -> Check:
    """Whether a step was what it is meant to be, as far as the cache promises it."""
    model_id, step, disk = key
    name = f"{model_id}: {step}" + ("" if disk == NO_LIMIT else f" at {disk}")
    most = max(one.uncached_tokens for one in found)
    starts = sorted({one.label.start.value for one in found})
    is_right = all(one.is_as_meant for one in found)
    words = " and ".join("nowhere" if one == Start.MISS.value else one for one in starts)
    reason = f"prefix from {words}; at most {most:,} tokens computed"
    if not is_right:
        reason += f"; meant was {found[0].meant}"
    return Check(name, is_right, reason, {"most_uncached_tokens": most})
