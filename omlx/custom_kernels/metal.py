"""How the matrix kernels are laid out on Metal: threadgroups, and the constants of their sources.

Chosen by what an Apple GPU has (32 lanes, 32 KB of threadgroup memory); no Mac has run them yet.
Knows nothing of operations.
"""

from typing import Any

from omlx.custom_kernels.launch import Grid

_LANE_ROWS = 4  # up to so many rows are added up over lanes, more by products of matrices


def metal_plan(num_rows: int, num_sums: int) -> tuple[dict[str, Any], Grid]:
    """The constants ROWS, OUT and WARPS, and the grid for so many rows of `num_sums` sums."""
    if num_rows <= _LANE_ROWS:
        rows, out, warps = num_rows, 8 if num_rows <= 2 else 4, 2
    else:
        rows, out, warps = 8 if num_rows <= 8 else 16, 8, 4
    grid = Grid(-(-num_sums // (out * warps)), 32 * warps)
    return {"ROWS": rows, "OUT": out, "WARPS": warps}, grid
