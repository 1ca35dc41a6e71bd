"""One operation that has kernels: its reference, its shapes, its tolerances.

Knows nothing of devices, records or models.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import mlx.core as mx

from omlx.custom_kernels.backend import Backend
from omlx.custom_kernels.fused import Packed

MAX_ROWS = 16
BACKENDS = ("cuda", "metal")
# Of |error| against |exact| plus the root mean square of all exact values.
TOLERANCES: Mapping[str, float] = MappingProxyType({"bfloat16": 0.02, "float16": 0.004})
_BUCKETS = ((1, "1 row"), (2, "2 rows"), (4, "3-4 rows"), (8, "5-8 rows"), (16, "9-16 rows"))
_MANY = "17 rows or more"
_SIZES = ((2**22, "small"), (2**25, "medium"))
Function = Callable[..., mx.array | list[mx.array]]


@dataclass(frozen=True, slots=True)
class Case:
    """Shapes and types of one call: `rows` tokens, one a row, of `num_in` numbers.

    `outs` are the rows of each weight matrix, quantized where `bits` is not 0; `heads` those of
    queries, of keys, and their size.
    """

    dtype: str
    rows: int
    num_in: int = 0
    outs: tuple[int, ...] = ()
    bits: int = 0
    group: int = 0
    heads: tuple[int, int, int] = (0, 0, 0)
    has_residual: bool = False
    has_norms: bool = False

    @property
    def mx_dtype(self) -> mx.Dtype:
        """The type of the activations."""
        return getattr(mx, self.dtype)

    @property
    def num_weights(self) -> int:
        """Numbers in all its matrices."""
        return self.num_in * sum(self.outs)

    @property
    def weight_bytes(self) -> int:
        """Bytes of its matrices, with scales and biases."""
        if not self.bits:
            return 2 * self.num_weights
        return self.num_weights * self.bits // 8 + self.num_weights // self.group * 4

    @property
    def label(self) -> str:
        """The case in words."""
        words = [self.dtype, f"{self.rows} x {self.num_in}"]
        if self.outs:
            words.append(f"outs {'+'.join(map(str, self.outs))}")
        if self.bits:
            words.append(f"{self.bits} bits in groups of {self.group}")
        if self.heads[0]:
            words.append(f"heads {self.heads[0]}+{self.heads[1]} of {self.heads[2]}")
        words += ["with a residual"] * self.has_residual + ["with norms"] * self.has_norms
        return ", ".join(words)

    @property
    def shape_class(self) -> str:
        """What a measured speed-up holds for: bits, rows and size of what is read."""
        parts = [f"{self.bits} bits"] if self.bits else []
        parts.append(next((name for most, name in _BUCKETS if self.rows <= most), _MANY))
        if self.outs:
            small = (name for most, name in _SIZES if self.num_weights <= most)
            parts.append(next(small, "large"))
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Op:
    """An operation; all its functions take what `inputs` makes for a case.

    `reference` is plain mlx as models call it, `exact` the result in float64 on the CPU,
    `bind` the kernel on a device. `cases` are for verification, edges included, `timed` for
    the speed-up, one for each shape class. `code` are files that launch it: a change of one asks
    for a new verdict. Without `has_source` it needs no file of kernels/.
    """

    name: str
    summary: str
    code: tuple[Path, ...]
    takes: Callable[[Case], bool]
    cases: tuple[Case, ...]
    timed: tuple[Case, ...]
    inputs: Callable[[Case], list[Any]]
    reference: Function
    exact: Function
    bind: Callable[[Backend], Function]
    backends: tuple[str, ...] = BACKENDS
    has_source: bool = True
    tolerances: Mapping[str, float] = field(default_factory=lambda: TOLERANCES)


def in_order(result: mx.array | list[mx.array]) -> list[mx.array]:
    """The outputs as a list, of which there may be one."""
    return [result] if isinstance(result, mx.array) else list(result)


def arrays_of(inputs: Any) -> list[mx.array]:
    """All arrays among a call's inputs: mlx itself looks into lists and tuples only."""
    if isinstance(inputs, mx.array):
        return [inputs]
    if isinstance(inputs, Packed):
        return inputs.arrays
    if isinstance(inputs, list | tuple):
        parts = cast("list[Any] | tuple[Any, ...]", inputs)
        return [one for part in parts for one in arrays_of(part)]
    return []
