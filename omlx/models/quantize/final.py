"""Rounds the matrices of one part of a model for good, and gives the tensors of the result.

Knows nothing about passes or files. Errors are made good within a matrix by the moments of its
inputs, weighted by how much each token's gradient says that an error there matters.
"""

# What mlx's stubs and mlx-lm leave untyped.
# pyright: basic

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models.mla import MultiLinear
from mlx_lm.models.switch_layers import SwitchLinear

from omlx.models.quantize.compensate import MAX_COLUMNS, Factor, Floats, compensated
from omlx.models.quantize.formats import BY_LABEL, Format
from omlx.models.quantize.rounding import DTYPES, Packed, quantize
from omlx.models.quantize.taps import Heard

# What the stubs of mlx leave untyped.
_mx: Any = mx
_SLAB_VALUES = 2**22
# The tensors of a matrix in a checkpoint, by the suffix of their names.
Tensors = dict[str, mx.array]


class Moments:
    """What is known of the inputs of one matrix, summed up call by call."""

    def __init__(self, matrix: Any) -> None:
        self._matrix = matrix
        columns = matrix.weight.shape[-1]
        self._has_whole = type(matrix) in (nn.Linear, nn.Embedding) and columns <= MAX_COLUMNS
        self.num_tokens = 0
        self.whole: Floats | None = None
        self.missing: Floats | None = None
        self.columns: mx.array | None = None

    def add(self, call: Heard, energy: mx.array, original: mx.array | None = None) -> None:
        """Count one call in (mutates); `energy` is that of `passes.energy`, `original` the input
        that the call has in the original model, where that is known."""
        kind = type(self._matrix)
        if kind is nn.Embedding and not call.is_head:
            self._add_whole(np.diag(np.array(energy)))
        elif kind in (nn.Linear, nn.Embedding):
            x = call.x.reshape(-1, call.x.shape[-1]).astype(mx.float32)
            self.num_tokens += x.shape[0]
            # Not divided by the number of outputs: of a tied table the head's use and the lookups
            # add up, both as sums over rows.
            weights = mx.sqrt(energy)[:, None]
            if self._has_whole and original is not None and original.size == call.x.size:
                off = (original.reshape(x.shape).astype(mx.float32) - x) * weights
                self._add_missing(np.array(off.T @ (x * weights)))
            x = x * weights
            if self._has_whole:
                self._add_whole(np.array(x.T @ x))
            else:
                self._add_columns(mx.sum(mx.square(x), axis=0))
        elif kind is SwitchLinear:
            self._add_columns(_by_expert(call, energy, self._matrix.weight.shape[0]))
        elif kind is MultiLinear and call.args in ((), (True,)) and not call.kwargs:
            x = mx.square(call.x.astype(mx.float32))
            self._add_columns(mx.sum(x, axis=(0, 2))[:, None])

    def _add_whole(self, moments: Floats) -> None:
        if not self._has_whole:
            self._add_columns(mx.array(np.diag(moments)))
        else:
            self.whole = moments if self.whole is None else self.whole + moments

    def _add_missing(self, products: Floats) -> None:
        self.missing = products if self.missing is None else self.missing + products

    def _add_columns(self, sums: mx.array) -> None:
        self.columns = sums if self.columns is None else self.columns + sums
        _mx.eval(self.columns)

    def importance(self) -> mx.array | None:
        """What an error of each column counts; None where nothing is known."""
        if self.whole is not None:
            return mx.array(np.diag(self.whole).copy())
        return self.columns


def _by_expert(call: Heard, energy: mx.array, num_experts: int) -> mx.array:
    """The inputs' squares summed for each expert [experts, 1, columns]: experts weigh by use."""
    indices = call.args[0] if call.args else call.kwargs["indices"]
    x = mx.broadcast_to(
        call.x.squeeze(-2).astype(mx.float32), (*indices.shape, call.x.shape[-1])
    ).reshape(-1, call.x.shape[-1])
    x = mx.square(x) * energy.reshape(-1)[:, None]
    chosen = indices.reshape(-1)[None, :] == mx.arange(num_experts)[:, None]
    return (chosen.astype(mx.float32) @ x)[:, None, :]


def rounded(matrix: Any, form: Format, moments: Moments, *, dtype: str) -> Tensors:
    """The tensors of a matrix in a format, by suffix."""
    weight = matrix.weight  # not widened as a whole: an embedding may be large
    importance = moments.importance()
    if form.mode == "affine" and moments.whole is not None and float(moments.whole.trace()) > 0:
        step = max(1, _SLAB_VALUES // weight.shape[-1])
        factor = Factor.of(moments.whole, missing=moments.missing, num_tokens=moments.num_tokens)
        parts: Sequence[Packed] = [
            compensated(weight[first : first + step].astype(mx.float32), factor, form, dtype=dtype)[
                0
            ]
            for first in range(0, weight.shape[0], step)
        ]
    else:
        parts = [quantize(weight, form, dtype=dtype, importance=importance)]
    found = {
        "weight": mx.concatenate([part.weight for part in parts]),
        "scales": mx.concatenate([part.scales for part in parts]),
    }
    biases = [part.biases for part in parts if part.biases is not None]
    if biases:
        found["biases"] = mx.concatenate(biases)
    return found


def others(
    module: Any, packed: Collection[str], *, dtype: str, kept_type: Callable[[str], mx.Dtype | None]
) -> Iterator[tuple[str, mx.array]]:
    """A module's tensors but for the matrices `packed`, in `dtype`.

    `kept_type` gives the type of a tensor that must not change, by name.
    """
    flat = cast("list[tuple[str, mx.array]]", tree_flatten(module.parameters()))
    for name, array in flat:
        if name.removesuffix(".weight") in packed and name.endswith(".weight"):
            continue
        kind = kept_type(name) or DTYPES[dtype]
        yield name, array.astype(kind) if mx.issubdtype(array.dtype, mx.floating) else array


def values_of(tensors: Tensors, form: Format) -> mx.array:
    """What the tensors of a matrix stand for, in float32."""
    packed = Packed(tensors["weight"], tensors["scales"], tensors.get("biases"))
    return packed.values(form)


def put_rounded(
    module: Any, parts: Mapping[str, mx.array], formats: Mapping[str, str], *, prefix: str
) -> None:
    """Give a module the values that its rounded tensors stand for (mutates it); what has no tensor
    there stays. Names in `parts` and `formats` begin with the prefix."""
    new: list[tuple[str, mx.array]] = []
    for name, _ in cast("list[tuple[str, mx.array]]", tree_flatten(module.parameters())):
        whole = prefix + name
        if whole not in parts:
            continue
        stem = whole.removesuffix(".weight")
        if f"{stem}.scales" in parts and whole.endswith(".weight"):
            found = {
                suffix: parts[f"{stem}.{suffix}"]
                for suffix in ("weight", "scales", "biases")
                if f"{stem}.{suffix}" in parts
            }
            new.append((name, values_of(found, BY_LABEL[formats[stem]])))
        else:
            array = parts[whole]
            is_float = mx.issubdtype(array.dtype, mx.floating)
            new.append((name, array.astype(mx.float32) if is_float else array))
    _mx.eval([array for _, array in new])
    module.update(tree_unflatten(new), strict=False)
