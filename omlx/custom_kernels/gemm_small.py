"""gemm_small: 16-bit weights times 1 to 16 rows, each weight read once for all of them.

Knows nothing of models.
"""

from pathlib import Path
from typing import Any

import mlx.core as mx

from omlx.custom_kernels.backend import Backend
from omlx.custom_kernels.float64 import product, random_rows, wide
from omlx.custom_kernels.gemm import Gemm
from omlx.custom_kernels.op import MAX_ROWS, Case, Function, Op
from omlx.custom_kernels.shapes import DTYPES, NO_PACKINGS, cases_of, timed_of

_mx: Any = mx
_COLUMNS = 32  # of which a kernel takes whole ones
_LAUNCHING = tuple(Path(__file__).with_name(name) for name in ("gemm.py", "metal.py", "launch.py"))


def takes(case: Case) -> bool:
    """Whether the kernel computes it."""
    is_known = case.dtype in DTYPES and not case.bits and len(case.outs) == 1
    return is_known and case.num_in % _COLUMNS == 0 and case.rows <= MAX_ROWS


def _inputs(case: Case) -> list[Any]:
    weights = _mx.random.normal((case.outs[0], case.num_in)) * case.num_in**-0.5
    return [random_rows(case), weights.astype(case.mx_dtype)]


def _reference(x: mx.array, weights: mx.array) -> mx.array:
    return x @ weights.T


def _exact(x: mx.array, weights: mx.array) -> mx.array:
    return product(wide(x), wide(weights))


def _bind(backend: Backend) -> Function:
    return Gemm(backend)


OP = Op(
    name="gemm_small",
    summary="matmul of 1 to 16 rows with 16-bit weights that reads each weight once",
    code=_LAUNCHING,
    takes=takes,
    cases=cases_of(outs=((72,), (16,), (1000,), (4240,), (8512,)), packings=NO_PACKINGS),
    timed=timed_of(outs=((1024,), (4096,), (12288,)), num_in=(4096,) * 3, is_packed=False),
    inputs=_inputs,
    reference=_reference,
    exact=_exact,
    bind=_bind,
)
