"""norm_qkv: a norm, then the three projections of attention side by side, in one launch.

Knows nothing of models.
"""

from collections.abc import Sequence
from typing import Any

import mlx.core as mx

from omlx.custom_kernels.backend import Backend
from omlx.custom_kernels.flat_rows import quantized_matmul
from omlx.custom_kernels.float64 import (
    normed,
    product,
    random_norm,
    random_packed,
    random_rows,
    unpacked,
    wide,
)
from omlx.custom_kernels.fused import LAUNCHING, Fused, Packed
from omlx.custom_kernels.op import MAX_ROWS, Case, Function, Op
from omlx.custom_kernels.qmm_small import is_packed
from omlx.custom_kernels.shapes import FEW_PACKINGS, cases_of, timed_of

_mx: Any = mx
_STEP = 64  # weight rows of the largest block: it lies within one matrix
_EPS = 1e-5


def takes(case: Case) -> bool:
    """Whether the kernel computes it."""
    is_whole = len(case.outs) == 3 and all(num % _STEP == 0 for num in case.outs)
    return is_packed(case) and is_whole and case.rows <= MAX_ROWS


def _inputs(case: Case) -> list[Any]:
    eps = mx.array([_EPS], dtype=mx.float32)
    weights = [random_packed(case, num) for num in case.outs]
    return [random_rows(case), random_norm(case), eps, weights]


def _reference(
    x: mx.array, norm: mx.array, _: mx.array, weights: Sequence[Packed]
) -> list[mx.array]:
    x = _mx.fast.rms_norm(x, norm, _EPS)
    return [quantized_matmul(x, one) for one in weights]


def _exact(x: mx.array, norm: mx.array, _: mx.array, weights: Sequence[Packed]) -> mx.array:
    x = normed(wide(x), norm, _EPS)
    return _mx.concatenate([product(x, unpacked(one)) for one in weights], axis=-1)


def _bind(backend: Backend) -> Function:
    return Fused(backend).norm_qkv


OP = Op(
    name="norm_qkv",
    summary="a norm and the projections to queries, keys and values in one launch",
    code=LAUNCHING,
    takes=takes,
    cases=cases_of(outs=((128, 64, 64), (4096, 192, 128), (8192, 512, 512)), packings=FEW_PACKINGS),
    timed=timed_of(
        outs=((2048, 1024, 1024), (4096, 1024, 1024), (8192, 1024, 1024)),
        num_in=(1024, 4096, 8192),
    ),
    inputs=_inputs,
    reference=_reference,
    exact=_exact,
    bind=_bind,
)
