"""How gemm_small is launched: its blocks, and the constants that its source is compiled with.

Knows nothing of shapes that are worth it.
"""

from collections.abc import Hashable
from typing import Any

import mlx.core as mx

from omlx.custom_kernels.backend import Backend
from omlx.custom_kernels.launch import Grid, Run
from omlx.custom_kernels.metal import metal_plan


class Gemm:
    """The kernel of one device; for one thread, since it keeps what calls of one shape need."""

    def __init__(self, backend: Backend) -> None:
        self._is_metal = backend.device.backend == "metal"
        self._kernel = backend.kernel("gemm_small", ["x", "w"], ["y"])
        self._runs: dict[Hashable, Run] = {}

    def __call__(self, x: mx.array, weights: mx.array) -> mx.array:
        """x [..., K] times weights [N, K] transposed."""
        num_out, num_in = weights.shape
        key = (x.shape, x.dtype, num_out)
        run = self._runs.get(key)
        if run is None:
            template, grid = self._planned(x.dtype, x.size // num_in, num_out)
            run = self._runs[key] = self._kernel.prepare(
                template=template,
                grid=grid,
                shapes=[(*x.shape[:-1], num_out)],
                dtypes=[x.dtype],
            )
        return run([x, weights])[0]

    def _planned(self, dtype: mx.Dtype, num_rows: int, num_out: int) -> tuple[dict[str, Any], Grid]:
        if not self._is_metal:
            return _plan(dtype, num_rows, num_out)
        template, grid = metal_plan(num_rows, num_out)
        return {"T": dtype, **template}, grid


def _plan(dtype: mx.Dtype, num_rows: int, num_out: int) -> tuple[dict[str, Any], Grid]:
    warps, steps = 8, 2
    tiles = 4 if num_out >= 64 * 132 else 2 if num_out >= 32 * 132 else 1
    template = {
        "T": dtype, "TILES": tiles, "MT": (num_rows + 7) // 8, "WARPS": warps, "STEPS": steps
    }  # fmt: skip
    return template, Grid(-(-num_out // (16 * tiles)), 32 * warps)
