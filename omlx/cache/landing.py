"""Where blocks arrive from disk: arrays whose memory is there, but untouched until it is read into.

Knows nothing about which blocks there are. Engine thread only, but for the buffers of a landing.
"""

import io
from collections.abc import Sequence
from typing import Any, cast

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from omlx.cache.leaves import Payload
from omlx.storage.record import SectionSpec

# safetensors names of the dtypes that a section may have, and what .npy files call them
MX_DTYPES = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16, "U8": mx.uint8}
_NPY_DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<V2", "U8": "|u1"}
_mx: Any = mx  # for calls that its stubs leave untyped
Bytes = npt.NDArray[np.uint8]


def views_are_zero_copy() -> bool:
    """Whether the CPU sees the storage of an array itself and not a copy."""
    # On CUDA a view can be had and written to as well, but moves the array to the host's memory.
    return mx.default_device().type == mx.DeviceType.cpu or mx.metal.is_available()


def as_bytes(array: mx.array) -> Bytes:
    """The storage of an array, seen by the CPU."""
    view = array.view(mx.uint8)
    _mx.eval(view)
    return np.asarray(cast(Any, view))


class _BlankFile(io.RawIOBase):
    """A .npy file of a given shape whose data are whatever is in the reader's memory already."""

    def __init__(self, dtype: str, shape: tuple[int, ...]) -> None:
        header = io.BytesIO()
        fields = {"descr": dtype, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(header, fields)
        self._header = header.getvalue()
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0, /) -> int:
        assert whence == 0
        self._at = offset
        return offset

    def readinto(self, buffer: Any, /) -> int:
        part = self._header[self._at : self._at + len(buffer)]
        buffer[: len(part)] = part
        self._at += len(buffer)
        return len(buffer)


def blank(spec: SectionSpec) -> mx.array:
    """An evaluated array of any content.

    `mx.zeros`, and `mx.empty` with it, writes every byte, which for memory that is new takes
    longer than to read as much from an SSD; a file that is loaded is what writes nothing.
    """
    file = _BlankFile(_NPY_DTYPES[spec.dtype], spec.shape)
    return cast(mx.array, _mx.load(file, format="npy", stream=mx.cpu))


class Landing:
    """Where the bytes of one block arrive: into the arrays themselves, or through host buffers.

    Where a spec is None, nothing arrives.
    """

    def __init__(self, specs: Sequence[SectionSpec | None], count: int, *, zero_copy: bool) -> None:
        self._specs = specs
        self._count = count
        self._arrays: dict[SectionSpec, mx.array] = {}
        self._host: dict[SectionSpec, Bytes] = {}
        for spec in specs:
            if spec is not None and zero_copy:
                self._arrays[spec] = blank(spec)
                self._host[spec] = as_bytes(self._arrays[spec]).reshape(-1)
            elif spec is not None:
                self._host[spec] = np.empty(spec.nbytes, dtype=np.uint8)

    def sections(self) -> list[tuple[SectionSpec, memoryview]]:
        """Specs and writable buffers; any thread may fill the buffers."""
        return [(spec, host.data) for spec, host in self._host.items()]

    def payload(self) -> Payload:
        """The filled block (engine thread)."""
        for spec, host in self._host.items():
            if spec not in self._arrays:
                array = mx.reshape(mx.array(host).view(MX_DTYPES[spec.dtype]), spec.shape)
                self._arrays[spec] = array
        _mx.eval(list(self._arrays.values()))
        return Payload(self._count, tuple(spec and self._arrays[spec] for spec in self._specs))
