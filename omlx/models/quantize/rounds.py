"""Rounds a model's parts by a plan: what each matrix hears then comes from what is rounded already.

Knows nothing about how plans are made or results are written.
"""

# What mlx's stubs and mlx-lm leave untyped.
# pyright: basic

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from omlx.models.quantize.final import Moments, others, put_rounded, rounded, values_of
from omlx.models.quantize.formats import BY_LABEL
from omlx.models.quantize.plan import KEPT
from omlx.models.quantize.runs import (
    REST_FILE,
    Heards,
    Run,
    Runs,
    first_input,
    part_file,
    q_file,
    top_matrices,
    x_file,
)
from omlx.models.quantize.source import Facts
from omlx.models.quantize.stream import LayeredModel
from omlx.models.quantize.taps import Tapped, matrices

# What the stubs of mlx leave untyped.
_mx: Any = mx
Arrays = dict[str, mx.array]


class Rounds:
    """Makes the files of each part; for one thread."""

    def __init__(self, runs: Runs, facts: Facts, *, formats: Mapping[str, str], dtype: str) -> None:
        self._runs = runs
        self._work = runs.work
        self._facts = facts
        self._formats = formats
        self._dtype = dtype

    def rest(self) -> None:
        """Round what is outside the layers: embeddings, head, norms; unless that was done."""
        if not self._work.has(REST_FILE):
            self._work.put_arrays(REST_FILE, self._rest(self._runs.open()))

    def layer(self, layered: LayeredModel, idx: int) -> None:
        """Round one layer, unless that was done; those before it are done."""
        layer = layered.layers[idx]
        if not self._work.has(part_file(idx)):
            if idx == 0 and not self._work.has(q_file(0)):
                self._work.put_arrays(q_file(0), self._first(self._runs.open()))
            layered.widen(layer)
            before = self._work.get_arrays(q_file(idx))
            made, after = self._layer(layered, idx, before)
            self._work.put_arrays(q_file(idx + 1), after)
            self._work.put_arrays(part_file(idx), made)
            self._work.drop(q_file(idx))
        layered.release(layer)

    def _layer(self, layered: LayeredModel, idx: int, before: Arrays) -> tuple[Arrays, Arrays]:
        """A layer's tensors by their names in the model, and what the rounded layer gives."""
        layer, prefix = layered.layers[idx], f"{layered.prefix}.{idx}."
        found = matrices(layer)
        energies = self._work.get_arrays(f"energy-{idx:04d}.safetensors")
        made: Arrays = {}
        with Tapped(layer, found) as tapped:
            places = self._keep_originals(layered, tapped, idx)
            for names in self._runs.staged(layered, tapped, idx, before["b0"]):
                moments = {name: Moments(found[name]) for name in names}
                for at in range(len(self._runs.batches)):
                    given = (at, before[f"b{at}"])
                    heard = self._runs.heard_in(layered, tapped, idx, given, names)
                    kept = self._work.get_arrays(_original_file(at)) if places else {}
                    originals = {call: kept[place] for call, place in places.items()}
                    _count(moments, heard, energies, at, originals)
                for name in names:
                    parts = self._rounded(found[name], prefix + name, moments.pop(name))
                    if parts:
                        form = BY_LABEL[self._formats[prefix + name]]
                        found[name].weight = values_of(parts, form)
                    made |= _named(parts, prefix + name)
        made |= self._others(layer, made, prefix)
        put_rounded(layer, made, self._formats, prefix=prefix)
        after = {
            f"b{at}": self._runs.visit(layered, idx, batch, before[f"b{at}"], _plain)
            for at, batch in enumerate(self._runs.batches)
        }
        return made, after

    def _keep_originals(self, layered: LayeredModel, tapped: Tapped, idx: int) -> dict[str, str]:
        """What a layer's matrices hear in the original model, in a file for each batch; the names
        of arrays there by those of calls."""
        names = [name for name, tap in tapped.taps.items() if type(tap.inner) is nn.Linear]
        inputs = self._work.get_arrays(x_file(idx))
        places: dict[str, str] = {}
        for at in range(len(self._runs.batches)):
            heard = self._runs.heard_in(layered, tapped, idx, (at, inputs[f"b{at}"]), names)
            kept: dict[int, tuple[str, mx.array]] = {}
            for name, calls in heard.items():
                for number, call in enumerate(calls):
                    call_name = f"{name}|{number}"
                    places[call_name], _ = kept.setdefault(id(call.x), (call_name, call.x))
            if kept:
                self._work.put_arrays(_original_file(at), dict(kept.values()))
        return places

    def _rounded(self, matrix: Any, whole: str, moments: Moments) -> Arrays:
        """A matrix's tensors in its format, by suffix; none where it stays in floats."""
        label = self._formats.get(whole, KEPT)
        if label == KEPT:
            return {}
        made = rounded(matrix, BY_LABEL[label], moments, dtype=self._dtype)
        _mx.eval(made)
        return made

    def _rest(self, layered: LayeredModel) -> Arrays:
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
        made: Arrays = {}
        for name, heard in moments.items():
            made |= _named(self._rounded(found[name], name, heard), name)
        made |= self._others(layered.model, made, "")
        return {name: array for name, array in made.items() if not name.startswith(inside)}

    def _others(self, module: Any, made: Mapping[str, mx.array], prefix: str) -> Arrays:
        facts = self._facts
        packed = {
            name.removesuffix(".scales").removeprefix(prefix)
            for name in made
            if name.endswith(".scales")
        }

        def kept_type(name: str) -> mx.Dtype | None:
            whole = prefix + name
            return facts.types[whole] if whole in facts.fixed else None

        found = others(module, packed, dtype=self._dtype, kept_type=kept_type)
        arrays = {prefix + name: array for name, array in found}
        _mx.eval(arrays)
        return arrays

    def _first(self, layered: LayeredModel) -> Arrays:
        """The first layer's inputs, with what is before it rounded."""
        put_rounded(layered.model, self._work.get_arrays(REST_FILE), self._formats, prefix="")
        found = {f"b{at}": first_input(layered, one) for at, one in enumerate(self._runs.batches)}
        _mx.eval(found)
        return found


def _named(parts: Mapping[str, mx.array], name: str) -> Arrays:
    return {f"{name}.{suffix}": array for suffix, array in parts.items()}


def _plain(_: Any, x: mx.array, run: Run) -> mx.array:
    return run(x)


def _original_file(at: int) -> str:
    return f"original-{at:04d}.safetensors"


def _count(
    moments: Mapping[str, Moments],
    heard: Heards,
    energies: Mapping[str, mx.array],
    at: int,
    originals: Mapping[str, mx.array] = MappingProxyType({}),
) -> None:
    for name, calls in heard.items():
        for number, call in enumerate(calls):
            original = originals.get(f"{name}|{number}")
            moments[name].add(call, energies[f"{name}|b{at}|{number}"], original)
