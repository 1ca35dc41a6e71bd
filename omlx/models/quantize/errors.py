"""Measures what each format of a matrix costs: its output error, by its effect on the logits.

Knows nothing about layers or files. The effect is the second-order estimate of KL(model ||
quantized model): half the mean, over tokens, of the squared gradient of sampled tokens' log
probability (the diagonal of the Fisher matrix at the matrix's output) times the squared error.
"""

# What mlx's stubs and mlx-lm leave untyped.
# pyright: basic

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import numpy.typing as npt
from mlx_lm.models.switch_layers import SwitchLinear

from omlx.models.quantize.formats import candidates
from omlx.models.quantize.rounding import values
from omlx.models.quantize.taps import Heard, number, output, with_weight

# What the stubs of mlx leave untyped.
_mx: Any = mx
_EXPERT_ROWS = 64
_ROWS = 256  # of a large matrix so many rows are looked at, drawn by their gradients


@dataclass(frozen=True, slots=True)
class Cost:
    """`kl`: nats a token that a format adds; `relative`: its output error's share of the output."""

    kl: float
    relative: float


@dataclass(frozen=True, slots=True)
class Sample:
    """Rows of a matrix, and what the error of each counts so that the sum stands for all rows."""

    rows: npt.NDArray[np.int64]
    weights: npt.NDArray[np.float32]


def costs(
    matrix: Any, calls: Sequence[Heard], *, num_tokens: int, dtype: str, seed: int
) -> dict[str, Cost]:
    """The cost of each format that the matrix can have, by label, from calls with gradients."""
    found = {form.label: [0.0, 0.0, 0.0] for form in candidates(matrix.weight.shape[-1])}
    for call in calls:
        if type(matrix) is nn.Embedding and not call.is_head:
            parts = _lookup(matrix, call, dtype)
        elif type(matrix) in (nn.Linear, nn.Embedding):
            parts = _linear(matrix, call, dtype, seed)
        else:
            parts = _other(matrix, call, dtype, seed)
        for label, sums in parts.items():
            found[label] = [a + b for a, b in zip(found[label], sums, strict=True)]
    return {
        label: Cost(weighted / 2 / num_tokens, plain / whole if whole else 0.0)
        for label, (weighted, plain, whole) in found.items()
    }


def input_rows(call: Heard) -> mx.array:
    """A linear matrix's inputs [tokens, columns] in float32."""
    return call.x.reshape(-1, call.x.shape[-1]).astype(mx.float32)


def _linear(matrix: Any, call: Heard, dtype: str, seed: int) -> dict[str, list[float]]:
    x = input_rows(call)
    assert call.gradient is not None
    squared = mx.square(call.gradient.reshape(x.shape[0], -1))
    sample = _sampled(np.array(mx.sum(squared, axis=0)), seed)
    rows = mx.array(sample.rows)
    weight, squared = matrix.weight[rows].astype(mx.float32), squared[:, rows]
    counted = mx.array(sample.weights)
    importance = mx.mean(mx.square(x), axis=0)
    whole = number(mx.sum(mx.square(x @ weight.T)))
    found: dict[str, list[float]] = {}
    for form in candidates(weight.shape[-1]):
        off = x @ (values(weight, form, dtype=dtype, importance=importance) - weight).T
        error = mx.square(off)
        weighted = mx.sum(mx.sum(squared * error, axis=0) * counted)
        found[form.label] = [number(weighted), number(mx.sum(error)), whole]
    return found


def _lookup(matrix: Any, call: Heard, dtype: str) -> dict[str, list[float]]:
    ids, places = np.unique(np.array(call.x).ravel(), return_inverse=True)
    weight = matrix.weight[mx.array(ids)].astype(mx.float32)
    at = mx.array(places.ravel())
    assert call.gradient is not None
    squared = mx.square(call.gradient.reshape(-1, weight.shape[-1]))
    importance = mx.mean(squared, axis=0)
    whole = number(mx.sum(mx.square(weight[at])))
    found: dict[str, list[float]] = {}
    for form in candidates(weight.shape[-1]):
        error = mx.square((values(weight, form, dtype=dtype, importance=importance) - weight)[at])
        weighted = number(mx.sum(squared * error))
        found[form.label] = [weighted, number(mx.sum(error)), whole]
    return found


def _other(matrix: Any, call: Heard, dtype: str, seed: int) -> dict[str, list[float]]:
    """Experts, and matrices by head: an expert counts as often as tokens come to it."""
    assert call.gradient is not None
    squared = mx.square(call.gradient)
    weight, counted = matrix.weight, mx.ones((squared.shape[-1],))
    if type(matrix) is SwitchLinear:
        # The same rows of all experts: their weights together may be most of a model.
        energy = mx.sum(squared, axis=tuple(range(squared.ndim - 1)))
        sample = _sampled(np.array(energy), seed, most=_EXPERT_ROWS)
        rows, counted = mx.array(sample.rows), mx.array(sample.weights)
        weight, squared = weight[:, rows], squared[..., rows]
    weight = weight.astype(mx.float32)
    whole = number(mx.sum(mx.square(output(with_weight(matrix, weight), call))))
    found: dict[str, list[float]] = {}
    for form in candidates(weight.shape[-1]):
        off = values(weight, form, dtype=dtype) - weight
        error = mx.square(output(with_weight(matrix, off), call))
        weighted = number(mx.sum(squared * error * counted))
        found[form.label] = [weighted, number(mx.sum(error)), whole]
    return found


def _sampled(energy: npt.NDArray[np.float32], seed: int, *, most: int = _ROWS) -> Sample:
    """All rows of a small matrix, else rows drawn by their energy, each once."""
    num = len(energy)
    if num <= most or not energy.sum() > 0:
        rows = np.arange(min(num, most))
        return Sample(rows, np.full(len(rows), num / len(rows), np.float32))
    share = energy.astype(np.float64) / energy.sum(dtype=np.float64)
    drawn = np.random.default_rng(seed).choice(num, most, p=share)
    rows, counts = np.unique(drawn, return_counts=True)
    weights = counts / (most * share[rows])
    return Sample(rows, weights.astype(np.float32))


def to_plain(found: Mapping[str, Cost]) -> dict[str, list[float]]:
    """The costs as plain values, for a file."""
    return {label: [cost.kl, cost.relative] for label, cost in found.items()}


def from_plain(plain: Mapping[str, Sequence[float]]) -> dict[str, Cost]:
    """The costs that `to_plain` made."""
    return {label: Cost(kl, relative) for label, (kl, relative) in plain.items()}
