"""flat_rows: rows [B, 1, K] as [B, K] before a quantized matmul, for mlx's own kernel.

On CUDA mlx takes a matmul of [B, 1, K] row by row and reads the weights once for each; from eight
rows on it reads them once for all of [B, K]. Needs no source. Knows nothing of models.
"""

from pathlib import Path
from typing import Any

import mlx.core as mx

from omlx.custom_kernels.backend import Backend
from omlx.custom_kernels.float64 import product, random_packed, random_rows, unpacked, wide
from omlx.custom_kernels.fused import Packed
from omlx.custom_kernels.op import Case, Function, Op
from omlx.custom_kernels.shapes import BITS, DTYPES, FEW_PACKINGS, cases_of, timed_of

LEAST_ROWS = 8
_mx: Any = mx


def quantized_matmul(x: mx.array, weights: Packed) -> mx.array:
    """x [..., K] times weights [N, K] transposed, by mlx."""
    return _mx.quantized_matmul(
        x, *weights.arrays, transpose=True, group_size=weights.group, bits=weights.bits
    )


def flat_rows(x: mx.array, weights: Packed) -> mx.array:
    """The same for x [B, 1, K], in one product of B rows."""
    y = quantized_matmul(_mx.reshape(x, (-1, x.shape[-1])), weights)
    return _mx.reshape(y, (*x.shape[:-1], weights.num_out))


def _takes(case: Case) -> bool:
    is_known = case.dtype in DTYPES and case.bits in BITS
    return is_known and case.rows >= LEAST_ROWS and not case.has_residual


def _inputs(case: Case) -> list[Any]:
    return [random_rows(case), random_packed(case, case.outs[0])]


def _exact(x: mx.array, weights: Packed) -> mx.array:
    return product(wide(x), unpacked(weights))


def _bind(_: Backend) -> Function:
    return flat_rows


OP = Op(
    name="flat_rows",
    summary="rows of a batch in one quantized matmul of mlx",
    code=(Path(__file__),),
    takes=_takes,
    cases=cases_of(rows=(8, 17), outs=((72,), (512,)), packings=FEW_PACKINGS),
    timed=timed_of(rows=(8, 16, 32), outs=((1024,), (4096,), (12288,)), num_in=(4096,) * 3),
    inputs=_inputs,
    reference=quantized_matmul,
    exact=_exact,
    bind=_bind,
    backends=("cuda",),
    has_source=False,
)
