"""A decode step's small operations in few launches: norm and projections, gate and up, rope.

Every function takes one token a row and at most 16 rows. Knows nothing of models or caches.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import mlx.core as mx

from omlx.custom_kernels.backend import Backend, Launch
from omlx.custom_kernels.launch import Grid
from omlx.custom_kernels.metal import metal_plan

# The files that a verdict on these kernels depends on, beside their sources.
LAUNCHING = tuple(Path(__file__).with_name(name) for name in ("fused.py", "metal.py", "launch.py"))


@dataclass(frozen=True, slots=True)
class Packed:
    """Affine-quantized weights [N, K]: words, scales and biases as mx.quantize gives them."""

    words: mx.array
    scales: mx.array
    biases: mx.array
    bits: int
    group: int

    @property
    def arrays(self) -> list[mx.array]:
        """Words, scales, biases."""
        return [self.words, self.scales, self.biases]

    @property
    def num_out(self) -> int:
        """N."""
        return self.words.shape[0]

    @property
    def num_in(self) -> int:
        """K."""
        return self.words.shape[1] * 32 // self.bits


class Fused:
    """The fused kernels of one device; one without a source is an OmlxError where it is used."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def _planned(
        self, x: mx.array, weights: Packed, num_out: int, *, tiles_least: int
    ) -> tuple[dict[str, Any], Grid]:
        if self._backend.device.backend != "metal":
            return _plan(x, weights, num_out, tiles_least=tiles_least)
        template, grid = metal_plan(x.size // weights.num_in, num_out)
        return {"T": x.dtype, "BITS": weights.bits, "GROUP": weights.group, **template}, grid

    def _kernel(self, name: str, inputs: str, outputs: str = "y") -> Launch:
        return self._backend.kernel(name, inputs.split(), outputs.split())

    @cached_property
    def _qmm(self) -> Launch:
        return self._kernel("qmm_small", "x w scales biases r")

    @cached_property
    def _qkv(self) -> Launch:
        return self._kernel("norm_qkv", "x norm eps wq sq bq wk sk bk wv sv bv")

    @cached_property
    def _gate_up(self) -> Launch:
        return self._kernel("norm_gate_up", "x norm eps wg sg bg wu su bu")

    @cached_property
    def _rope(self) -> Launch:
        return self._kernel("qk_rope", "qkv wq wk eps offset frequency", "q k v")

    def project(self, x: mx.array, weights: Packed, residual: mx.array | None = None) -> mx.array:
        """x [..., K] times weights [N, K] transposed, plus `residual` [..., N]."""
        template, grid = self._planned(x, weights, weights.num_out, tiles_least=1)
        template["RESIDUAL"] = residual is not None
        (y,) = self._qmm(
            [x, *weights.arrays, x if residual is None else residual],
            template=template, grid=grid, shapes=[(*x.shape[:-1], weights.num_out)],
            dtypes=[x.dtype],
        )  # fmt: skip
        return y

    def norm_qkv(
        self, x: mx.array, norm: mx.array, eps: mx.array, weights: Sequence[Packed]
    ) -> mx.array:
        """rms_norm(x [..., K]) times each of three weights, side by side in the last axis."""
        num_out = sum(w.num_out for w in weights)
        template, grid = self._planned(x, weights[0], num_out, tiles_least=1)
        (y,) = self._qkv(
            [x, norm, eps, *(a for w in weights for a in w.arrays)],
            template=template, grid=grid, shapes=[(*x.shape[:-1], num_out)], dtypes=[x.dtype],
        )  # fmt: skip
        return y

    def norm_gate_up(
        self, x: mx.array, norm: mx.array, eps: mx.array, gate: Packed, up: Packed
    ) -> mx.array:
        """silu(g) u, where g and u are rms_norm(x [..., K]) times the two weights [N, K]."""
        template, grid = self._planned(x, gate, 2 * gate.num_out, tiles_least=2)
        (y,) = self._gate_up(
            [x, norm, eps, *gate.arrays, *up.arrays],
            template=template, grid=grid, shapes=[(*x.shape[:-1], gate.num_out)], dtypes=[x.dtype],
        )  # fmt: skip
        return y

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
        num_q, num_k, size = heads
        num_rows = qkv.shape[0]
        norm = norms or (qkv, qkv)
        return self._rope(
            [qkv, *norm, eps, *place],
            template={
                "T": qkv.dtype, "HQ": num_q, "HK": num_k, "D": size, "NORM": norms is not None
            },
            grid=Grid(num_q + 2 * num_k, size // 2, num_rows),
            shapes=[(num_rows, n, 1, size) for n in (num_q, num_k, num_k)],
            dtypes=[qkv.dtype] * 3,
        )  # fmt: skip


def _plan(
    x: mx.array, weights: Packed, num_out: int, *, tiles_least: int
) -> tuple[dict[str, Any], Grid]:
    num_rows = x.size // weights.num_in
    warps, nsub = 8, 4
    tiles = 4 if num_out >= 64 * 132 else 2 if num_out >= 32 * 132 else tiles_least
    groups = nsub * min(weights.group, 64) // weights.group
    template = {
        "T": x.dtype, "BITS": weights.bits, "GROUP": weights.group, "TILES": tiles,
        "MT": (num_rows + 7) // 8, "WARPS": warps, "NSUB": nsub,
        "VECTOR": (weights.num_in // weights.group) % groups == 0,
    }  # fmt: skip
    return template, Grid(-(-num_out // (16 * tiles)), 32 * warps)
