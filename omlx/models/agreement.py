"""Compares a model's predictions with a reference's on a text: perplexity, KL, top-1 agreement.

Knows nothing about files of text or processes. Logits stream through in windows, so memory stays
bounded by one window; the reference's wait in a file, so that two models never share memory.
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

import mlx.core as mx
import mlx.utils
import mlx_lm.utils
import numpy as np
import numpy.typing as npt
from mlx_lm.models.cache import make_prompt_cache

from omlx.errors import ModelError
from omlx.models.corpus import Context, digest

# What the stubs of these libraries leave untyped.
_mx: Any = mx
_loading: Any = mlx_lm.utils
_trees: Any = mlx.utils
_WINDOW_BYTES = 64 * 2**20
_RAW = {mx.float32: np.dtype("<f4"), mx.float16: np.dtype("<f2"), mx.bfloat16: np.dtype("<u2")}
_NAMES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}

Array = npt.NDArray[np.float64]
OnTokens = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Window:
    """Logits [n, vocabulary] of one context's next tokens, and those tokens [n]."""

    context_idx: int
    logits: mx.array
    targets: mx.array


@dataclass(frozen=True, slots=True)
class Scores:
    """Per predicted token, in float64: nats; empty arrays where there was no reference.

    `kl` is KL(reference || model), `reverse_kl` KL(model || reference).
    """

    context_idx: npt.NDArray[np.int64]
    loss: Array
    kl: Array
    reverse_kl: Array
    agrees: Array

    def of_context(self, idx: int) -> "Scores":
        """The same for one context."""
        here = self.context_idx == idx
        if not len(self.kl):
            return Scores(self.context_idx[here], self.loss[here], self.kl, self.kl, self.kl)
        return Scores(
            self.context_idx[here],
            self.loss[here],
            self.kl[here],
            self.reverse_kl[here],
            self.agrees[here],
        )


def in_float32(model: Any) -> Any:
    """The model with quantized matrices expanded and all numbers in float32 (mutates it).

    The values stay what they are, but sums are more exact than on a device: for comparisons on a
    CPU, where packed and half-width matrices are many times slower.
    """
    model = _loading.dequantize_model(model)

    def cast_one(array: mx.array) -> mx.array:
        is_half = array.dtype in (mx.float16, mx.bfloat16)
        return array.astype(mx.float32) if is_half else array

    model.update(_trees.tree_map(cast_one, model.parameters()))
    _mx.eval(model.parameters())
    return model


def windows(
    model: Any,
    contexts: Sequence[Context],
    *,
    window: int | None = None,
    progress: OnTokens | None = None,
) -> Iterator[Window]:
    """Each context's logits, `window` tokens at a time from a growing cache.

    Without `window`, as many as have 64 MiB of logits in float32.
    """
    total = sum(context.num_predicted for context in contexts)
    done = 0
    for idx, context in enumerate(contexts):
        caches = make_prompt_cache(model)
        first = 0
        while first < context.num_predicted:
            step = window or 32  # the first window tells how wide the logits are
            end = min(context.num_predicted, first + step)
            inputs = mx.array([list(context.tokens[first:end])])
            logits = model(inputs, cache=caches)[0]
            _mx.eval(logits, [cache.state for cache in caches])
            if window is None:
                window = max(1, _WINDOW_BYTES // (4 * int(logits.shape[-1])))
            yield Window(idx, logits, mx.array(list(context.tokens[first + 1 : end + 1])))
            done += end - first
            first = end
            if progress is not None:
                progress(done, total)


def score(
    found: Iterator[Window], reference: "Recording | None" = None, *, name: str = "the model"
) -> Scores:
    """The scores of all predicted tokens; logits are compared in float32, sums are in float64."""
    rows: list[tuple[int, list[npt.NDArray[np.float32]]]] = []
    for window in found:
        logits = window.logits.astype(mx.float32)
        log_q = _log_softmax(logits)
        values = [-mx.take_along_axis(log_q, window.targets[:, None], axis=-1)[:, 0]]
        if reference is not None:
            log_p = _log_softmax(reference.read(len(window.targets), int(logits.shape[-1])))
            values += [_kl(log_p, log_q), _kl(log_q, log_p)]
            values.append(mx.argmax(log_p, axis=-1) == mx.argmax(log_q, axis=-1))
        _mx.eval(values)
        rows.append((window.context_idx, [np.array(v.astype(mx.float32)) for v in values]))
        if not bool(np.isfinite(rows[-1][1][0]).all()):
            raise _not_finite(name)
    return _joined(rows)


class Recording:
    """A file of logits, written by `record` and read from front to back; a context manager."""

    def __init__(self, path: Path, contexts: Sequence[Context]) -> None:
        head = json.loads(path.with_suffix(".json").read_text("utf-8"))
        if head["digest"] != digest(contexts):
            raise ModelError(
                "the model and the reference make other tokens of the same text",
                hint="Compare models that have the same tokenizer.",
            )
        self._dtype = _NAMES[head["dtype"]]
        self._num_vocab = int(head["num_vocab"])
        self._file = path.open("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def read(self, num_rows: int, num_vocab: int) -> mx.array:
        """The next rows [n, vocabulary] in float32 (mutates)."""
        if num_vocab != self._num_vocab:
            raise ModelError(
                f"the model predicts {num_vocab} tokens, the reference {self._num_vocab}",
                hint="Compare models that have the same vocabulary.",
            )
        raw = _RAW[self._dtype]
        data = self._file.read(num_rows * num_vocab * raw.itemsize)
        values: npt.NDArray[Any] = np.frombuffer(data, raw).reshape(num_rows, num_vocab)
        array = mx.array(values)
        if self._dtype == mx.bfloat16:
            array = array.view(mx.bfloat16)
        return array.astype(mx.float32)


def record(found: Iterator[Window], contexts: Sequence[Context], path: Path) -> Iterator[Window]:
    """Pass windows on, and keep their logits in a new file as they are, exactly."""
    head: dict[str, object] = {}
    with path.open("xb") as file:
        for window in found:
            dtype = window.logits.dtype
            if dtype not in _RAW:
                raise ModelError(f"logits of type {dtype} can't be compared")
            name = next(name for name, kind in _NAMES.items() if kind == dtype)
            head = {"dtype": name, "num_vocab": int(window.logits.shape[-1])}
            raw = window.logits.view(mx.uint16) if dtype == mx.bfloat16 else window.logits
            values: Any = np.asarray(raw)
            file.write(np.ascontiguousarray(values).data)
            yield window
    head["digest"] = digest(contexts)
    path.with_suffix(".json").write_text(json.dumps(head), "utf-8")


def recorded_bytes(contexts: Sequence[Context], num_vocab: int, *, value_bytes: int = 4) -> int:
    """What a recording takes on disk at most."""
    return sum(one.num_predicted for one in contexts) * num_vocab * value_bytes


def perplexity(scores: Scores) -> float:
    """exp of the mean loss; of one that floats have no room for, the most that they have."""
    return math.exp(min(float(scores.loss.mean()), 700.0))


def _log_softmax(logits: mx.array) -> mx.array:
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)


def _kl(log_p: mx.array, log_q: mx.array) -> mx.array:
    # A token that p rules out counts nothing, whatever q says of it.
    terms = mx.where(log_p > -math.inf, mx.exp(log_p) * (log_p - log_q), 0.0)
    return mx.sum(terms, axis=-1)


def _not_finite(name: str) -> ModelError:
    return ModelError(
        f"{name} gives logits that are not finite",
        hint="Its weights are damaged, or overflow in their type.",
    )


def _joined(rows: Sequence[tuple[int, list[npt.NDArray[np.float32]]]]) -> Scores:
    idx = np.concatenate([np.full(len(values[0]), at, np.int64) for at, values in rows])
    columns = [
        np.concatenate([values[column] for _, values in rows]).astype(np.float64)
        for column in range(len(rows[0][1]))
    ]
    empty = np.zeros(0)
    columns += [empty] * (4 - len(columns))
    return Scores(idx, *cast(tuple[Array, Array, Array, Array], tuple(columns)))
