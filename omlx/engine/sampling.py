"""Samplers and logits processors of one request, whose faults end that request alone.

Knows nothing about batches or stop conditions. Engine thread only.

Logits that are not finite are found on the device: the token sampled from them is NOT_FINITE. A
step is launched before the tokens of the last one are read, and looking at logits from here would
make the device wait.
"""

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx
from mlx_lm.sample_utils import greedy_sampler, make_logits_processors

from omlx.engine.request import SamplingParams
from omlx.engine.shaping import Constrains, Noter, Shape, biased, held_back

_log = logging.getLogger("omlx.engine.sampling")
_PENALTY_WINDOW = 1024  # tokens that a penalty looks back over
_MIN_TEMPERATURE = 1e-4  # below it the draw is greedy, and 1 / temperature stays finite
_MIN_TOP_P = 1e-6  # keeps the most probable token, as 0 must
_MAX_BIAS = 100.0
_MAX = 1e6  # of any other parameter
_MIX = 0x9E3779B97F4A7C15  # odd constant of SplitMix64: spreads (seed, position) over 64 bits
NOT_FINITE = -1  # no token, but an index that a model takes: it goes into the step that runs ahead

Sampler = Callable[[mx.array], mx.array]
Processor = Callable[[mx.array, mx.array], mx.array]


class Fault:
    """Remembers that a request's own sampling code raised."""

    def __init__(self) -> None:
        self.message: str | None = None

    def record(self, error: Exception) -> None:
        """Keep the first error."""
        _log.warning("a sampler or processor raised", exc_info=error)
        if self.message is None:
            self.message = f"sampling failed: {error}"


class RawLogits:
    """What the model said in the last two steps of a row, before the row's processors change it."""

    def __init__(self) -> None:
        self._steps: deque[mx.array] = deque(maxlen=2)

    def see(self, tokens: mx.array, logits: mx.array) -> mx.array:
        """A processor that changes nothing."""
        self._steps.append(mx.logsumexp(logits))  # computed if asked for; others write into logits
        return logits

    def were_finite(self) -> bool:
        """Whether the older step could be sampled from: the one whose token is read only now that
        the next step has been launched. Waits for the device."""
        return bool(self._steps) and bool(mx.isfinite(self._steps[0]).item())


@dataclass(frozen=True, slots=True)
class Sampling:
    """What the batch calls for one row; `raw` is None for a row without processors."""

    sampler: Sampler
    processors: tuple[Processor, ...]
    fault: Fault
    raw: RawLogits | None = None
    shape: Shape | None = None

    @property
    def ends(self) -> tuple[tuple[int], ...]:
        """Stop sequences beside the request's own: what ends an answer that is constrained."""
        constraint = self.shape.constraint if self.shape else None
        return tuple((token,) for token in constraint.eos_ids) if constraint else ()

    def blame(self) -> None:
        """A token was NOT_FINITE: it is a fault of the row if only its processors made it so."""
        if self.raw is not None and self.raw.were_finite():
            self.fault.record(ArithmeticError("no logit is finite after its penalties"))


def problem(params: SamplingParams) -> str:
    """Why nothing can be sampled this way; empty if it can. NaN is never in range."""
    ranges = {
        "temperature": (0.0, _MAX),
        "top_p": (0.0, 1.0),
        "top_k": (0.0, math.inf),
        "min_p": (0.0, 1.0),
        "repetition_penalty": (1 / _MAX, _MAX),
        "presence_penalty": (-_MAX, _MAX),
        "frequency_penalty": (-_MAX, _MAX),
        "min_tokens": (0.0, math.inf),
    }
    for name, (low, high) in ranges.items():
        if not low <= getattr(params, name) <= high:
            return f"{name} is out of range"
    if params.logprobs is not None and params.logprobs < 0:
        return "logprobs is out of range"
    if any(not -_MAX_BIAS <= bias <= _MAX_BIAS for _, bias in params.logit_bias):
        return f"a value of logit_bias is not between -{_MAX_BIAS:.0f} and {_MAX_BIAS:.0f}"
    return ""


def _checked(logprobs: mx.array, tokens: mx.array) -> mx.array:
    """The tokens as int32, NOT_FINITE where what was chosen has no finite log-probability.

    NaN or infinity anywhere makes all log-probabilities NaN or infinite; -infinity at a token that
    is not chosen is a mask. Every sampler gives int32, since rows are joined in one array.
    """
    chosen = mx.take_along_axis(logprobs, tokens[..., None], axis=-1).squeeze(-1)
    return mx.where(mx.isfinite(chosen), tokens.astype(mx.int32), NOT_FINITE)


def greedy(logprobs: mx.array) -> mx.array:
    """The sampler of every greedy row."""
    return _checked(logprobs, greedy_sampler(logprobs))


def _key(seed: int, position: int) -> mx.array:
    return mx.random.key((seed * _MIX + position * 2 + 1) % 2**63)


# mlx-lm's own filters are compiled with the parameter as a constant: each new value would hold
# the engine up for about a second while a compiler runs.


def _keep_top_k(scaled: mx.array, k: int) -> mx.array:
    others = mx.argpartition(-scaled, kth=k - 1, axis=-1)[..., k:]
    return mx.put_along_axis(scaled, others, mx.array(-math.inf, scaled.dtype), axis=-1)


def _keep_top_p(scaled: mx.array, p: float) -> mx.array:
    ordered = mx.sort(scaled, axis=-1)
    weights = mx.exp(ordered.astype(mx.float32))
    above = mx.cumsum(weights, axis=-1, reverse=True, inclusive=False)
    total = above[..., :1] + weights[..., :1]
    num_dropped = (above >= p * total).sum(axis=-1, keepdims=True)
    least = mx.take_along_axis(ordered, num_dropped, axis=-1)
    return mx.where(scaled < least, -math.inf, scaled)


def _keep_min_p(scaled: mx.array, p: float) -> mx.array:
    least = mx.max(scaled, axis=-1, keepdims=True) + math.log(p)
    return mx.where(scaled < least, -math.inf, scaled)


def _random_sampler(params: SamplingParams, *, seed: int, position: int, num_vocab: int) -> Sampler:
    """A sampler whose n-th draw depends on (seed, position + n) only, not on its neighbours."""
    drawn = [position]
    scale = 1.0 / max(params.temperature, _MIN_TEMPERATURE)

    def sample(logprobs: mx.array) -> mx.array:
        key = _key(seed, drawn[0])
        drawn[0] += 1
        # The best is moved to 0 first: all probabilities would underflow at low temperatures.
        scaled = (logprobs - mx.max(logprobs, axis=-1, keepdims=True)) * scale
        if 0 < params.top_k < num_vocab:
            scaled = _keep_top_k(scaled, params.top_k)
        if params.top_p < 1.0:
            scaled = _keep_top_p(scaled, max(params.top_p, _MIN_TOP_P))
        if params.min_p > 0.0:
            scaled = _keep_min_p(scaled, params.min_p)
        # Not `categorical`, which inverts the sum of probabilities: a last bit of one logit moves
        # all that come after it, and the same seed gave another token in one draw of a hundred.
        return mx.argmax(scaled + mx.random.gumbel(scaled.shape, key=key), axis=-1)

    return sample


def _guard_sampler(sampler: Sampler, fault: Fault) -> Sampler:
    def sample(logprobs: mx.array) -> mx.array:
        if fault.message is None:
            try:
                return _checked(logprobs, sampler(logprobs))
            except (ValueError, TypeError, RuntimeError, ArithmeticError, LookupError) as error:
                fault.record(error)
        return greedy(logprobs)

    return sample


def _guard_processor(processor: Processor, fault: Fault) -> Processor:
    def process(tokens: mx.array, logits: mx.array) -> mx.array:
        if fault.message is None:
            try:
                return processor(tokens, logits)
            except (ValueError, TypeError, RuntimeError, ArithmeticError, LookupError) as error:
                fault.record(error)
        return logits

    return process


def make_sampling(
    params: SamplingParams,
    *,
    seed: int,
    position: int,
    num_vocab: int,
    extra: Sequence[Processor] = (),
    stops: Sequence[Sequence[int]] = (),
    constraint: Constrains | None = None,
) -> Sampling:
    """What a row needs; `seed` is used where the request names none, `position` is how many tokens
    it has emitted before. Greedy rows share one sampler, so that a batch of them is one call."""
    fault = Fault()
    sampler: Sampler = greedy
    if params.temperature > 0:
        own = params.seed if params.seed is not None else seed
        raw = _random_sampler(params, seed=own, position=position, num_vocab=num_vocab)
        sampler = _guard_sampler(raw, fault)
    penalties = make_logits_processors(
        repetition_penalty=None if params.repetition_penalty == 1.0 else params.repetition_penalty,
        repetition_context_size=_PENALTY_WINDOW,
        presence_penalty=params.presence_penalty or None,
        presence_context_size=_PENALTY_WINDOW,
        frequency_penalty=params.frequency_penalty or None,
        frequency_context_size=_PENALTY_WINDOW,
    )
    own_extra: list[Processor] = []
    if params.logit_bias:
        own_extra.append(biased(params.logit_bias, num_vocab))
    if params.min_tokens > position:
        eos_ids = constraint.eos_ids if constraint else ()
        ids = {s[0] for s in stops if len(s) == 1 and 0 <= s[0] < num_vocab}.union(eos_ids)
        own_extra.append(held_back(sorted(ids), params.min_tokens - position, num_vocab))
    processors = tuple(_guard_processor(p, fault) for p in (*penalties, *own_extra, *extra))
    shape = None
    if constraint is not None or params.logprobs is not None:
        noter = None if params.logprobs is None else Noter(params.logprobs)
        shape = Shape(constraint, noter, fault.record)
    if not processors:
        return Sampling(sampler, (), fault, shape=shape)
    raw = RawLogits()
    return Sampling(sampler, (raw.see, *processors), fault, raw, shape)
