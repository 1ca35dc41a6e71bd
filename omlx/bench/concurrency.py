"""Streams side by side: all together, each of them, the times between their tokens.

Knows nothing about terminals; every prompt is new, so no number here is of a prefix hit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from omlx.bench.bandwidth import Bandwidth, bound, measure_bandwidth
from omlx.bench.client import Answer, Ask, Target, answers, ask, ask_all
from omlx.bench.failure import BenchError
from omlx.bench.measured import Model, Samples, report_of, server_facts
from omlx.bench.result import Label, Process, Report, Start
from omlx.bench.servers import Serve, serving
from omlx.bench.step import OnStep, Steps, quiet
from omlx.bench.throughput import estimate
from omlx.bench.workload import Words
from omlx.models.weights import StepWeights, step_weights

LEVELS = (1, 2, 4, 8, 16)
_WARM_UP = 32
_LONG_S = 3600.0


@dataclass(frozen=True, slots=True)
class Options:
    """What is measured: so many streams at once, each of a prompt and an answer of such lengths."""

    levels: tuple[int, ...] = LEVELS
    num_tokens: int = 128
    num_decode: int = 96
    rounds: int = 3
    seed: int = 7


@dataclass(frozen=True, slots=True)
class Limit:
    """What bounds decode: the bytes that a step reads, and the rate at which they are read."""

    weights: StepWeights
    bandwidth: Bandwidth


def measure_local(model: Model, options: Options, *, on_step: OnStep = quiet) -> Report:
    """A model of this machine, by a server with an empty store that lets all streams run at once.

    BenchError.
    """
    if model.window is not None and options.num_tokens + options.num_decode > model.window:
        raise BenchError(
            f"a prompt of {options.num_tokens} and {options.num_decode} tokens to decode are more "
            f"than the model's window of {model.window}",
            hint="--tokens and --decode take smaller numbers",
        )
    samples = Samples()
    steps = Steps(2 + len(options.levels) * options.rounds, on_step)
    steps.begin("measures the memory's rate")
    limit = Limit(step_weights(model.folder), measure_bandwidth())
    serve = Serve((model.folder,), {"scheduler.max_concurrent_requests": max(8, *options.levels)})
    steps.begin("starts a server")
    with serving(serve) as server:
        _Course(server.target(model.id), options, model.words(), samples, limit).run(steps)
    steps.end()
    _note_limit(limit, samples)
    sides = {"omlx": {**server_facts(serve), **limit_facts(limit)}}
    return report_of("concurrency", model.id, options, samples, sides=sides, notes=samples.notes)


def measure_remote(
    target: Target, words: Words | None, options: Options, *, on_step: OnStep = quiet
) -> Report:
    """A server that runs already; how much memory bounds it can't be said from here. RequestError.

    Without `words` of the model's tokenizer the lengths of prompts are estimates.
    """
    samples = Samples()
    steps = Steps(1 + len(options.levels) * options.rounds, on_step)
    steps.begin(f"asks {target.url}")
    _Course(target, options, words or Words(estimate), samples, None).run(steps)
    steps.end()
    samples.note("the server's machine may be another one: no fraction of its memory's rate")
    sides = {target.name or target.url: {"url": target.url, "extra": dict(target.extra)}}
    return report_of(
        "concurrency", target.model, options, samples, sides=sides, notes=samples.notes
    )


def limit_facts(limit: Limit) -> dict[str, object]:
    """What the bound was computed from; bytes and bytes per second."""
    weights, bandwidth = limit.weights, limit.bandwidth
    return {
        "step_shared_bytes": weights.shared_bytes,
        "step_expert_bytes": weights.expert_bytes,
        "read_bytes_per_s": bandwidth.best,
        "read_by_matvec_bytes_per_s": bandwidth.matvec,
        "read_by_sum_bytes_per_s": bandwidth.total,
        "device": bandwidth.device,
    }


def _note_limit(limit: Limit, samples: Samples) -> None:
    samples.note(
        "bandwidth fraction is decode of all streams by what reading the weights once a step at "
        f"{limit.bandwidth.best / 1e9:.1f} GB/s would allow; a CPU that computes more slowly than "
        "it reads, or many streams, stay below it for other reasons"
    )


@dataclass(frozen=True, slots=True)
class _Course:
    """Measures one server, and adds to `samples`."""

    target: Target
    options: Options
    words: Words
    samples: Samples
    limit: Limit | None

    def run(self, steps: Steps) -> None:
        """All rounds of all levels; levels take turns, so that a slow minute meets all of them."""
        options = self.options
        warm = self.words.text(_WARM_UP, seed=f"{options.seed} warm-up")
        ask(self.target, Ask(warm, 2))  # the first request is not counted
        for round_idx in range(options.rounds):
            for level in options.levels:
                steps.begin(f"{level} at once, round {round_idx + 1}")
                self._measure(level, round_idx)

    def _measure(self, level: int, round_idx: int) -> None:
        options = self.options
        extra = {"min_tokens": options.num_decode, **self.target.extra}
        jobs = [
            (
                self.target,
                Ask(
                    self.words.text(
                        options.num_tokens, seed=f"{options.seed} {level} {round_idx} {stream}"
                    ),
                    options.num_decode,
                    limit_s=_LONG_S,
                    silence_s=_LONG_S,
                    extra=extra,
                ),
            )
            for stream in range(level)
        ]
        self._take(answers(ask_all(jobs)), level)

    def _take(self, found: Sequence[Answer], level: int) -> None:
        samples, label = self.samples, Label(Process.WARM, Start.MISS, level)
        cached = max(answer.cached_tokens or 0 for answer in found)
        if cached > self.options.num_tokens // 20:
            samples.note(f"{cached:,} tokens of a fresh prompt came from a cache")
            label = Label(Process.WARM, Start.MIXED, level)
        case = {"tokens": self.options.num_tokens}
        for answer in found:
            samples.add("ttft", "s", answer.first_s, label, case)
            if (rate := answer.decode_tokens_per_s) is not None:
                samples.add("stream decode", "tokens/s", rate, label, case)
            for gap_s in answer.gaps_s:
                samples.add("itl", "s", gap_s, label, case)
        samples.add("whole", "tokens/s", whole_rate(found), label, case)
        together = together_rate(found)
        if together is None:
            samples.note(
                f"{level} streams never ran all at once: no rate of all together; "
                "--decode takes a larger number"
            )
            return
        samples.add("decode", "tokens/s", together, label, case)
        if self.limit is not None:
            most = bound(self.limit.weights, self.limit.bandwidth, num_rows=level)
            samples.add("bandwidth fraction", "share", together / most, label, case)


def together_rate(found: Sequence[Answer]) -> float | None:
    """Tokens per second of all streams, over the time in which all of them decode.

    That is from the last first token to the first last one. An event with several tokens counts as
    its answer's mean. None where the streams never ran all at once.
    """
    begin = max(answer.sent + answer.first_s for answer in found)
    end = min(answer.sent + answer.last_s for answer in found)
    if end <= begin:
        return None
    tokens = 0.0
    for answer in found:
        per_event = (answer.completion_tokens or answer.num_events) / answer.num_events
        at = answer.sent + answer.first_s
        events = 0
        for gap_s in answer.gaps_s:
            at += gap_s
            events += begin < at <= end + 1e-9  # sums of gaps are not exact
        tokens += events * per_event
    return tokens / (end - begin)


def whole_rate(found: Sequence[Answer]) -> float:
    """All tokens of the answers per second from the first request to the last token: prefill,
    queues and decode together."""
    begin = min(answer.sent for answer in found)
    end = max(answer.sent + answer.last_s for answer in found)
    tokens = sum(answer.completion_tokens or answer.num_events for answer in found)
    return tokens / (end - begin)
