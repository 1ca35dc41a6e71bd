"""Imports a GGUF file as an MLX model folder, tensor by tensor.

Knows nothing about where the file comes from.
"""

import errno
import json
import os
import shutil
import struct
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import BinaryIO, Literal

import numpy as np
import psutil

from omlx.errors import ModelError
from omlx.models.gguf_arrays import (
    BITS,
    GROUP,
    FloatType,
    affine,
    floats,
    packed,
    to_bytes,
    unrotated,
)
from omlx.models.gguf_config import config, generation_config
from omlx.models.gguf_read import GgufFile
from omlx.models.gguf_sizes import read_sizes
from omlx.models.gguf_tensors import Matrix, matrices
from omlx.models.gguf_tokenizer import tokenizer
from omlx.models.text import TextModel
from omlx.units import format_size

Form = Literal["float32", "float16", "bfloat16", "native"]
Scales = Literal["float32", "float16", "bfloat16"]
# Bytes written and bytes in all.
OnBytes = Callable[[int, int], None]

WEIGHTS = "model.safetensors"
_SAMPLES = ("The quick brown fox, 12345 times.", "def f(x):\n    return {x: [1, 2]}  # ok\n")
_SLAB_BYTES = 8 * 2**20


class _Part(Enum):
    """What of a source tensor a new tensor holds."""

    FLOATS = "floats"
    CODES = "codes"
    SCALES = "scales"
    BIASES = "biases"


_SUFFIXES = {
    _Part.CODES: ".weight",
    _Part.SCALES: ".scales",
    _Part.BIASES: ".biases",
}


@dataclass(frozen=True, slots=True)
class _Output:
    """One tensor of the new file."""

    name: str
    tag: str
    shape: tuple[int, ...]
    nbytes: int
    matrix: Matrix
    part: _Part


def import_gguf(
    path: Path,
    out_dir: Path,
    *,
    form: Form = "float32",
    scales: Scales = "float32",
    progress: OnBytes | None = None,
) -> None:
    """Write the model in a GGUF file to a new folder, which appears only when it is complete.

    "native" repacks quantized tensors into MLX's own without rounding again; `scales` is the type
    of everything else then. ModelError leaves nothing behind.
    """
    with GgufFile(path) as gguf:
        sizes = read_sizes(gguf)
        found = matrices(gguf, sizes)
        is_native = form == "native"
        floats_as = FloatType(scales if form == "native" else form)
        outputs = _outputs(found, floats_as, is_native=is_native)
        new_config = config(gguf, sizes, dtype=floats_as.value)
        if is_native:
            new_config |= _quantization(found)
        window = gguf.integer(f"{sizes.family}.context_length")
        new_tokenizer, tokenizer_config = tokenizer(gguf, window=window)
        files = {
            "config.json": new_config,
            "generation_config.json": generation_config(gguf),
            f"{WEIGHTS}.index.json": _index(outputs),
            "tokenizer.json": new_tokenizer,
            "tokenizer_config.json": tokenizer_config,
        }
        with _new_folder(out_dir, num_bytes=sum(output.nbytes for output in outputs)) as folder:
            _write_weights(gguf, outputs, folder / WEIGHTS, progress)
            for name, value in files.items():
                _write_json(folder / name, value)
            if "tokenizer.chat_template" in gguf.metadata:
                template = gguf.text("tokenizer.chat_template")
                _write_file(folder / "chat_template.jinja", template.encode())
            _check_texts(folder, path)


def _outputs(found: Sequence[Matrix], floats_as: FloatType, *, is_native: bool) -> list[_Output]:
    """The tensors of the new file, sorted by name."""
    outputs: list[_Output] = []
    for matrix in found:
        source = matrix.source
        bits = _bits(matrix) if is_native else None
        parts = [_Part.FLOATS] if bits is None else [_Part.BIASES, _Part.SCALES, _Part.CODES]
        for part in parts:
            columns, width, tag = source.columns, floats_as.nbytes, floats_as.tag
            if part is _Part.CODES and bits is not None:
                columns, width, tag = columns * bits // 32, 4, "U32"
            elif part is not _Part.FLOATS:
                columns //= GROUP
            name = matrix.name + _SUFFIXES.get(part, matrix.suffix)
            shape = matrix.shape or (*source.shape[:-1], columns)
            nbytes = source.rows * columns * width
            outputs.append(_Output(name, tag, shape, nbytes, matrix, part))
    return sorted(outputs, key=lambda output: output.name)


def kept_in_floats(path: Path) -> dict[str, int]:
    """How many matrices of a file have no exact form in MLX, by type; ModelError."""
    counts: dict[str, int] = {}
    with GgufFile(path) as gguf:
        for matrix in matrices(gguf, read_sizes(gguf)):
            quant = matrix.source.quant
            if len(matrix.source.shape) >= 2 and quant.block > 1 and _bits(matrix) is None:
                counts[quant.name] = counts.get(quant.name, 0) + 1
    return counts


def _check_texts(folder: Path, path: Path) -> None:
    """Whether the new tokenizer gives texts back as they were; ModelError."""
    text = TextModel.load(folder)
    for sample in _SAMPLES:
        if text.decode(text.encode(sample)) != sample:
            raise ModelError(
                f"{path} has a tokenizer that does not give back {sample!r}",
                hint="Its tables are damaged, or of a kind that is not known here.",
            )


def _bits(matrix: Matrix) -> int | None:
    """The bits of MLX's own packing that a tensor is repacked into; None: it becomes floats."""
    is_matrix = len(matrix.source.shape) >= 2 and not matrix.is_plain
    return BITS.get(matrix.source.quant) if is_matrix else None


def _quantization(found: Sequence[Matrix]) -> dict[str, object]:
    """The entries of config.json that tell mlx-lm how each matrix is packed."""
    bits = {m.name: own for m in found if (own := _bits(m)) is not None}
    if not bits:
        return {}
    counts = [*bits.values()]
    usual = max(sorted(set(counts)), key=counts.count)
    entry: dict[str, object] = {"group_size": GROUP, "bits": usual, "mode": "affine"}
    for name, own in bits.items():
        if own != usual:
            entry[name] = {"group_size": GROUP, "bits": own, "mode": "affine"}
    return {"quantization": entry, "quantization_config": entry}


def _index(outputs: Sequence[_Output]) -> dict[str, object]:
    return {
        "metadata": {"total_size": sum(output.nbytes for output in outputs)},
        "weight_map": {output.name: WEIGHTS for output in outputs},
    }


def _write_weights(
    gguf: GgufFile, outputs: Sequence[_Output], path: Path, progress: OnBytes | None
) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    total = 0
    for output in outputs:
        place = [total, total := total + output.nbytes]
        header[output.name] = {
            "dtype": output.tag, "shape": list(output.shape), "data_offsets": place
        }  # fmt: skip
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with path.open("xb") as file:
        file.write(struct.pack("<Q", len(head)) + head)
        done = 0
        for output in outputs:
            for data in _slabs(gguf, output):
                file.write(data)
                done += len(data)
                if progress is not None:
                    progress(done, total)
        assert done == total, f"wrote {done} bytes of {total}"
        _sync(file)


def _slabs(gguf: GgufFile, output: _Output) -> Iterator[bytes]:
    """The new tensor's bytes, a bounded number of rows at a time."""
    source, heads = output.matrix.source, output.matrix.rotated_heads
    unit = source.rows // heads if heads else 1
    step = unit * max(1, _SLAB_BYTES // (unit * source.columns * 4))
    for first in range(0, source.rows, step):
        num_rows = min(step, source.rows - first)
        data = gguf.read_rows(source, first, num_rows)
        if heads:
            data = unrotated(data, num_heads=num_rows // unit, row_bytes=source.row_bytes)
        yield _convert(output, data, num_rows)


def _convert(output: _Output, data: bytes, num_rows: int) -> bytes:
    quant = output.matrix.source.quant
    if output.part is _Part.FLOATS:
        values = floats(quant, data, num_rows)
        if output.matrix.less:
            values = values - np.float32(output.matrix.less)
    else:
        rows = affine(quant, data, num_rows)
        if output.part is _Part.CODES:
            return packed(rows.codes, BITS[quant]).tobytes()
        values = rows.scales if output.part is _Part.SCALES else rows.biases
    kind = next(kind for kind in FloatType if kind.tag == output.tag)
    return to_bytes(values, kind, name=output.name)


@contextmanager
def _new_folder(out_dir: Path, *, num_bytes: int) -> Generator[Path, None, None]:
    """A temporary folder beside `out_dir` that takes its name at the end, or goes away."""
    if out_dir.exists():
        raise ModelError(f"{out_dir} is already there", hint="Remove it, or choose another folder.")
    folder = out_dir.parent / f".{out_dir.name}.import-{os.getpid()}"
    try:
        out_dir.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(out_dir)
        free = shutil.disk_usage(out_dir.parent).free
        if free < num_bytes:
            raise _no_room(out_dir, num_bytes)
        folder.mkdir()
        yield folder
        folder.rename(out_dir)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_room(out_dir, num_bytes) from None
        raise ModelError(f"{out_dir} can't be written: {error.strerror}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _no_room(out_dir: Path, num_bytes: int) -> ModelError:
    return ModelError(
        f"There is no room for {out_dir}", hint=f"It needs {format_size(num_bytes)} of free disk."
    )


def _remove_leftovers(out_dir: Path) -> None:
    """Drop temporary folders of imports whose process was killed."""
    for folder in out_dir.parent.glob(f".{out_dir.name}.import-*"):
        pid = folder.name.rpartition("-")[2]
        if not pid.isdecimal() or int(pid) == os.getpid() or not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)


def _write_json(path: Path, value: Mapping[str, object]) -> None:
    indent = 1 if path.name == "tokenizer.json" else 2
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    _write_file(path, f"{text}\n".encode())


def _write_file(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        _sync(file)


def _sync(file: BinaryIO) -> None:
    """Put the bytes on the disk: the folder's new name must never stand for half of them."""
    file.flush()
    os.fsync(file.fileno())
