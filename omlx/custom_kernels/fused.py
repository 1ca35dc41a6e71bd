"""A decode step's small operations in few launches: norm and projections, gate and up, rope.

Every function takes one token a row and at most 16 rows. Knows nothing of models or caches.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mlx.core as mx

from omlx.custom_kernels.backend import Backend, Launch
from omlx.custom_kernels.launch import Grid, Run
from omlx.custom_kernels.metal import metal_plan

# The files that a verdict on these kernels depends on, beside their sources.
LAUNCHING = tuple(Path(__file__).with_name(name) for name in ("fused.py", "metal.py", "launch.py"))

_QMM = "x w scales biases r"
_QKV = "x norm eps wq sq bq wk sk bk wv sv bv"
_GATE_UP = "x norm eps wg sg bg wu su bu"
_ROPE = "qkv wq wk eps offset frequency"


@dataclass(frozen=True, slots=True)
class Packed:
    """Affine-quantized weights [N, K]: words, scales and biases as mx.quantize gives them."""

    words: mx.array
    scales: mx.array
    biases: mx.array
    bits: int
    group: int
    num_out: int = field(init=False)
    num_in: int = field(init=False)

    def __post_init__(self) -> None:
        num_out, num_words = self.words.shape
        object.__setattr__(self, "num_out", num_out)
        object.__setattr__(self, "num_in", num_words * 32 // self.bits)

    @property
    def arrays(self) -> list[mx.array]:
        """Words, scales, biases."""
        return [self.words, self.scales, self.biases]

    @property
    def form(self) -> tuple[int, int, int, int]:
        """All but the numbers: N, K, bits, group."""
        return (self.num_out, self.num_in, self.bits, self.group)


class Fused:
    """The fused kernels of one device; one without a source is an OmlxError where it is used.

    For one thread: it keeps what calls of one shape need beside their inputs (mutates).
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._kernels: dict[str, Launch] = {}
        self._runs: dict[Hashable, Run] = {}

    def project(self, x: mx.array, weights: Packed, residual: mx.array | None = None) -> mx.array:
        """x [..., K] times weights [N, K] transposed, plus `residual` [..., N]."""
        key = ("qmm_small", x.shape, x.dtype, weights.form, residual is None)
        run = self._runs.get(key)
        if run is None:
            template, grid = self._planned(x, weights, weights.num_out, tiles_least=1)
            template["RESIDUAL"] = residual is not None
            shape = (*x.shape[:-1], weights.num_out)
            run = self._made(key, _QMM, "y", template, grid=grid, dtype=x.dtype, shapes=[shape])
        return run([x, *weights.arrays, x if residual is None else residual])[0]

    def norm_qkv(
        self, x: mx.array, norm: mx.array, eps: mx.array, weights: Sequence[Packed]
    ) -> mx.array:
        """rms_norm(x [..., K]) times each of three weights, side by side in the last axis."""
        q, k, v = weights
        key = ("norm_qkv", x.shape, x.dtype, q.form, k.num_out, v.num_out)
        run = self._runs.get(key)
        if run is None:
            num_out = q.num_out + k.num_out + v.num_out
            template, grid = self._planned(x, q, num_out, tiles_least=1)
            shape = (*x.shape[:-1], num_out)
            run = self._made(key, _QKV, "y", template, grid=grid, dtype=x.dtype, shapes=[shape])
        return run([x, norm, eps, *q.arrays, *k.arrays, *v.arrays])[0]

    def norm_gate_up(
        self, x: mx.array, norm: mx.array, eps: mx.array, gate: Packed, up: Packed
    ) -> mx.array:
        """silu(g) u, where g and u are rms_norm(x [..., K]) times the two weights [N, K]."""
        key = ("norm_gate_up", x.shape, x.dtype, gate.form)
        run = self._runs.get(key)
        if run is None:
            template, grid = self._planned(x, gate, 2 * gate.num_out, tiles_least=2)
            shape = (*x.shape[:-1], gate.num_out)
            run = self._made(key, _GATE_UP, "y", template, grid=grid, dtype=x.dtype, shapes=[shape])
        return run([x, norm, eps, *gate.arrays, *up.arrays])[0]

    def qk_rope(
        self,
        qkv: mx.array,
        norms: Sequence[mx.array] | None,
        eps: mx.array,
        place: tuple[mx.array, mx.array],
        heads: tuple[int, int, int],
    ) -> list[mx.array]:
        """q [B, Hq, 1, D], k and v [B, Hk, 1, D] of qkv [B, 1, (Hq + 2 Hk) D].

        `place` is positions [B] (int32) and frequencies [D / 2] (float32); `heads` Hq, Hk, D.
        """
        num_rows = qkv.shape[0]
        key = ("qk_rope", num_rows, qkv.dtype, heads, norms is None)
        run = self._runs.get(key)
        if run is None:
            num_q, num_k, size = heads
            template = {
                "T": qkv.dtype, "HQ": num_q, "HK": num_k, "D": size, "NORM": norms is not None
            }  # fmt: skip
            grid = Grid(num_q + 2 * num_k, size // 2, num_rows)
            shapes = [(num_rows, num, 1, size) for num in (num_q, num_k, num_k)]
            run = self._made(
                key, _ROPE, "q k v", template, grid=grid, dtype=qkv.dtype, shapes=shapes
            )
        return run([qkv, *(norms or (qkv, qkv)), eps, *place])

    def _planned(
        self, x: mx.array, weights: Packed, num_out: int, *, tiles_least: int
    ) -> tuple[dict[str, Any], Grid]:
        if self._backend.device.backend != "metal":
            return _plan(x, weights, num_out, tiles_least=tiles_least)
        template, grid = metal_plan(x.size // weights.num_in, num_out)
        return {"T": x.dtype, "BITS": weights.bits, "GROUP": weights.group, **template}, grid

    def _made(
        self,
        key: tuple[Any, ...],
        inputs: str,
        outputs: str,
        template: dict[str, Any],
        *,
        grid: Grid,
        dtype: mx.Dtype,
        shapes: Sequence[Sequence[int]],
    ) -> Run:
        """What is kept under `key`, which begins with the kernel's name."""
        name = key[0]
        if name not in self._kernels:
            self._kernels[name] = self._backend.kernel(name, inputs.split(), outputs.split())
        dtypes = [dtype] * len(shapes)
        run = self._kernels[name].prepare(
            template=template, grid=grid, shapes=shapes, dtypes=dtypes
        )
        self._runs[key] = run
        return run


_STRIDES = {1: 144, 2: 160, 4: 192}  # bytes of a weight row in shared memory, by words of a lane


def _plan(
    x: mx.array, weights: Packed, num_out: int, *, tiles_least: int
) -> tuple[dict[str, Any], Grid]:
    """The blocks of a CUDA product of so many weight rows; see kernels/include/qmm.cuh."""
    bits, group = weights.bits, weights.group
    num_m = (x.size // weights.num_in + 7) // 8
    # Measured on an H200: few warps with many stages, and two tiles a warp for more than 8 rows.
    tiles, across, along, stages = (1, tiles_least, 4, 4) if num_m == 1 else (2, 1, 4, 3)
    num_groups = 1024 // bits // group  # of a slice
    is_vector = (weights.num_in // group) % num_groups == 0
    part = 16 * _STRIDES[min(group, 64) * bits // 128]
    part += 64 * num_groups if is_vector and num_groups > 1 else 0
    rows = 16 * tiles * across
    sums = along * rows * (8 * num_m + 1) * 4
    template = {
        "T": x.dtype, "BITS": bits, "GROUP": group, "TILES": tiles, "MT": num_m, "WN": across,
        "WK": along, "STAGES": stages, "VECTOR": is_vector,
    }  # fmt: skip
    shared = max(across * along * stages * tiles * part, sums)
    return template, Grid(-(-num_out // rows), 32 * across * along, shared_bytes=shared)
