"""kv_unpack: buffers of all layers' keys and values out of the blocks of a prefix, in one launch.

Blocks are as they were, or in 8 bits: see `kv_format`. Knows nothing of models or caches.
"""

from itertools import product
from typing import Any

import mlx.core as mx

from omlx.custom_kernels.backend import Backend
from omlx.custom_kernels.float64 import wide
from omlx.custom_kernels.kv_format import GROUP, Piece, pack, scatter, unpacked_width
from omlx.custom_kernels.kv_moves import LAUNCHING, KvMoves
from omlx.custom_kernels.kv_pack import both, moved_bytes, takes
from omlx.custom_kernels.op import Case, Function, Op
from omlx.custom_kernels.shapes import DTYPES

_mx: Any = mx
_STEP = 256  # tokens by which buffers grow
_BLOCK = 48  # tokens of a block in the cases that are verified
_FIRST = 5  # the token of the first block that is wanted first
Spans = list[tuple[int, int]]


def _inputs(case: Case) -> list[Any]:
    """Blocks' arrays, what is wanted of them, the room behind it, the type, the bits."""
    _, heads, width = case.heads
    block = _BLOCK if case.rows < 8192 else 256
    arrays: list[mx.array] = []
    spans: Spans = []
    left = case.rows
    while left:
        begin = 0 if spans else _FIRST
        size = min(left, block - begin)
        numbers = _mx.random.normal((case.leaves, heads, block, width)) + 0.5
        numbers = numbers.astype(case.mx_dtype)
        arrays.append(pack(numbers) if case.bits else numbers)
        spans.append((begin, begin + size))
        left -= size
    return [arrays, spans, -case.rows % _STEP, case.mx_dtype, case.bits]


def _pieces(arrays: list[mx.array], spans: Spans) -> list[Piece]:
    return [Piece(array, *span) for array, span in zip(arrays, spans, strict=True)]


def _reference(
    arrays: list[mx.array], spans: Spans, room: int, dtype: mx.Dtype, bits: int,
) -> list[mx.array]:  # fmt: skip
    return scatter(_pieces(arrays, spans), room, dtype=dtype, is_packed=bits > 0)


def _exact(
    arrays: list[mx.array], spans: Spans, room: int, dtype: mx.Dtype, bits: int,
) -> list[mx.array]:  # fmt: skip
    numbers = [_unpacked(one) if bits else wide(one) for one in arrays]
    return scatter(_pieces(numbers, spans), room, dtype=_mx.float64, is_packed=False)


def _unpacked(packed: mx.array) -> mx.array:
    """The numbers of a packed array, of float64."""
    width = unpacked_width(packed.shape[-1])
    numbers = wide(_mx.contiguous(packed[..., :width]).view(_mx.int8))
    scales = wide(_mx.contiguous(packed[..., width:]).view(_mx.float32))
    return numbers * _mx.repeat(scales, GROUP, axis=-1)


def _bind(backend: Backend) -> Function:
    moves = KvMoves(backend)

    def bound(
        arrays: list[mx.array], spans: Spans, room: int, dtype: mx.Dtype, bits: int,
    ) -> list[mx.array]:  # fmt: skip
        return moves.scatter(_pieces(arrays, spans), room, dtype=dtype, is_packed=bits > 0)

    return bound


# Few leaves and more than one launch takes on any device; some pieces, many, and more than one
# launch takes; a width without a packed form.
_CASES = [
    *(
        Case(dtype, rows, leaves=leaves, heads=(0, heads, width))
        for dtype, (leaves, heads, width), rows in product(
            DTYPES, ((2, 3, 128), (5, 2, 72), (29, 2, 64)), (17, 256, 700)
        )
    ),
    Case("bfloat16", 100, leaves=162, heads=(0, 1, 32)),
    Case("bfloat16", 6300, leaves=2, heads=(0, 2, 64)),
]

OP = Op(
    name="kv_unpack",
    summary="all layers' keys and values out of the blocks of a prefix in one launch",
    code=LAUNCHING,
    takes=takes,
    cases=both(_CASES),
    timed=both([Case("bfloat16", 8192, leaves=72, heads=(0, 8, 128))]),
    inputs=_inputs,
    reference=_reference,
    exact=_exact,
    bind=_bind,
    tolerances={
        **dict.fromkeys(DTYPES, 0.0),
        "bfloat16, 8 bits": 0.005,
        "float16, 8 bits": 0.001,
    },  # fmt: skip
    read_bytes=moved_bytes,
)
