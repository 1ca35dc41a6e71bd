"""Exact results, in float64 on the CPU, and random inputs for them.

Knows nothing of kernels. A value is exact but for the rounding of float64.
"""

from typing import Any

import mlx.core as mx

from omlx.custom_kernels.fused import Packed
from omlx.custom_kernels.op import Case

_mx: Any = mx


def wide(x: mx.array) -> mx.array:
    """x in float64; use it within `mx.stream(mx.cpu)`."""
    return x.astype(_mx.float64)


def unpacked(weights: Packed) -> mx.array:
    """The matrix [N, K] that affine-quantized weights stand for: scale times integer plus bias."""
    bits, mask = weights.bits, 2**weights.bits - 1
    shifts = _mx.arange(0, 32, bits, dtype=_mx.uint32)
    integers = (weights.words[..., None] >> shifts) & mask
    integers = integers.reshape(weights.num_out, weights.num_in)

    def spread(per_group: mx.array) -> mx.array:
        return _mx.repeat(wide(per_group), weights.group, axis=1)

    return wide(integers) * spread(weights.scales) + spread(weights.biases)


def product(x: mx.array, weights: mx.array) -> mx.array:
    """x [..., K] times weights [N, K] transposed, of float64."""
    return _mx.reshape(_mx.reshape(x, (-1, x.shape[-1])) @ weights.T, (*x.shape[:-1], -1))


def normed(x: mx.array, weight: mx.array, eps: float) -> mx.array:
    """x over the root mean square of its last axis, times `weight`, of float64."""
    return x * _mx.rsqrt((x * x).mean(-1, keepdims=True) + eps) * wide(weight)


def random_rows(case: Case, num: int = 0) -> mx.array:
    """Activations [rows, 1, num_in] (or `num` of them) that are normal around a half."""
    values = _mx.random.normal((case.rows, 1, num or case.num_in)) + 0.5
    return values.astype(case.mx_dtype)


def random_norm(case: Case, num: int = 0) -> mx.array:
    """Weights of a norm, around one."""
    values = 1 + 0.1 * _mx.random.normal((num or case.num_in,))
    return values.astype(case.mx_dtype)


def random_packed(case: Case, num_out: int) -> Packed:
    """Quantized weights [num_out, num_in] whose products with such rows are of about one."""
    words = _mx.random.randint(
        0, 2**16, (2, num_out, case.num_in * case.bits // 32), dtype=_mx.uint32
    )
    groups = (num_out, case.num_in // case.group)
    unit = 2.0 ** (1 - case.bits) / case.num_in**0.5
    scales = unit * _mx.random.uniform(0.5, 1.5, groups)
    biases = -scales * (2 ** (case.bits - 1)) + unit * _mx.random.normal(groups)
    return Packed(
        words[0] | (words[1] << 16),
        scales.astype(case.mx_dtype),
        biases.astype(case.mx_dtype),
        case.bits,
        case.group,
    )
