"""Puts verified kernels into a loaded model, by replacing modules of its tree.

A replaced module has the same parameters under the same names. What no kernel takes stays as it
is: embeddings used as heads, layers with a bias, quantization other than affine. Knows nothing of
how kernels are verified.
"""

# What mlx's stubs and mlx-lm leave untyped.
# pyright: basic

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import mlx.utils

from omlx.custom_kernels.backend import Backend
from omlx.custom_kernels.fused import Packed
from omlx.custom_kernels.op import MAX_ROWS, Case, Function
from omlx.custom_kernels.records import read_records
from omlx.custom_kernels.selection import Selection
from omlx.errors import ModelError
from omlx.models.fused import (
    KERNELS,
    DecodeStep,
    FusedBlock,
    dtype_name,
    packed,
    parts_of,
    rows_served,
)

_log = logging.getLogger("omlx.models.kernels")
_nn: Any = nn
_trees: Any = mlx.utils
_MANY_ROWS = 2 * MAX_ROWS  # what stands for all that are more


@dataclass(frozen=True, slots=True)
class Served:
    """The kernels that serve a model: how many modules each, and what is lacking and why."""

    used: dict[str, int]
    lacking: dict[str, str]
    device: str


def serve_by_kernels(model: Any, backend: Backend, records: Path, *, is_required: bool) -> Served:
    """Replace modules of `model` (mutates it), and say in the log which kernels serve it.

    A kernel that the model could use and that is not verified on this device is a warning, or a
    ModelError where kernels are required.
    """
    served = use_kernels(model, Selection(backend, read_records(records)))
    if served.lacking:
        reasons = "; ".join(f"{name}: {why}" for name, why in served.lacking.items())
        fix = f"omlx kernel build {' '.join(served.lacking)}"
        if is_required:
            raise ModelError(
                f"kernels that kernels.require asks for can't be used on {served.device}: "
                f"{reasons}",
                hint=f"{fix}, or kernels.require = false",
            )
        _log.warning(
            "slower than it could be on %s: %s; to fix it: %s", served.device, reasons, fix
        )
    names = ", ".join(f"{name} in {num}" for name, num in served.used.items())
    _log.info("kernels on %s: %s", served.device, names or "none; plain mlx serves the model")
    return served


def use_kernels(model: Any, selection: Selection) -> Served:
    """Replace modules of `model` (mutates it) by ones that use the kernels worth it."""
    used: dict[str, int] = {}

    def count(names: set[str]) -> None:
        for name in names:
            used[name] = used.get(name, 0) + 1

    _replace_blocks(model, selection, count)
    layers = _trees.tree_flatten(model.leaf_modules(), is_leaf=_nn.Module.is_module)
    made = [(path, _replaced(layer, selection, count)) for path, layer in layers]
    changed = [(path, layer) for path, layer in made if layer is not None]
    model.update_modules(_trees.tree_unflatten(changed))
    return Served(used, selection.lacking, selection.device)


class Steps:
    """What computes so many rows, one token each; None where the layer's own way does."""

    __slots__ = ("_by_rows", "_many")

    def __init__(self, by_rows: list[Function | None], many: Function | None) -> None:
        assert len(by_rows) == MAX_ROWS + 1
        self._by_rows = by_rows
        self._many = many

    def of(self, x: mx.array) -> Function | None:
        """The function for x [..., 1, K]."""
        shape = x.shape
        if len(shape) < 3 or shape[-2] != 1:
            return None
        rows = x.size // shape[-1]
        return self._by_rows[rows] if rows <= MAX_ROWS else self._many


class PackedLinear(_nn.Module):
    """A quantized linear layer whose few rows, one token each, are computed by kernels."""

    def __init__(self, layer: Any, weights: Packed, steps: Steps) -> None:
        super().__init__()
        self.group_size, self.bits, self.mode = layer.group_size, layer.bits, layer.mode
        for name, value in layer.items():
            self[name] = value
        self.own_way = layer.__call__
        self.kernel_weights = weights
        self.steps = steps
        self.freeze()

    def __call__(self, x: mx.array) -> Any:
        """x [..., K] times the weights [N, K] transposed."""
        function = self.steps.of(x)
        weights = self.kernel_weights
        if function is None or x.dtype != weights.scales.dtype:
            return self.own_way(x)
        return function(x, weights)


class PlainLinear(_nn.Module):
    """A linear layer of 16-bit weights whose few rows, one token each, are computed by a kernel."""

    def __init__(self, layer: Any, steps: Steps) -> None:
        super().__init__()
        for name, value in layer.items():
            self[name] = value
        self.own_way = layer.__call__
        self.steps = steps

    def __call__(self, x: mx.array) -> Any:
        """x [..., K] times the weights [N, K] transposed."""
        function = self.steps.of(x)
        weight = self["weight"]
        if function is None or x.dtype != weight.dtype:
            return self.own_way(x)
        return function(x, weight)


def _replaced(layer: Any, selection: Selection, count: Callable[[set[str]], None]) -> Any:
    """The layer with kernels; None where none is worth it."""
    weights = packed(layer)
    if weights is not None:
        dtype = dtype_name(weights.scales.dtype)
        shape = (weights.num_in, (weights.num_out,), weights.bits, weights.group)
        steps, names = _steps(
            selection, ("qmm_small", "flat_rows"), lambda n: Case(dtype, n, *shape)
        )
        count(names)
        return PackedLinear(layer, weights, steps) if names else None
    if type(layer) is _nn.Linear and "bias" not in layer:
        num_out, num_in = layer.weight.shape
        dtype = dtype_name(layer.weight.dtype)
        steps, names = _steps(
            selection, ("gemm_small",), lambda n: Case(dtype, n, num_in, (num_out,))
        )
        count(names)
        return PlainLinear(layer, steps) if names else None
    return None


def _steps(
    selection: Selection, names: tuple[str, ...], case: Callable[[int], Case]
) -> tuple[Steps, set[str]]:
    """The fastest function for each number of rows, and the names of all that are used."""
    chosen = [
        selection.fastest(names, case(rows)) for rows in (*range(1, MAX_ROWS + 1), _MANY_ROWS)
    ]
    functions = [None if name is None else selection.function(name) for name in chosen]
    steps = Steps([None, *functions[:-1]], functions[-1])
    return steps, {name for name in chosen if name is not None}


def _replace_blocks(model: Any, selection: Selection, count: Callable[[set[str]], None]) -> None:
    """Replace blocks within lists of blocks, which is where models have them."""

    def is_worth(name: str, case: Case) -> bool:
        return selection.speedup(name, case) > 1.0

    for module in model.modules():
        for name, value in list(module.items()):
            if isinstance(value, list):
                module[name] = [_fused(one, selection, is_worth, count) for one in value]


def _fused(
    block: Any,
    selection: Selection,
    is_worth: Callable[[str, Case], bool],
    count: Callable[[set[str]], None],
) -> Any:
    """The block with a fused decode step, or itself where it can't have one."""
    parts = parts_of(block)
    rows = frozenset[int]() if parts is None else rows_served(parts, is_worth)
    if parts is None or not rows:
        return block
    count({*KERNELS})
    return FusedBlock(block, DecodeStep(parts, selection.function, rows))
