"""Rounds a matrix column by column, each column's error made good by those that follow (GPTQ), and
then goes over all again (refine.py).

Source: Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained
Transformers" (2023); here scales and biases are fitted anew for each group when it is reached.
Knows nothing about models or files.
"""

# What mlx's stubs and mlx-lm leave untyped.
# pyright: basic

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from omlx.models.quantize.formats import Format
from omlx.models.quantize.refine import Codes, Floats, refine
from omlx.models.quantize.rounding import DTYPES, Packed, fit, pack

# What the stubs of mlx leave untyped.
_mx: Any = mx
MAX_COLUMNS = 16_384  # the moments of more would take more than a gigabyte
# Of the moments' mean diagonal, for each column that a token of the text has to tell of. Measured
# on the demo model's layers with other text: less fits the calibration's accidents, and at a
# hundredth rounding to the nearest value was better.
_DAMPING = 2.0
_FIT_VALUES = 2**16  # all tries of so many stay within a processor's cache
_LEAST_DAMPING, _MOST_DAMPING = 0.01, 4.0


@dataclass(frozen=True, slots=True)
class Factor:
    """What the inputs' moments say of all rows of a matrix: made once, used for each slab."""

    inverse: Floats
    diagonal: Floats
    damped: Floats
    shift: Floats | None = None

    @classmethod
    def of(cls, moments: Floats, *, num_tokens: int, missing: Floats | None = None) -> "Factor":
        """From the weighted sum of so many inputs' outer products [columns, columns].

        `missing` is the sum of the outer products of what an input lacks of the original's with
        the input. Then the products to keep are those of the weight with the original's inputs, as
        far as these inputs tell of them: the weight is shifted to that by regression (Li et al.,
        "GPTAQ: Efficient Finetuning-Free Quantization for Asymmetric Calibration", 2025).
        """
        share = _DAMPING * len(moments) / max(num_tokens, 1)
        damping = min(max(share, _LEAST_DAMPING), _MOST_DAMPING)
        diagonal = np.diag(moments).astype(np.float32)
        damped = moments.copy()
        damped[np.diag_indices_from(damped)] += damping * (float(diagonal.mean()) or 1.0)
        # Only the lower triangle of what is given is read.
        inverse = np.linalg.cholesky(np.linalg.inv(damped.astype(np.float64))).T.astype(np.float32)
        shift = None if missing is None else (missing @ inverse.T) @ inverse
        return cls(inverse, diagonal, damped, shift)


def compensated(
    weight: mx.array, factor: Factor, form: Format, *, dtype: str
) -> tuple[Packed, Floats]:
    """A matrix [rows, columns] of float32 in an affine format, and the values that it stands for.

    The error that is kept small is that of the products with inputs of the factor's moments, from
    those with the original's inputs where the factor knows of them.
    Deterministic for one BLAS.
    """
    # Columns lie in rows of their own, so that a step touches contiguous memory.
    plain = np.array(weight.astype(mx.float32))
    wanted = plain.T.copy() if factor.shift is None else (plain + plain @ factor.shift).T.copy()
    found = _by_column(wanted.copy(), factor, form, dtype)
    refine(wanted, found, factor.damped, bits=form.bits, dtype=DTYPES[dtype])
    kind = DTYPES[dtype]
    packed = Packed(
        pack(mx.array(found.codes.T.copy()), form.bits),
        mx.array(found.scales.T.copy()).astype(kind),
        mx.array(found.biases.T.copy()).astype(kind),
    )
    _mx.eval(packed.weight, packed.scales, packed.biases)
    return packed, found.values().T


def _by_column(left: Floats, factor: Factor, form: Format, dtype: str) -> Codes:
    """Each column rounded, and its error taken from those that follow (mutates `left`)."""
    columns, rows = left.shape
    inverse, diagonal = factor.inverse, factor.diagonal
    codes = np.empty((columns, rows), np.float32)
    scales = np.empty((columns // form.group, rows), np.float32)
    biases = np.empty_like(scales)
    levels = float(2**form.bits - 1)
    for at, first in enumerate(range(0, columns, form.group)):
        last = first + form.group
        scale, bias = _fitted(left[first:last], diagonal[first:last], form.bits, dtype)
        scales[at], biases[at] = scale, bias
        safe = np.where(scale == 0, np.float32(1), scale)
        errors = np.empty((form.group, rows), np.float32)
        for column in range(first, last):
            now = left[column]
            code = np.clip(np.rint((now - bias) / safe), 0, levels)
            codes[column] = code
            error = (now - (code * scale + bias)) / inverse[column, column]
            left[column + 1 : last] -= inverse[column, column + 1 : last, None] * error
            errors[column - first] = error
        left[last:] -= inverse[first:last, last:].T @ errors
    return Codes(codes, scales, biases)


def _fitted(part: Floats, h: Floats, bits: int, dtype: str) -> tuple[Floats, Floats]:
    rows = np.ascontiguousarray(part.T)
    weights = mx.array(h + 1e-3 * h.mean() + 1e-30)
    step = max(1, _FIT_VALUES // rows.shape[1])
    found: list[tuple[Floats, Floats]] = []
    for first in range(0, len(rows), step):
        groups = mx.array(rows[first : first + step])
        each = mx.broadcast_to(weights, groups.shape)
        scale, bias = fit(groups, each, bits, dtype=DTYPES[dtype])
        found.append((np.array(scale)[:, 0], np.array(bias)[:, 0]))
    return np.concatenate([s for s, _ in found]), np.concatenate([b for _, b in found])
