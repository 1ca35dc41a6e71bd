"""Rounds matrices into a format's codes and scales, with the least weighted error.

Knows nothing about models or files. `importance` is what the error of each column counts: the mean
square of the input that it is multiplied with.
"""

# What mlx's stubs and mlx-lm leave untyped.
# pyright: basic

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from omlx.models.quantize.formats import Format

# What the stubs of mlx leave untyped.
_mx: Any = mx
DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16}
# Fractions of a group's range that are tried: clipping the ends makes the steps finer.
_FEW: Sequence[float] = (1.0, 0.85, 0.7)
_MANY: Sequence[float] = (1.0, 0.93, 0.86, 0.79, 0.72, 0.64)
_SLAB_VALUES = 2**19  # so that all tries of a slab stay within some tens of megabytes


@dataclass(frozen=True, slots=True)
class Packed:
    """A matrix [..., rows, columns] in MLX's packing; `biases` is None for float formats."""

    weight: mx.array
    scales: mx.array
    biases: mx.array | None

    def values(self, form: Format) -> mx.array:
        """The values that it stands for, in float32."""
        scales = self.scales.astype(mx.float32) if form.mode == "affine" else self.scales
        biases = None if self.biases is None else self.biases.astype(mx.float32)
        found = _mx.dequantize(
            self.weight, scales, biases, group_size=form.group, bits=form.bits, mode=form.mode
        )
        return found.astype(mx.float32)


def quantize(
    weight: mx.array, form: Format, *, dtype: str, importance: mx.array | None = None
) -> Packed:
    """A matrix [..., rows, columns] of floats in a format, with scales in `dtype`.

    `importance` has the shape [..., 1 or rows, columns] or [columns].
    """
    if form.mode != "affine":
        packed, scales = _mx.quantize(weight, group_size=form.group, bits=form.bits, mode=form.mode)
        return Packed(packed, scales, None)
    columns = weight.shape[-1]
    rows = weight.reshape(-1, columns)
    weights = _by_row(weight, importance)
    step = max(1, _SLAB_VALUES // columns)
    parts: list[Packed] = []
    for first in range(0, rows.shape[0], step):
        part = _affine(
            rows[first : first + step].astype(mx.float32),
            weights[first : first + step],
            form,
            dtype=DTYPES[dtype],
        )
        _mx.eval(part.weight, part.scales, part.biases)
        parts.append(part)
    lead = weight.shape[:-1]
    biases = [part.biases for part in parts if part.biases is not None]
    return Packed(
        mx.concatenate([part.weight for part in parts]).reshape(*lead, -1),
        mx.concatenate([part.scales for part in parts]).reshape(*lead, -1),
        mx.concatenate(biases).reshape(*lead, -1),
    )


def values(
    weight: mx.array, form: Format, *, dtype: str, importance: mx.array | None = None
) -> mx.array:
    """What a matrix's values would be in a format, from fewer tries: enough to compare formats."""
    if form.mode != "affine":
        return quantize(weight, form, dtype=dtype).values(form)
    columns = weight.shape[-1]
    rows, weights = weight.reshape(-1, columns), _by_row(weight, importance)
    parts: list[mx.array] = []
    step = max(1, _SLAB_VALUES // columns)
    for first in range(0, rows.shape[0], step):
        groups = rows[first : first + step].reshape(-1, columns // form.group, form.group)
        h = _floored(weights[first : first + step].reshape(groups.shape))
        scale, bias = fit(groups, h, form.bits, dtype=DTYPES[dtype], tried=_FEW)
        parts.append(codes_of(groups, scale, bias, form.bits) * scale + bias)
        _mx.eval(parts[-1])
    return mx.concatenate(parts).reshape(weight.shape)


def _by_row(weight: mx.array, importance: mx.array | None) -> mx.array:
    columns = weight.shape[-1]
    weights = mx.ones((1, columns)) if importance is None else importance
    return mx.broadcast_to(weights, weight.shape).reshape(-1, columns)


def _floored(h: mx.array) -> mx.array:
    """Columns that no calibration text uses still count a little."""
    return h + 1e-3 * mx.mean(h, axis=-1, keepdims=True) + 1e-30


def _affine(rows: mx.array, importance: mx.array, form: Format, *, dtype: mx.Dtype) -> Packed:
    groups = rows.reshape(rows.shape[0], -1, form.group)
    h = _floored(importance.reshape(groups.shape))
    scale, bias = fit(groups, h, form.bits, dtype=dtype)
    codes = codes_of(groups, scale, bias, form.bits)
    return Packed(
        pack(codes.reshape(rows.shape), form.bits),
        scale[..., 0].astype(dtype),
        bias[..., 0].astype(dtype),
    )


def codes_of(groups: mx.array, scale: mx.array, bias: mx.array, bits: int) -> mx.array:
    """The nearest codes, as float32."""
    safe = mx.where(scale == 0, 1.0, scale)
    return mx.clip(mx.round((groups - bias) / safe), 0, 2**bits - 1)


def fit(
    groups: mx.array, h: mx.array, bits: int, *, dtype: mx.Dtype, tried: Sequence[float] = _MANY
) -> tuple[mx.array, mx.array]:
    """Scale and bias [..., 1] of each group [..., n], rounded to `dtype`, as float32.

    For each tried range: codes, the least-squares line through them, codes again. Also the plain
    range from the least to the greatest value as mlx takes it, which is exact for what lies on a
    grid already. The pair with the least error, weighted by `h`, wins.
    """
    low = mx.min(groups, axis=-1, keepdims=True)
    high = mx.max(groups, axis=-1, keepdims=True)
    levels = 2**bits - 1
    middle, width = (low + high) / 2, high - low
    total = mx.sum(h, axis=-1, keepdims=True)
    # All fractions at once, along a new first axis.
    fractions = mx.array(list(tried)).reshape(-1, *(1 for _ in groups.shape))
    s = width * (fractions / levels)
    b = middle - s * (levels / 2)
    for _ in range(2):
        s, b = _line(groups, h, codes_of(groups, s, b, bits), total=total, before=(s, b))
        s, b = s.astype(dtype).astype(mx.float32), b.astype(dtype).astype(mx.float32)
    plain = _plain(low, high, levels, dtype)
    s, b = (mx.concatenate([p[None], f]) for p, f in zip(plain, (s, b), strict=True))
    # The first of equal ones is taken: the plain range.
    best = mx.argmin(_error(groups, h, s, b, bits), axis=0, keepdims=True)
    return mx.take_along_axis(s, best, axis=0)[0], mx.take_along_axis(b, best, axis=0)[0]


def _plain(
    low: mx.array, high: mx.array, levels: int, dtype: mx.Dtype
) -> tuple[mx.array, mx.array]:
    scale = ((high - low) / levels).astype(dtype).astype(mx.float32)
    return scale, low.astype(dtype).astype(mx.float32)


def _error(groups: mx.array, h: mx.array, s: mx.array, b: mx.array, bits: int) -> mx.array:
    off = groups - codes_of(groups, s, b, bits) * s - b
    error = mx.sum(h * off * off, axis=-1, keepdims=True)
    return mx.where(mx.isfinite(error), error, math.inf)


def _line(
    groups: mx.array,
    h: mx.array,
    codes: mx.array,
    *,
    total: mx.array,
    before: tuple[mx.array, mx.array],
) -> tuple[mx.array, mx.array]:
    """The weighted least-squares line from codes to values; what was before where all are equal."""
    mean_q = mx.sum(h * codes, axis=-1, keepdims=True) / total
    mean_w = mx.sum(h * groups, axis=-1, keepdims=True) / total
    centred = codes - mean_q
    spread = mx.sum(h * centred * centred, axis=-1, keepdims=True)
    s = mx.sum(h * centred * groups, axis=-1, keepdims=True) / mx.where(spread == 0, 1.0, spread)
    is_fit = (spread > 0) & (s != 0)
    s = mx.where(is_fit, s, before[0])
    return s, mx.where(is_fit, mean_w - s * mean_q, before[1])


def pack(codes: mx.array, bits: int) -> mx.array:
    """MLX's packing of codes [rows, columns]: code i in bits [i*bits, (i+1)*bits) of a row of
    little-endian words; 32 codes fill `bits` words."""
    rows, columns = codes.shape
    whole = codes.astype(mx.uint32)
    if 32 % bits == 0:
        per_word = 32 // bits
        split = whole.reshape(rows, columns // per_word, per_word)
        shifts = mx.arange(per_word, dtype=mx.uint32) * bits
        return mx.sum(split << shifts, axis=-1).astype(mx.uint32)
    split = whole.reshape(rows, columns // 32, 32)
    words: list[mx.array] = [mx.zeros(split.shape[:2], mx.uint32)] * bits
    for idx in range(32):
        word, shift = divmod(idx * bits, 32)
        code = split[..., idx]
        words[word] = words[word] | (code << shift)
        if shift + bits > 32:
            words[word + 1] = words[word + 1] | (code >> (32 - shift))
    return mx.stack(words, axis=-1).reshape(rows, -1)
