"""A Metal device that isn't there, for omlx's own launching code: its kernels run as C++.

`Collecting` notes what would be compiled, so that all of it is compiled at once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from omlx.custom_kernels.backend import Backend, Device, Launch
from omlx.custom_kernels.launch import Grid, Run
from omlx.custom_kernels.source import read_source
from tests.shim.calls import Array, Call, Library
from tests.shim.sources import KERNELS, Files

_mx: Any = mx
_KINDS = {
    mx.bfloat16: "bfloat", mx.float16: "half", mx.float32: "float", mx.int32: "int",
    mx.uint32: "uint",
}  # fmt: skip
Handle = Callable[[Call], list[Array]]


def to_shim(x: mx.array) -> Array:
    """The numbers of x; those of bfloat16 as their bits."""
    bits = x.view(mx.uint16) if x.dtype == mx.bfloat16 else x
    return Array(np.array(bits), _KINDS[x.dtype])


def from_shim(array: Array) -> mx.array:
    """The opposite of `to_shim`."""
    x = _mx.array(array.data)
    return x.view(mx.bfloat16) if array.kind == "bfloat" else x


@dataclass(frozen=True, slots=True)
class _Kernel:
    name: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    handle: Handle

    def prepare(
        self,
        *,
        template: Mapping[str, Any],
        grid: Grid,
        shapes: Sequence[Sequence[int]],
        dtypes: Sequence[mx.Dtype],
    ) -> Run:
        values = tuple(
            (name, _KINDS[value] if isinstance(value, mx.Dtype) else value)
            for name, value in template.items()
        )
        outputs = tuple((name, tuple(s)) for name, s in zip(self.outputs, shapes, strict=True))
        assert {_KINDS[dtype] for dtype in dtypes} == {dict(values)["T"]}

        def run(inputs: list[mx.array]) -> list[mx.array]:
            named = zip(self.inputs, map(to_shim, inputs), strict=True)
            size = (grid.blocks, grid.rows, grid.threads)
            call = Call(self.name, values, tuple(named), outputs, size)
            return [from_shim(array) for array in self.handle(call)]

        return run


@dataclass(frozen=True, slots=True)
class ShimBackend:
    """Kernels of the repository; `handle` gives a call's outputs."""

    handle: Handle
    device: Device = Device("metal", "a shim", "0")

    def digest(self, name: str) -> str | None:
        """The hash of a kernel's source."""
        return read_source("metal", name, folder=KERNELS).digest

    def kernel(self, name: str, inputs: Sequence[str], outputs: Sequence[str]) -> Launch:
        """The kernel."""
        return _Kernel(name, inputs, outputs, self.handle)

    def poisoned(self) -> Backend:
        """The same: outputs are always full of NaN before."""
        return self


def running(library: Library, files: Files) -> ShimBackend:
    """One whose kernels are those of a library."""
    return ShimBackend(lambda call: library.run(call, files))


class Collecting:
    """Calls that were made of its backend, whose kernels compute nothing."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.backend = ShimBackend(self._note)

    def _note(self, call: Call) -> list[Array]:
        self.calls.append(call)
        return [Array.of(np.zeros(shape), call.kind) for _, shape in call.outputs]
