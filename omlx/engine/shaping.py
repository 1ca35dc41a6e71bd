"""What a step does with logits before they are sampled from: masks, log-probabilities, biases.

Knows nothing about grammars, stop conditions or requests. Engine thread only.

A mask for the next token needs the one before. That is read only once the forward pass that it
goes into has been launched, so masks are computed while the device works.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import mlx.core as mx
import numpy as np

_mx: Any = mx  # for calls that its stubs leave untyped
_FREE = 0xFFFFFFFF
Top = tuple[tuple[int, float], ...]


class Constrains(Protocol):
    """What a row's constraint has to do; see omlx.engine.constrain.Constraint."""

    @property
    def eos_ids(self) -> tuple[int, ...]: ...
    @property
    def error(self) -> str: ...
    def follow(self, token: int) -> None: ...
    def mask(self) -> np.ndarray[Any, np.dtype[np.uint32]]: ...


class Noter:
    """The log-probability of each token of a row, with the `num_top` best ones of its step."""

    def __init__(self, num_top: int) -> None:
        self._num_top = num_top
        self._open: mx.array | None = None
        self._done: deque[tuple[mx.array, mx.array, mx.array]] = deque()

    def see(self, logits: mx.array) -> None:
        """Keep what the next token is chosen from, of shape [V] (mutates)."""
        exact = logits.astype(mx.float32)
        self._open = exact - mx.logsumexp(exact)

    def settle(self, token: mx.array) -> None:
        """The token of the step seen last is this one, which may be lazy (mutates)."""
        if self._open is None:
            return
        best = mx.argsort(-self._open)[: self._num_top]
        entry = (self._open[token], best, self._open[best])
        _mx.async_eval(*entry)
        self._done.append(entry)
        self._open = None

    def take(self) -> tuple[float, Top]:
        """What was noted of the oldest token that is settled (mutates)."""
        parts: list[Any] = [part.tolist() for part in self._done.popleft()]
        chosen, best, values = parts
        pairs = zip(best, values, strict=True)
        return float(chosen), tuple((int(token), float(value)) for token, value in pairs)


@dataclass(frozen=True, slots=True)
class Shape:
    """What one row wants of each step; `fail` is told why its constraint can't go on."""

    constraint: Constrains | None
    noter: Noter | None
    fail: Callable[[Exception], None]


def noted(shape: Shape | None, token: mx.array | None = None) -> tuple[float | None, Top]:
    """What a row noted of the token that is delivered; `token` is one that no step has taken."""
    if shape is None or shape.noter is None:
        return None, ()
    if token is not None:
        shape.noter.settle(token)
    return shape.noter.take()


def shaped(model: Any, inputs: mx.array, cache: Any, shapes: Sequence[Shape | None]) -> mx.array:
    """The logits of one step, [B, 1, V]; rows without a shape are as the model gave them."""
    if not any(shapes):
        return model(inputs, cache=cache)
    assert len(shapes) == inputs.shape[0], "one entry a row"
    noters = [(idx, s.noter) for idx, s in enumerate(shapes) if s and s.noter]
    for idx, noter in noters:
        noter.settle(inputs[idx, -1])
    logits = model(inputs, cache=cache)[:, -1, :]
    for idx, noter in noters:
        noter.see(logits[idx])
    if any(s and s.constraint for s in shapes):
        _mx.async_eval(logits)  # the device works while masks are computed
        words = _words(inputs[:, -1], shapes, logits.shape[-1])
        logits = _masked(logits, mx.array(_plain(words)))
    return logits[:, None, :]


def _words(
    tokens: mx.array, shapes: Sequence[Shape | None], num_vocab: int
) -> np.ndarray[Any, np.dtype[np.uint32]]:
    """The masks of all rows, one bit a token."""
    words = np.full((len(shapes), (num_vocab + 31) // 32), _FREE, dtype=np.uint32)
    read: Any = tokens.tolist()
    for idx, shape in enumerate(shapes):
        if shape is None or shape.constraint is None or shape.constraint.error:
            continue
        shape.constraint.follow(read[idx])
        mask = shape.constraint.mask()
        if shape.constraint.error:
            shape.fail(ValueError(shape.constraint.error))
        else:
            words[idx] = mask
    return words


def _plain(array: Any) -> Any:
    """What mlx takes of numpy, which its stubs don't say."""
    return array


def _masked(logits: mx.array, words: mx.array) -> mx.array:
    bits: Any = (words[:, :, None] >> mx.arange(32, dtype=mx.uint32)) & 1
    allowed = bits.reshape(words.shape[0], -1)[:, : logits.shape[-1]].astype(mx.bool_)
    return mx.where(allowed, logits, mx.array(-math.inf, logits.dtype))


class ShapedModel:
    """The model as a generator calls it, once or twice a step; the batch says before which rows."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._calls: deque[Sequence[Shape | None]] = deque()

    def expect(self, calls: Sequence[Sequence[Shape | None]]) -> None:
        """The rows of the next calls, in order; a call may be of the first of its rows only."""
        self._calls = deque(calls)

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        shapes = self._calls.popleft()[: inputs.shape[0]] if self._calls else ()
        return shaped(self._model, inputs, cache, shapes)


def biased(
    bias: Sequence[tuple[int, float]], num_vocab: int
) -> Callable[[mx.array, mx.array], mx.array]:
    """A processor that adds to the logits of some tokens."""
    values = np.zeros(num_vocab, dtype=np.float32)
    for token, value in bias:
        values[token] += value
    added = mx.array(_plain(values))

    def process(tokens: mx.array, logits: mx.array) -> mx.array:
        return logits + added.astype(logits.dtype)

    return process


def held_back(
    token_ids: Sequence[int], num_steps: int, num_vocab: int
) -> Callable[[mx.array, mx.array], mx.array]:
    """A processor that lets none of these tokens be chosen for so many steps, unless nothing else
    is left."""
    is_held = np.zeros(num_vocab, dtype=np.bool_)
    is_held[list(token_ids)] = True
    held = mx.array(_plain(is_held))
    left = [num_steps]

    def process(tokens: mx.array, logits: mx.array) -> mx.array:
        if left[0] <= 0:
            return logits
        left[0] -= 1
        others = mx.where(held, mx.array(-math.inf, logits.dtype), logits)
        return mx.where(mx.any(others > -math.inf, axis=-1, keepdims=True), others, logits)

    return process
