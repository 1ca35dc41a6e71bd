"""kv_pack: the tokens of a block out of all layers' keys and values, in one launch.

As they are, or in 8 bits: see `kv_format`. Knows nothing of models or caches.
"""

from dataclasses import replace
from itertools import product
from typing import Any

import mlx.core as mx

from omlx.custom_kernels.backend import Backend
from omlx.custom_kernels.float64 import wide
from omlx.custom_kernels.kv_format import can_pack, gather, packed_width, unpack
from omlx.custom_kernels.kv_moves import LAUNCHING, PART, KvMoves
from omlx.custom_kernels.op import MAX_ROWS, Case, Function, Op
from omlx.custom_kernels.shapes import DTYPES

_mx: Any = mx
_STEP = 256  # tokens by which buffers grow
_BEGIN = 37
# Half of a step of 8 bits, for the largest of 32 normal numbers, and the rounding of 16 bits.
_TOLERANCES = {"bfloat16, 8 bits": 0.03, "float16, 8 bits": 0.03}


def takes(case: Case) -> bool:
    """Whether the kernel computes it."""
    width = case.heads[2]
    fits = case.dtype in DTYPES and width % PART == 0 and case.leaves > 0
    return (
        fits and case.rows > MAX_ROWS and (case.bits == 0 or (case.bits == 8 and can_pack(width)))
    )


def moved_bytes(case: Case) -> int:
    """Bytes of all leaves' numbers, and of the block's array."""
    _, heads, width = case.heads
    a_row = packed_width(width) if case.bits else 2 * width
    return case.leaves * heads * case.rows * (2 * width + a_row)


def _inputs(case: Case) -> list[Any]:
    _, heads, width = case.heads
    room = -(-(_BEGIN + case.rows) // _STEP) * _STEP
    buffers = [
        (_mx.random.normal((1, heads, room, width)) + 0.5).astype(case.mx_dtype)
        for _ in range(case.leaves)
    ]
    return [buffers, _BEGIN, _BEGIN + case.rows, case.bits]


def _reference(buffers: list[mx.array], begin: int, end: int, bits: int) -> mx.array:
    return gather(buffers, begin, end, is_packed=bits > 0)


def _exact(buffers: list[mx.array], begin: int, end: int, bits: int) -> mx.array:
    return wide(_mx.stack([buffer[0, :, begin:end] for buffer in buffers]))


def _seen(case: Case, found: list[mx.array]) -> list[mx.array]:
    return [unpack(one, case.mx_dtype) for one in found] if case.bits else found


def _bind(backend: Backend) -> Function:
    moves = KvMoves(backend)

    def bound(buffers: list[mx.array], begin: int, end: int, bits: int) -> mx.array:
        return moves.gather(buffers, begin, end, is_packed=bits > 0)

    return bound


def both(cases: list[Case]) -> tuple[Case, ...]:
    """The cases as they are, then those in 8 bits that have such a form."""
    packed = [replace(case, bits=8) for case in cases if can_pack(case.heads[2])]
    return (*cases, *packed)


# Few leaves and more than one launch takes on any device; widths with and without a packed form.
_FORMS = ((2, 3, 128), (5, 2, 72), (29, 2, 64), (162, 1, 32), (3, 1, 576))
_ROWS = (17, 100, 256)

OP = Op(
    name="kv_pack",
    summary="the tokens of a block out of all layers' keys and values in one launch",
    code=LAUNCHING,
    takes=takes,
    cases=both(
        [
            Case(dtype, rows, leaves=leaves, heads=(0, heads, width))
            for dtype, (leaves, heads, width), rows in product(DTYPES, _FORMS, _ROWS)
        ]
    ),
    timed=both([Case("bfloat16", 256, leaves=72, heads=(0, 8, 128))]),
    inputs=_inputs,
    reference=_reference,
    exact=_exact,
    bind=_bind,
    tolerances={**dict.fromkeys(DTYPES, 0.0), **_TOLERANCES},
    read_bytes=moved_bytes,
    seen=_seen,
)
