"""Calls of Metal kernels on arrays: in this process, or under ThreadSanitizer in another.

Outputs are poisoned before, and nothing but the arrays may be read or written. Knows nothing of
what kernels compute.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.shim.sources import MOST_CONSTANT, Files, Instance, Parameter, Value, extras

POISON = 0xFF  # a NaN in every type


@dataclass(frozen=True, slots=True)
class Array:
    """Numbers and their type in Metal; those of bfloat are kept as their bits."""

    data: np.ndarray[Any, Any]
    kind: str

    @classmethod
    def of(cls, values: np.ndarray[Any, Any], kind: str) -> "Array":
        """`values` rounded to bfloat, half, float, int or uint."""
        if kind != "bfloat":
            types = {"half": np.float16, "float": np.float32, "int": np.int32, "uint": np.uint32}
            return cls(np.ascontiguousarray(values, types[kind]), kind)
        bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
        rounded = bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)
        return cls((rounded >> 16).astype(np.uint16), kind)

    @property
    def exact(self) -> np.ndarray[Any, Any]:
        """The numbers in float64."""
        if self.kind != "bfloat":
            return self.data.astype(np.float64)
        return (self.data.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Call:
    """A kernel, its template, its inputs by name, its outputs' shapes, and its launch.

    `grid` is blocks along x, blocks along y, threads of a block.
    """

    kernel: str
    template: tuple[tuple[str, Value], ...]
    inputs: tuple[tuple[str, Array], ...]
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    grid: tuple[int, int, int]

    @property
    def kind(self) -> str:
        """The type of activations and outputs."""
        return str(dict(self.template)["T"])

    @property
    def instance(self) -> Instance:
        """What has to be compiled for it."""
        inputs = tuple(
            Parameter(name, array.kind, array.data.size <= MOST_CONSTANT)
            for name, array in self.inputs
        )
        outputs = tuple(Parameter(name, self.kind) for name, _ in self.outputs)
        return Instance(self.kernel, self.template, inputs, outputs)

    def arguments(self, files: Files) -> list[np.ndarray[Any, Any]]:
        """All that is passed, in order: inputs with what of their shape is wanted, outputs."""
        body = files.body(self.kernel)
        wanted = [*extras(self.instance, body)]
        out: list[np.ndarray[Any, Any]] = []
        for name, array in self.inputs:
            out.append(array.data)
            for _, suffix, _ in (w for w in wanted if w[0] == name):
                shape = array.data.shape
                out.append(np.array(shape if suffix == "shape" else [len(shape)], np.int32))
        for _, shape in self.outputs:
            out.append(_poisoned(shape, self.kind))
        return out

    def results(self, arguments: Sequence[np.ndarray[Any, Any]]) -> list[Array]:
        """The outputs among arguments."""
        return [Array(data, self.kind) for data in arguments[-len(self.outputs) :]]


class KernelError(Exception):
    """A kernel read or wrote beyond its arrays, or its threads don't meet at a barrier."""


class Library:
    """Compiled kernels in this process."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))
        self._library.shim_dispatch.restype = ctypes.c_char_p
        self._library.shim_buffer.restype = ctypes.c_void_p
        self._library.shim_buffer.argtypes = [ctypes.c_size_t]

    def run(self, call: Call, files: Files) -> list[Array]:
        """The outputs; KernelError. Not for two threads at once."""
        arguments = call.arguments(files)
        places = []
        for data in arguments:
            place = self._library.shim_buffer(data.nbytes)
            ctypes.memmove(place, data.ctypes.data, data.nbytes)
            places.append(place)
        pointers = (ctypes.c_void_p * len(places))(*places)
        blocks, rows, threads = call.grid
        kernel = getattr(self._library, call.instance.symbol(files))
        try:
            groups = (ctypes.c_uint * 3)(blocks, rows, 1)
            said = self._library.shim_dispatch(kernel, pointers, groups, threads)
            if said is not None:
                raise KernelError(said.decode())
            for place, data in zip(places, arguments, strict=True):
                ctypes.memmove(data.ctypes.data, place, data.nbytes)
        finally:
            self._library.shim_release()
        return call.results(arguments)


def race(program: Path, call: Call, files: Files, folder: Path) -> tuple[list[Array], str]:
    """The outputs of a run under ThreadSanitizer, and its reports; KernelError."""
    arguments = call.arguments(files)
    paths = []
    for idx, data in enumerate(arguments):
        paths.append(folder / f"argument_{idx}")
        paths[-1].write_bytes(data.tobytes())
    blocks, rows, threads = call.grid
    command = [program, call.instance.symbol(files), blocks, rows, threads, *paths]
    symbolizer = shutil.which("addr2line")
    assert symbolizer, "addr2line was not found: apt-get install binutils"
    options = f"exitcode=0 allow_addr2line=1 external_symbolizer_path={symbolizer}"
    done = subprocess.run(
        [str(word) for word in command],
        capture_output=True, text=True, env={**os.environ, "TSAN_OPTIONS": options},
    )  # fmt: skip
    if done.returncode:
        raise KernelError(f"{done.returncode}: {done.stderr[-2000:]}")
    for path, data in zip(paths, arguments, strict=True):
        data[...] = np.frombuffer(path.read_bytes(), data.dtype).reshape(data.shape)
    return call.results(arguments), done.stderr


def _poisoned(shape: tuple[int, ...], kind: str) -> np.ndarray[Any, Any]:
    data = Array.of(np.zeros(shape), kind).data
    data.view(np.uint8).fill(POISON)
    return data
