"""What there is to know of a model before it is quantized: its tensors, types, and what forbids it.

Knows nothing about costs or plans.
"""

# What mlx's stubs and mlx-lm leave untyped.
# pyright: basic

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import mlx.core as mx
from mlx.utils import tree_flatten

from omlx.errors import ModelError
from omlx.models.config import mapping, positive_int
from omlx.models.quantize.formats import SCALE_BYTES
from omlx.models.quantize.stream import LayeredModel
from omlx.models.quantize.taps import matrices

_TYPES = {mx.float16: "float16", mx.bfloat16: "bfloat16", mx.float32: "float32"}
# Keys of config.json that declare extra layers for predicting several tokens.
_MTP_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "n_mtp_layers")


@dataclass(frozen=True, slots=True)
class Facts:
    """A model's tensors by name: shapes and types; which are matrices; which must keep their type.

    `dtype` is the one that most of its values have.
    """

    shapes: Mapping[str, tuple[int, ...]]
    types: Mapping[str, mx.Dtype]
    matrices: frozenset[str]
    fixed: frozenset[str]
    dtype: str
    num_values: int

    def needed_bytes(self, prefix: str) -> int:
        """About the most memory that a quantization takes: the largest layer in float32 with its
        gradients and one more copy, or the largest matrix outside the layers twice."""
        layers: dict[str, int] = {}
        largest = 0
        for name, shape in self.shapes.items():
            if name.startswith(f"{prefix}."):
                idx = name.removeprefix(f"{prefix}.").split(".")[0]
                layers[idx] = layers.get(idx, 0) + _size(shape)
            else:
                largest = max(largest, _size(shape))
        return 4 * max(3 * max(layers.values(), default=0), 2 * largest)

    def other_bytes(self, dtype: str) -> int:
        """What everything takes that is no matrix, with floats in `dtype`."""
        total = 0
        for name, shape in self.shapes.items():
            if name.removesuffix(".weight") in self.matrices and name.endswith(".weight"):
                continue
            kind = self.types[name]
            is_cast = mx.issubdtype(kind, mx.floating) and name not in self.fixed
            total += _size(shape) * (SCALE_BYTES[dtype] if is_cast else kind.size)
        return total


def facts(layered: LayeredModel) -> Facts:
    """Look at a model that is opened, without reading weights."""
    model = layered.model
    flat = cast("list[tuple[str, mx.array]]", tree_flatten(model.parameters()))
    counts: dict[mx.Dtype, int] = {}
    for _, array in flat:
        counts[array.dtype] = counts.get(array.dtype, 0) + array.size
    usual = max(counts, key=lambda kind: counts[kind])
    predicate: Any = getattr(model, "cast_predicate", None)
    fixed = {name for name, _ in flat if predicate is not None and not predicate(name)}
    return Facts(
        shapes={name: tuple(array.shape) for name, array in flat},
        types={name: array.dtype for name, array in flat},
        matrices=frozenset(_allowed(model)),
        fixed=frozenset(fixed),
        dtype=_TYPES.get(usual, "float32"),
        num_values=sum(array.size for _, array in flat),
    )


def _allowed(model: Any) -> list[str]:
    """The matrices, less those that the architecture says must stay in floats."""
    predicate: Any = getattr(model, "quant_predicate", None)
    found = matrices(model)
    if predicate is None:
        return [*found]
    return [name for name, matrix in found.items() if predicate(name, matrix) is not False]


def _size(shape: tuple[int, ...]) -> int:
    size = 1
    for length in shape:
        size *= length
    return size


def check_config(config: Mapping[str, object], path: Path, *, requantize: bool) -> None:
    """ModelError where a model is quantized already, unless that is wanted."""
    text = mapping(config.get("text_config"))
    for where in (config, text):
        for key in ("quantization", "quantization_config"):
            if where.get(key) and not requantize:
                bits = mapping(where[key]).get("bits")
                shown = f" ({bits} bits)" if bits is not None else ""
                raise ModelError(
                    f"{path} is quantized already{shown}: each rounding adds to the one before",
                    hint="Take the original weights, or give --requantize if there are none.",
                )


def without_mtp(
    config: Mapping[str, object], names: Mapping[str, object]
) -> tuple[dict[str, object], list[str]]:
    """The config with declared extra prediction layers set to 0 where no tensor of them is left,
    and what was set so."""
    num_layers = positive_int(config.get("num_hidden_layers")) or 0
    beyond = f".layers.{num_layers}."
    if any("mtp" in name or (num_layers and beyond in f".{name}") for name in names):
        return dict(config), []
    new, said = dict(config), list[str]()
    for key in _MTP_KEYS:
        if positive_int(new.get(key)):
            new[key] = 0
            said.append(key)
    text = mapping(new.get("text_config"))
    if text:
        new["text_config"], inner = without_mtp(text, names)
        said += [f"text_config.{key}" for key in inner]
    return new, said
