"""Goes over a rounded matrix again: each group's scale and bias fitted to all of its codes at once,
then each code to what all the other columns leave to it, as often as is worth it.

Coordinate descent on the error of the products with inputs of known moments, as in Behdin et al.,
"QuantEase: Optimization-based Quantization for Language Models" (2023), with the least-squares fit
of each group's line added. Knows nothing about models or files.
"""

# What mlx's stubs leave untyped.
# pyright: basic

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
_SWEEPS = 4
_SAME = 1e-6  # a determinant below this share of its terms is none: all codes of a group are equal


@dataclass(frozen=True, slots=True)
class Codes:
    """A matrix's codes [columns, rows], and scales and biases [groups, rows]; arrays change."""

    codes: Floats
    scales: Floats
    biases: Floats

    def values(self) -> Floats:
        """The values [columns, rows] that they stand for."""
        size = len(self.codes) // len(self.scales)
        found = self.codes.reshape(len(self.scales), size, -1) * self.scales[:, None]
        found += self.biases[:, None]
        return found.reshape(self.codes.shape)


def refine(wanted: Floats, found: Codes, moments: Floats, *, bits: int, dtype: mx.Dtype) -> None:
    """Bring codes, scales and biases nearer to the wanted values [columns, rows] (mutates `found`).

    What is kept small is the trace of errorᵀ · moments · error; no sweep makes it larger, but for
    the rounding of scales to `dtype`.
    """
    sweep = _Sweep(wanted, found, moments, bits=bits, dtype=dtype)
    for _ in range(_SWEEPS):
        for group in range(len(found.scales)):
            sweep.visit(group)


class _Sweep:
    """The errors of all columns, and half their gradient, which is moments · errors."""

    def __init__(
        self, wanted: Floats, found: Codes, moments: Floats, *, bits: int, dtype: mx.Dtype
    ) -> None:
        self._wanted, self._found, self._moments = wanted, found, moments
        self._levels, self._dtype = np.float32(2**bits - 1), dtype
        self._size = len(found.codes) // len(found.scales)
        self._errors = wanted - found.values()
        self._gradient = moments @ self._errors

    def visit(self, group: int) -> None:
        """Fit one group's line, then its codes (mutates)."""
        at = slice(group * self._size, (group + 1) * self._size)
        own = np.ascontiguousarray(self._moments[at, at])
        self._fit_line(group, at, own)
        errors = self._fit_codes(group, at, own)
        self._gradient += self._moments[at].T @ (errors - self._errors[at])
        self._errors[at] = errors

    def _fit_line(self, group: int, at: slice, own: Floats) -> None:
        """The scale and bias that make the error least while all codes stay."""
        found, codes, gradient = self._found, self._found.codes[at], self._gradient[at]
        weighted = own @ codes
        of_codes = np.einsum("cr,cr->r", codes, weighted)
        mixed, of_ones = weighted.sum(0), own.sum()
        to_codes, to_ones = np.einsum("cr,cr->r", codes, gradient), gradient.sum(0)
        det = of_codes * of_ones - mixed * mixed
        is_line = det > _SAME * of_codes * of_ones
        det = np.where(is_line, det, np.float32(1))
        more_scale = np.where(is_line, (of_ones * to_codes - mixed * to_ones) / det, 0)
        more_bias = np.where(is_line, (of_codes * to_ones - mixed * to_codes) / det, 0)
        scale = in_type(found.scales[group] + more_scale, self._dtype)
        bias = in_type(found.biases[group] + more_bias, self._dtype)
        is_good = np.isfinite(scale) & np.isfinite(bias) & (scale != 0)
        found.scales[group] = np.where(is_good, scale, found.scales[group])
        found.biases[group] = np.where(is_good, bias, found.biases[group])

    def _fit_codes(self, group: int, at: slice, own: Floats) -> Floats:
        """Each code in turn the nearest to what the others leave to it; the errors then."""
        codes, wanted = self._found.codes[at], self._wanted[at]
        scale, bias = self._found.scales[group], self._found.biases[group]
        safe = np.where(scale == 0, np.float32(1), scale)
        errors = wanted - (codes * scale + bias)
        gradient = self._gradient[at] + own @ (errors - self._errors[at])
        for column, weight in enumerate(np.diag(own)):
            if not weight > 0:
                continue
            best = wanted[column] - errors[column] + gradient[column] / weight
            code = np.clip(np.rint((best - bias) / safe), 0, self._levels)
            error = wanted[column] - (code * scale + bias)
            later = slice(column + 1, None)
            gradient[later] += own[later, column, None] * (error - errors[column])
            codes[column], errors[column] = code, error
        return errors


def in_type(values: Floats, dtype: mx.Dtype) -> Floats:
    """Values as a type of mlx has them, in float32."""
    return np.array(mx.array(values).astype(dtype).astype(mx.float32))
