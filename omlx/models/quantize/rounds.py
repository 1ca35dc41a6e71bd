"""Rounds a model's parts by a plan, with the moments of their inputs.

Knows nothing about how plans are made or results are written.
"""

# What mlx's stubs and mlx-lm leave untyped.
# pyright: basic

from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from omlx.models.quantize.final import Moments, tensors
from omlx.models.quantize.runs import Heards, Runs, top_matrices, x_file
from omlx.models.quantize.source import Facts
from omlx.models.quantize.stream import LayeredModel
from omlx.models.quantize.taps import Tapped, matrices

# What the stubs of mlx leave untyped.
_mx: Any = mx


class Rounds:
    """Gives the tensors of each part; for one thread."""

    def __init__(self, runs: Runs, facts: Facts, *, formats: Mapping[str, str], dtype: str) -> None:
        self._runs = runs
        self._work = runs.work
        self._facts = facts
        self._formats = formats
        self._dtype = dtype

    def layer(self, layered: LayeredModel, idx: int) -> dict[str, mx.array]:
        """The tensors of one layer, whose weights are in memory, by their names in the model."""
        layer = layered.layers[idx]
        prefix = f"{layered.prefix}.{idx}."
        found = matrices(layer)
        moments = {name: Moments(matrix) for name, matrix in found.items()}
        energies = self._work.get_arrays(f"energy-{idx:04d}.safetensors")
        with Tapped(layer, found) as tapped:
            for at in range(len(self._runs.batches)):
                heard = self._runs.heard_in(layered, tapped, idx, at)
                _count(moments, heard, energies, at)
        return self._tensors(layer, found, moments, prefix)

    def rest(self, layered: LayeredModel) -> dict[str, mx.array]:
        """The tensors outside the layers: embeddings, head, norms."""
        found = top_matrices(layered)
        moments = {name: Moments(matrix) for name, matrix in found.items()}
        before = self._work.get_arrays("energy-head.safetensors")
        after = self._work.get_arrays("energy-tail.safetensors")
        outputs = self._work.get_arrays(x_file(len(layered)))
        with Tapped(layered.model, found) as tapped:
            for at in range(len(self._runs.batches)):
                _count(moments, self._runs.heard_before(layered, tapped, at), before, at)
                heard = self._runs.heard_after(layered, tapped, at, outputs[f"b{at}"])
                _count(moments, heard, after, at)
        inside = f"{layered.prefix}."
        for layer in layered.layers:
            layered.release(layer)
        made = self._tensors(layered.model, found, moments, "")
        return {name: array for name, array in made.items() if not name.startswith(inside)}

    def _tensors(
        self, module: Any, found: Mapping[str, Any], moments: Mapping[str, Moments], prefix: str
    ) -> dict[str, mx.array]:
        made: dict[str, mx.array] = {}
        formats = {
            name: self._formats[prefix + name] for name in found if prefix + name in self._formats
        }
        facts = self._facts

        def kept_type(name: str) -> mx.Dtype | None:
            whole = prefix + name
            return facts.types[whole] if whole in facts.fixed else None

        for name, array in tensors(
            module, found, moments, formats=formats, dtype=self._dtype, keeps_type=kept_type
        ):
            _mx.eval(array)
            made[prefix + name] = array
        return made


def _count(
    moments: Mapping[str, Moments], heard: Heards, energies: Mapping[str, mx.array], at: int
) -> None:
    for name, calls in heard.items():
        for number, call in enumerate(calls):
            moments[name].add(call, energies[f"{name}|b{at}|{number}"])
