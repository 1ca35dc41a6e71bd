"""Prefill and decode at growing prompts: in a process without a server, and over HTTP.

Knows nothing about terminals; every prompt is new, so no number here is of a prefix hit.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from omlx.bench.client import Answer, Ask, Target, ask
from omlx.bench.failure import BenchError
from omlx.bench.inproc import Job, Plan, running
from omlx.bench.measured import Model, Samples, report_of, server_facts
from omlx.bench.result import Label, Process, Report, Start
from omlx.bench.servers import Serve, serving
from omlx.bench.step import OnStep, Steps, quiet
from omlx.bench.workload import Words, fitting

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
IN_PROCESS, HTTP = "in process", "HTTP"
_WARM = Label(Process.WARM, Start.MISS)
_WARM_UP = 64


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured: prompts of these lengths, and `num_decode` tokens after the first."""

    lengths: tuple[int, ...] = LENGTHS
    num_decode: int = 64
    rounds: int = 3
    seed: int = 7


def measure_local(
    model: Model, options: Options, *, transports: Iterable[str], on_step: OnStep = quiet
) -> Report:
    """A model of this machine, in one process for each transport; BenchError."""
    chosen = tuple(transports)
    lengths, notes = _fitting(options, model.window)
    steps = Steps(len(chosen) * (1 + len(lengths) * options.rounds), on_step)
    samples, sides = Samples(), dict[str, dict[str, object]]()
    if IN_PROCESS in chosen:
        _in_process(model, options, lengths, samples, steps)
    if HTTP in chosen:
        steps.begin("starts a server")
        serve = Serve((model.folder,))
        with serving(serve) as server:
            sides["omlx"] = server_facts(serve)
            count = model.words().text
            _over_http(server.target(model.id), options, lengths, samples, _Prompts(count, steps))
    steps.end()
    return report_of(
        "throughput",
        model.id,
        options,
        samples,
        sides=sides,
        notes=[*notes, *samples.notes],
    )


def measure_remote(
    target: Target, words: Words | None, options: Options, *, on_step: OnStep = quiet
) -> Report:
    """A server that runs already; without `words` of the model's tokenizer lengths are estimates.

    RequestError. The server's window is not known: lengths that it refuses end the course there.
    """
    samples = Samples()
    steps = Steps(1 + len(options.lengths) * options.rounds, on_step)
    steps.begin(f"asks {target.url}")
    text = (words or Words(estimate)).text
    _over_http(target, options, options.lengths, samples, _Prompts(text, steps))
    steps.end()
    return report_of(
        "throughput",
        target.model,
        options,
        samples,
        sides={target.name or target.url: {"url": target.url, "extra": dict(target.extra)}},
        notes=samples.notes,
    )


def estimate(text: str) -> int:
    """Tokens of a text of short words, where no tokenizer is at hand: one a word."""
    return len(text.split())


def _fitting(options: Options, window: int | None) -> tuple[tuple[int, ...], list[str]]:
    """The lengths that the model's window takes, and a note on those that it does not."""
    lengths = fitting(options.lengths, window=window, reserve=options.num_decode + 1)
    if not lengths:
        raise BenchError(
            f"no length fits the model's window of {window} tokens with "
            f"{options.num_decode} tokens to decode",
            hint="--tokens takes smaller ones",
        )
    left = [f"{length:,}" for length in options.lengths if length not in lengths]
    note = f"longer than the model's window of {window:,} tokens: {', '.join(left)}" if left else ""
    return tuple(lengths), [note] if note else []


def _in_process(
    model: Model,
    options: Options,
    lengths: Iterable[int],
    samples: Samples,
    steps: Steps,
) -> None:
    jobs = tuple(
        Job(length, options.num_decode, round_idx)
        for round_idx in range(options.rounds)
        for length in lengths
    )
    plan = Plan(str(model.folder), model.num_vocab, options.seed, jobs)
    steps.begin("loads the model in a process")
    with running(plan) as results:
        for job in jobs:
            steps.begin(f"{IN_PROCESS}, {job.num_tokens:,} tokens, round {job.round_idx + 1}")
            timed = next(results)
            if timed.cached_tokens:
                raise BenchError("a fresh prompt hit the cache: its figures are of no use")
            case = {"tokens": job.num_tokens, "transport": IN_PROCESS}
            samples.add("prefill", "tokens/s", job.num_tokens / timed.ttft_s, _WARM, case)
            samples.add("ttft", "s", timed.ttft_s, _WARM, case)
            if timed.num_decoded and timed.decode_s > 0:
                rate = timed.num_decoded / timed.decode_s
                samples.add("decode", "tokens/s", rate, _WARM, case)


@dataclass(frozen=True, slots=True)
class _Prompts:
    """Makes texts of a number of tokens, and counts the steps."""

    text: Callable[..., str]
    steps: Steps


def _over_http(
    target: Target,
    options: Options,
    lengths: Iterable[int],
    samples: Samples,
    prompts: _Prompts,
) -> None:
    extra = {"min_tokens": options.num_decode + 1, **target.extra}
    warm = prompts.text(_WARM_UP, seed=f"{options.seed} warm-up")
    ask(target, Ask(warm, 2))  # the first request is not counted
    counts: dict[int, set[int]] = defaultdict(set)
    for round_idx in range(options.rounds):
        for length in lengths:
            prompts.steps.begin(f"{HTTP}, {length:,} tokens, round {round_idx + 1}")
            text = prompts.text(length, seed=f"{options.seed} http {length} {round_idx}")
            request = Ask(text, options.num_decode + 1, limit_s=3600, silence_s=3600, extra=extra)
            answer = ask(target, request)
            if answer.prompt_tokens is not None:
                counts[length].add(answer.prompt_tokens)
            _take(answer, length, samples)
    _note_counts(counts, samples)


def _take(answer: Answer, length: int, samples: Samples) -> None:
    case = {"tokens": length, "transport": HTTP}
    cached = answer.cached_tokens or 0
    label = _WARM
    if cached > length // 20:
        samples.note(f"{cached:,} tokens of a fresh prompt of {length:,} came from a cache")
        label = Label(Process.WARM, Start.MIXED)
    num_tokens = answer.prompt_tokens or length
    samples.add("prefill", "tokens/s", num_tokens / answer.first_s, label, case)
    samples.add("ttft", "s", answer.first_s, label, case)
    rate = answer.decode_tokens_per_s
    if rate is None:
        samples.note(f"the answer at {length:,} tokens had one token: no rate of decode")
    else:
        samples.add("decode", "tokens/s", rate, label, case)


def _note_counts(counts: dict[int, set[int]], samples: Samples) -> None:
    odd = {length: found for length, found in counts.items() if found != {length}}
    for length, found in odd.items():
        shown = ", ".join(f"{number:,}" for number in sorted(found))
        samples.note(f"the server counts {shown} tokens where {length:,} were meant")
