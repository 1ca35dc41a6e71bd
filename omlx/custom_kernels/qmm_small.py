"""qmm_small: affine-quantized weights times 1 to 16 rows, each weight read once for all of them.

4 or 8 bits, groups of 32, 64 or 128, bfloat16 or float16; with or without a residual. Knows
nothing of models.
"""

from dataclasses import replace
from typing import Any

import mlx.core as mx

from omlx.custom_kernels.backend import Backend
from omlx.custom_kernels.flat_rows import quantized_matmul
from omlx.custom_kernels.float64 import product, random_packed, random_rows, unpacked, wide
from omlx.custom_kernels.fused import LAUNCHING, Fused, Packed
from omlx.custom_kernels.op import MAX_ROWS, Case, Function, Op
from omlx.custom_kernels.shapes import BITS, DTYPES, GROUPS, cases_of, timed_of

_SHAPES = ((72,), (16,), (1000,), (4240,), (8512,))  # every height of a block, with remainders


def is_packed(case: Case) -> bool:
    """Whether the kernels know the type, the bits and the groups."""
    known = case.dtype in DTYPES and case.bits in BITS and case.group in GROUPS
    return known and case.num_in % case.group == 0


def takes(case: Case) -> bool:
    """Whether the kernel computes it."""
    return is_packed(case) and len(case.outs) == 1 and case.rows <= MAX_ROWS


def _inputs(case: Case) -> list[Any]:
    weights = random_packed(case, case.outs[0])
    more = random_rows(case, case.outs[0]) if case.has_residual else None
    return [random_rows(case), weights, more]


def _reference(x: mx.array, weights: Packed, residual: mx.array | None) -> mx.array:
    y = quantized_matmul(x, weights)
    return y if residual is None else residual + y


def _exact(x: mx.array, weights: Packed, residual: mx.array | None) -> mx.array:
    y = product(wide(x), unpacked(weights))
    return y if residual is None else y + wide(residual)


def _bind(backend: Backend) -> Function:
    return Fused(backend).project


_PLAIN = cases_of(outs=_SHAPES)

OP = Op(
    name="qmm_small",
    summary="quantized matmul of 1 to 16 rows that reads each weight once",
    code=LAUNCHING,
    takes=takes,
    cases=(
        *_PLAIN,
        *(
            replace(case, has_residual=True)
            for case in _PLAIN
            if (case.bits, case.group) in ((4, 64), (8, 32))
        ),
    ),
    timed=timed_of(outs=((1024,), (4096,), (12288,)), num_in=(4096,) * 3),
    inputs=_inputs,
    reference=_reference,
    exact=_exact,
    bind=_bind,
)
