"""Reads the structure of a GGUF file: metadata, and where each tensor lies.

Knows nothing about architectures. The file is taken for hostile: every count and length is
checked against the file before anything is allocated for it.
"""

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import BinaryIO, cast

from omlx.errors import ModelError

# struct codes by GGUF value type; 8 is a string and 9 an array.
_SCALARS = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_MAX_METADATA_BYTES = 256 * 2**20
_MAX_VALUES = 2**22
_MAX_DEPTH = 3
_MAX_KEY_BYTES = 65_535
_MAX_COLUMNS, _MAX_ROWS = 2**18, 2**26
# Smallest sizes of one entry: what a count must at least take in the file.
_ENTRY_BYTES, _TENSOR_BYTES = 13, 24


@dataclass(frozen=True, slots=True)
class Quant:
    """How a tensor type packs its values: `block` values in `block_bytes` bytes."""

    name: str
    block: int
    block_bytes: int


F32 = Quant("F32", 1, 4)
F16 = Quant("F16", 1, 2)
BF16 = Quant("BF16", 1, 2)
Q4_0 = Quant("Q4_0", 32, 18)
Q4_1 = Quant("Q4_1", 32, 20)
Q8_0 = Quant("Q8_0", 32, 34)
Q5_0 = Quant("Q5_0", 32, 22)
Q5_1 = Quant("Q5_1", 32, 24)
Q4_K = Quant("Q4_K", 256, 144)
Q5_K = Quant("Q5_K", 256, 176)
# By the number that files have for them.
QUANTS: Mapping[int, Quant] = MappingProxyType({
    0: F32, 1: F16, 2: Q4_0, 3: Q4_1, 6: Q5_0, 7: Q5_1, 8: Q8_0, 10: Quant("Q2_K", 256, 84),
    11: Quant("Q3_K", 256, 110), 12: Q4_K, 13: Q5_K, 14: Quant("Q6_K", 256, 210),
    16: Quant("IQ2_XXS", 256, 66), 17: Quant("IQ2_XS", 256, 74), 18: Quant("IQ3_XXS", 256, 98),
    19: Quant("IQ1_S", 256, 50), 20: Quant("IQ4_NL", 32, 18), 21: Quant("IQ3_S", 256, 110),
    22: Quant("IQ2_S", 256, 82), 23: Quant("IQ4_XS", 256, 136), 29: Quant("IQ1_M", 256, 56),
    30: BF16, 34: Quant("TQ1_0", 256, 54), 35: Quant("TQ2_0", 256, 66),
    39: Quant("MXFP4", 32, 17),
})  # fmt: skip
_OTHER_QUANTS = {
    9: "Q8_1", 15: "Q8_K", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: its shape (rows first), its type and its bytes in the file."""

    name: str
    shape: tuple[int, ...]
    quant: Quant
    offset: int

    @property
    def columns(self) -> int:
        """Values in a row."""
        return self.shape[-1]

    @property
    def rows(self) -> int:
        """Rows; one for a vector."""
        rows = 1
        for size in self.shape[:-1]:
            rows *= size
        return rows

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in the file."""
        return self.columns // self.quant.block * self.quant.block_bytes

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in the file."""
        return self.rows * self.row_bytes


class GgufFile:
    """An open GGUF file; a context manager, for one thread."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._file: BinaryIO = path.open("rb")
        except OSError as error:
            raise ModelError(f"{path} can't be read: {error.strerror}") from None
        try:
            parsed = _Parser(self._file, path).parse()
        except (OSError, ModelError) as error:
            self._file.close()
            if isinstance(error, OSError):
                raise ModelError(f"{path} can't be read: {error.strerror}") from None
            raise
        self.metadata: Mapping[str, object] = parsed[0]
        self.tensors: Mapping[str, TensorInfo] = parsed[1]

    def __enter__(self) -> "GgufFile":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def read_rows(self, tensor: TensorInfo, first: int, num_rows: int) -> bytes:
        """Bytes of some rows of a tensor, as they lie in the file."""
        # Not a memory map: a file that shrinks meanwhile would end the process by a signal.
        size = num_rows * tensor.row_bytes
        try:
            self._file.seek(tensor.offset + first * tensor.row_bytes)
            data = self._file.read(size)
        except OSError as error:
            raise ModelError(f"{self.path} can't be read: {error.strerror}") from None
        if len(data) != size:
            raise ModelError(f"{self.path} became shorter while it was read")
        return data

    def text(self, key: str) -> str:
        """A text of the metadata."""
        value = self.metadata.get(key)
        if not isinstance(value, str):
            raise self._bad(key, "a text")
        return value

    def integer(self, key: str, *, default: int | None = None) -> int:
        """A whole number of the metadata, zero or more and below 2**31."""
        value = self.metadata.get(key, default)
        if type(value) is not int or not 0 <= value < 2**31:
            raise self._bad(key, "a whole number")
        return value

    def number(self, key: str, *, default: float | None = None) -> float:
        """A finite number of the metadata."""
        value = self.metadata.get(key, default)
        if type(value) not in (int, float) or not abs(cast(float, value)) < 1e30:
            raise self._bad(key, "a number")
        return cast(float, value)

    def texts(self, key: str) -> list[str]:
        """A list of texts of the metadata."""
        return cast(list[str], self._list(key, str))

    def integers(self, key: str) -> list[int]:
        """A list of whole numbers of the metadata."""
        return cast(list[int], self._list(key, int))

    def numbers(self, key: str) -> list[float]:
        """A list of numbers of the metadata."""
        return cast(list[float], self._list(key, float))

    def _list(self, key: str, kind: type) -> list[object]:
        value = self.metadata.get(key)
        if not isinstance(value, list) or any(
            type(v) is not kind for v in cast(list[object], value)
        ):
            names = {str: "texts", int: "whole numbers", float: "numbers"}
            raise self._bad(key, f"a list of {names[kind]}")
        return cast(list[object], value)

    def _bad(self, key: str, wanted: str) -> ModelError:
        state = "is not" if key in self.metadata else "is missing; it should be"
        return ModelError(f"{self.path}: the metadata entry {key!r} {state} {wanted}")


class _Parser:
    """Reads the head of the file once, from front to back."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self._size = os.fstat(file.fileno()).st_size
        self._position = 0
        self._num_values = 0

    def parse(self) -> tuple[dict[str, object], dict[str, TensorInfo]]:
        if self._size < 4 or self._take(4) != b"GGUF":
            raise self._error("is not a GGUF file")
        version, num_tensors, num_entries = self._unpack("<IQQ")
        if version not in (2, 3):
            is_big = version in (2 << 24, 3 << 24)
            what = "is a big-endian GGUF file" if is_big else f"has GGUF version {version}"
            raise self._error(f"{what}; versions 2 and 3, little-endian, are supported")
        self._check_count(num_entries, _ENTRY_BYTES, "metadata entries")
        self._check_count(num_tensors, _TENSOR_BYTES, "tensors")
        metadata = self._metadata(num_entries)
        infos = [self._tensor() for _ in range(num_tensors)]
        return metadata, self._placed(infos, self._alignment(metadata))

    def _metadata(self, num_entries: int) -> dict[str, object]:
        metadata: dict[str, object] = {}
        for _ in range(num_entries):
            key = self._string(_MAX_KEY_BYTES)
            if key in metadata:
                raise self._error(f"has the metadata entry {key!r} twice")
            (kind,) = self._unpack("<I")
            metadata[key] = self._value(kind, depth=0)
        return metadata

    def _value(self, kind: int, *, depth: int) -> object:
        if kind == _STRING:
            return self._string(_MAX_METADATA_BYTES)
        if kind == _ARRAY:
            return self._array(depth)
        return self._unpack("<" + self._scalar(kind))[0]

    def _array(self, depth: int) -> list[object]:
        kind, count = self._unpack("<IQ")
        if depth >= _MAX_DEPTH:
            raise self._error("has metadata arrays nested too deeply")
        item_bytes = {_STRING: 8, _ARRAY: 12}.get(kind) or struct.calcsize("<" + self._scalar(kind))
        self._check_count(count, item_bytes, "array items")
        self._num_values += count
        if self._num_values > _MAX_VALUES:
            raise self._error(f"has more than {_MAX_VALUES} metadata values")
        if kind in (_STRING, _ARRAY):
            return [self._value(kind, depth=depth + 1) for _ in range(count)]
        return list(self._unpack(f"<{count}{self._scalar(kind)}"))

    def _scalar(self, kind: int) -> str:
        if kind not in _SCALARS:
            raise self._error(f"has a metadata value of unknown type {kind}")
        return _SCALARS[kind]

    def _tensor(self) -> TensorInfo:
        name = self._string(_MAX_KEY_BYTES)
        (rank,) = self._unpack("<I")
        if not 1 <= rank <= 4:
            raise self._error(f"gives the tensor {name!r} {rank} dimensions")
        shape = tuple(reversed(self._unpack(f"<{rank}Q")))
        number, offset = self._unpack("<IQ")
        if number not in QUANTS:
            quant = _OTHER_QUANTS.get(number, f"number {number}")
            known = ", ".join(sorted(quant.name for quant in QUANTS.values()))
            raise ModelError(
                f"{self._path}: the tensor {name!r} has type {quant}, which is not supported yet",
                hint=f"Use a file whose tensors are of the types {known}.",
            )
        info = TensorInfo(name, shape, QUANTS[number], offset)
        is_sane = 0 < info.columns <= _MAX_COLUMNS and 0 < info.rows <= _MAX_ROWS
        if not is_sane or info.columns % info.quant.block:
            raise self._error(f"gives the tensor {name!r} the shape {list(shape)}")
        return info

    def _alignment(self, metadata: Mapping[str, object]) -> int:
        alignment = metadata.get("general.alignment", 32)
        if type(alignment) is not int or not 0 < alignment <= 65_536 or alignment & alignment - 1:
            raise self._error(f"has the alignment {alignment!r}")
        return alignment

    def _placed(self, infos: list[TensorInfo], alignment: int) -> dict[str, TensorInfo]:
        """Tensors by name, their offsets counted from the start of the file."""
        base = -(-self._position // alignment) * alignment
        tensors: dict[str, TensorInfo] = {}
        end = base
        for info in sorted(infos, key=lambda info: info.offset):
            start = base + info.offset
            if info.name in tensors:
                raise self._error(f"has the tensor {info.name!r} twice")
            if start < end or info.offset % alignment:
                raise self._error(f"places the tensor {info.name!r} wrongly or over another one")
            end = start + info.nbytes
            if end > self._size:
                raise self._error(f"is truncated: the tensor {info.name!r} is not all there")
            tensors[info.name] = TensorInfo(info.name, info.shape, info.quant, start)
        return tensors

    def _check_count(self, count: int, item_bytes: int, what: str) -> None:
        if count * item_bytes > self._size - self._position:
            raise self._error(f"is truncated or damaged: {count} {what} don't fit into it")

    def _string(self, limit: int) -> str:
        (size,) = self._unpack("<Q")
        if size > limit:
            raise self._error(f"has a text of {size} bytes where at most {limit} are expected")
        try:
            return self._take(size).decode("utf-8")
        except UnicodeDecodeError:
            raise self._error("has a text that is not UTF-8") from None

    def _unpack(self, form: str) -> tuple[int, ...]:
        return struct.unpack(form, self._take(struct.calcsize(form)))

    def _take(self, size: int) -> bytes:
        self._position += size
        if self._position > min(self._size, _MAX_METADATA_BYTES):
            raise self._error("is truncated or damaged: its head does not fit into it")
        data = self._file.read(size)
        if len(data) != size:
            raise self._error("became shorter while it was read")
        return data

    def _error(self, what: str) -> ModelError:
        return ModelError(f"{self._path} {what}")
