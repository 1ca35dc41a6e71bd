"""norm_gate_up: a norm, then silu of one projection times another, in one launch.

Knows nothing of models.
"""

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
_EPS = 1e-5


def takes(case: Case) -> bool:
    """Whether the kernel computes it."""
    is_pair = len(case.outs) == 2 and case.outs[0] == case.outs[1]
    return is_packed(case) and is_pair and case.rows <= MAX_ROWS


def _inputs(case: Case) -> list[Any]:
    eps = mx.array([_EPS], dtype=mx.float32)
    weights = [random_packed(case, num) for num in case.outs]
    return [random_rows(case), random_norm(case), eps, *weights]


def _gated(gate: mx.array, up: mx.array) -> mx.array:
    return gate * _mx.sigmoid(gate) * up


def _reference(x: mx.array, norm: mx.array, _: mx.array, gate: Packed, up: Packed) -> mx.array:
    x = _mx.fast.rms_norm(x, norm, _EPS)
    return _mx.compile(_gated)(quantized_matmul(x, gate), quantized_matmul(x, up))


def _exact(x: mx.array, norm: mx.array, _: mx.array, gate: Packed, up: Packed) -> mx.array:
    x = normed(wide(x), norm, _EPS)
    return _gated(product(x, unpacked(gate)), product(x, unpacked(up)))


def _bind(backend: Backend) -> Function:
    return Fused(backend).norm_gate_up


OP = Op(
    name="norm_gate_up",
    summary="a norm, the gate and the up projection and their product in one launch",
    code=LAUNCHING,
    takes=takes,
    cases=cases_of(outs=((72, 72), (1000, 1000), (4240, 4240)), packings=FEW_PACKINGS),
    timed=timed_of(outs=((2048, 2048), (6144, 6144), (12288, 12288)), num_in=(1024, 2048, 4096)),
    inputs=_inputs,
    reference=_reference,
    exact=_exact,
    bind=_bind,
)
