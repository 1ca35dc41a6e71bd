"""Puts the parts of a quantized model together: shards, index, config, card, tokenizer.

Knows nothing about how values were rounded.
"""

import json
import os
import shutil
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from omlx.errors import ModelError
from omlx.models.quantize.formats import BY_LABEL
from omlx.models.quantize.plan import KEPT, Plan

SHARD_BYTES = 5_000_000_000
_PIECE = 2**22
_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".onnx", ".h5", ".msgpack", ".npz")
_OWN = frozenset({"config.json", "README.md", "model.safetensors.index.json"})
OnBytes = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class _Place:
    """Where the bytes of a tensor are."""

    name: str
    entry: Mapping[str, Any]
    file: Path
    start: int
    size: int


def write_shards(
    parts: Sequence[Path], folder: Path, *, limit: int = SHARD_BYTES, progress: OnBytes
) -> None:
    """Copy the tensors of safetensors files into shards of at most `limit` bytes, and an index.

    Names are sorted, so the same tensors give the same bytes.
    """
    places = sorted((p for part in parts for p in _places(part)), key=lambda place: place.name)
    shards: list[list[_Place]] = [[]]
    size = 0
    for place in places:
        if shards[-1] and size + place.size > limit:
            shards.append([])
            size = 0
        shards[-1].append(place)
        size += place.size
    total = sum(place.size for place in places)
    done = 0
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = _shard_name(number, len(shards))
        weight_map |= {place.name: name for place in shard}
        with (folder / name).open("wb") as out:
            _write_head(out, shard)
            for place in shard:
                done = _copy(place, out, done, lambda at: progress(at, total))
            out.flush()
            os.fsync(out.fileno())
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    write_json(folder / "model.safetensors.index.json", index)


def _shard_name(number: int, count: int) -> str:
    return "model.safetensors" if count == 1 else f"model-{number:05d}-of-{count:05d}.safetensors"


def _places(path: Path) -> list[_Place]:
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        head = json.loads(file.read(size))
    found: list[_Place] = []
    for name, entry in head.items():
        if name != "__metadata__":
            start, end = entry["data_offsets"]
            found.append(_Place(name, entry, path, 8 + size + start, end - start))
    return found


def _write_head(out: BinaryIO, shard: Sequence[_Place]) -> None:
    head: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    at = 0
    for place in shard:
        head[place.name] = {
            "dtype": place.entry["dtype"],
            "shape": place.entry["shape"],
            "data_offsets": [at, at := at + place.size],
        }
    data = json.dumps(head, separators=(",", ":")).encode()
    data += b" " * (-len(data) % 8)
    out.write(struct.pack("<Q", len(data)) + data)


def _copy(place: _Place, out: BinaryIO, done: int, progress: Callable[[int], None]) -> int:
    left = place.size
    with place.file.open("rb") as file:
        file.seek(place.start)
        while left:
            data = file.read(min(_PIECE, left))
            if not data:
                raise ModelError(f"{place.file} became shorter while it was read")
            out.write(data)
            left -= len(data)
            done += len(data)
            progress(done)
    return done


def quantization_entry(formats: Mapping[str, str]) -> dict[str, object]:
    """The entry of config.json: the most frequent format, and the others by name."""
    used = {name: label for name, label in formats.items() if label != KEPT}
    if not used:
        return {}
    labels = [*used.values()]
    usual = max(sorted(set(labels)), key=labels.count)
    entry: dict[str, object] = dict(BY_LABEL[usual].entry)
    for name, label in sorted(used.items()):
        if label != usual:
            entry[name] = BY_LABEL[label].entry
    return entry


def copy_others(source: Path, folder: Path) -> None:
    """Copy what a model has beside weights and config, byte for byte: tokenizer, template."""
    for file in sorted(source.iterdir()):
        is_weight = file.name.endswith(_WEIGHTS) or file.name.endswith(".index.json")
        is_hidden = file.name.startswith(".") or file.suffix == ".py"
        if file.is_file() and not is_weight and not is_hidden and file.name not in _OWN:
            shutil.copyfile(file, folder / file.name)


def write_json(path: Path, value: Mapping[str, object]) -> None:
    """Write a JSON file as people read it."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")


def card(
    name: str, plan: Plan, *, kl: float, options: Mapping[str, object], table: Sequence[str]
) -> str:
    """The text of README.md: what it was made from, and what was measured."""
    shown = ", ".join(f"{key} {value}" for key, value in options.items())
    notes = [f"\n{note}.\n" for note in plan.notes]
    return (
        f"# {name}, {plan.bits:.2f} bits a weight\n\n"
        f"Quantized by `omlx quantize` ({shown}): the format of each matrix was chosen by the\n"
        "measured effect of its error on the logits.\n"
        f"{''.join(notes)}\n"
        f"KL(original || this) on the calibration text: {kl:.4f} nats a token, measured\n"
        f"({plan.predicted_kl:.4f} predicted). `omlx bench accuracy --reference ORIGINAL` measures"
        "\nit on other text.\n\n"
        "| matrices | format | share of size | predicted KL |\n|---|---|---:|---:|\n"
        + "\n".join(table)
        + "\n"
    )
