"""qk_rope: heads of one token's queries, keys and values, normed and turned, in one launch.

Knows nothing of models.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any

import mlx.core as mx

from omlx.custom_kernels.backend import Backend
from omlx.custom_kernels.float64 import normed, random_norm, random_rows, wide
from omlx.custom_kernels.fused import LAUNCHING, Fused
from omlx.custom_kernels.op import MAX_ROWS, Case, Function, Op
from omlx.custom_kernels.shapes import DTYPES, ROWS, TIMED_ROWS

_mx: Any = mx
_EPS = 1e-5
_LONGEST = 100_000  # positions
_SIZES = (64, 128, 256)
Place = tuple[mx.array, mx.array]
Heads = tuple[int, int, int]


def takes(case: Case) -> bool:
    """Whether the kernel computes it."""
    return case.dtype in DTYPES and case.heads[2] in _SIZES and case.rows <= MAX_ROWS


def _inputs(case: Case) -> list[Any]:
    num_q, num_k, size = case.heads
    qkv = random_rows(case, (num_q + 2 * num_k) * size)
    norms = [random_norm(case, size) for _ in range(2)] if case.has_norms else None
    offset = _mx.random.randint(0, _LONGEST, (case.rows,), dtype=_mx.int32)
    steps = _mx.arange(0, size, 2, dtype=_mx.float32) / size
    frequency = _mx.power(_mx.array(10_000.0), -steps)
    return [qkv, norms, mx.array([_EPS], dtype=mx.float32), (offset, frequency), case.heads]


def _split(qkv: mx.array, heads: Heads) -> list[mx.array]:
    """q, k, v as [B, H, 1, D]."""
    num_q, num_k, size = heads
    ends = [num_q * size, (num_q + num_k) * size]
    parts = _mx.split(qkv, ends, axis=-1)
    return [one.reshape(*qkv.shape[:2], -1, size).transpose(0, 2, 1, 3) for one in parts]


def _reference(
    qkv: mx.array, norms: Sequence[mx.array] | None, _: mx.array, place: Place, heads: Heads
) -> list[mx.array]:
    q, k, v = _split(qkv, heads)
    if norms is not None:
        q, k = (_mx.fast.rms_norm(one, w, _EPS) for one, w in zip((q, k), norms, strict=True))
    offset, frequency = place

    def turned(x: mx.array) -> mx.array:
        return _mx.fast.rope(
            x, heads[2], traditional=False, base=None, scale=1.0, offset=offset,
            freqs=1.0 / frequency,
        )  # fmt: skip

    return [turned(q), turned(k), v]


def _exact(
    qkv: mx.array, norms: Sequence[mx.array] | None, _: mx.array, place: Place, heads: Heads
) -> list[mx.array]:
    """Angles are products in float32, as they are defined; all else is float64."""
    q, k, v = (wide(one) for one in _split(qkv, heads))
    if norms is not None:
        q, k = (normed(one, w, _EPS) for one, w in zip((q, k), norms, strict=True))
    offset, frequency = place
    angle = wide(offset.astype(_mx.float32)[:, None] * frequency)[:, None, None, :]
    cos, sin = _mx.cos(angle), _mx.sin(angle)

    def turned(x: mx.array) -> mx.array:
        a, b = _mx.split(x, 2, axis=-1)
        return _mx.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)

    return [turned(q), turned(k), v]


def _bind(backend: Backend) -> Function:
    return Fused(backend).qk_rope


_HEADS = ((4, 2, 64), (3, 1, 128), (2, 2, 256))

OP = Op(
    name="qk_rope",
    summary="norms and rotation of queries and keys in one launch",
    code=LAUNCHING,
    takes=takes,
    cases=tuple(
        Case(dtype, rows, heads=heads, has_norms=has_norms)
        for dtype, heads, rows, has_norms in product(DTYPES, _HEADS, ROWS, (False, True))
    ),
    timed=tuple(Case("bfloat16", n, heads=(32, 8, 128), has_norms=True) for n in TIMED_ROWS),
    inputs=_inputs,
    reference=_reference,
    exact=_exact,
    bind=_bind,
)
