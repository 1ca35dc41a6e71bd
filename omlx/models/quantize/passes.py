"""The passes over a model's layers: activations forward, gradients and costs backward.

Knows nothing about allocation. Every layer's result is a file of the work folder, and what is
there is not computed again.
"""

# What mlx's stubs and mlx-lm leave untyped.
# pyright: basic

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx

from omlx.models.quantize.errors import costs, to_plain
from omlx.models.quantize.runs import (
    Heards,
    Run,
    Runs,
    first_input,
    g_file,
    tail_run,
    top_matrices,
    x_file,
)
from omlx.models.quantize.stream import LayeredModel
from omlx.models.quantize.taps import Heard, Tapped, matrices

# What the stubs of mlx leave untyped.
_mx: Any = mx
MEASURED_TOKENS = 512  # errors are measured on so many; moments take all
# Called when one more part is done.
OnPart = Callable[[], None]


class Passes:
    """Goes over all layers with runs of the calibration's batches; for one thread."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._open = runs.open
        self._batches = runs.batches
        self._work = runs.work

    def forward(self, part_done: OnPart) -> None:
        """Every layer's input, and the last one's output: x-0000 and so on."""
        layered = self._open()
        if not self._work.has(x_file(0)):
            self._work.put_arrays(x_file(0), dict(_named(self._inputs(layered))))
        for idx, layer in enumerate(layered.layers):
            if not self._work.has(x_file(idx + 1)):
                layered.widen(layer)
                before = self._work.get_arrays(x_file(idx))
                outs = [
                    self._runs.visit(layered, idx, batch, before[f"b{at}"], _plain)
                    for at, batch in enumerate(self._batches)
                ]
                self._work.put_arrays(x_file(idx + 1), dict(_named(outs)))
            layered.release(layer)
            part_done()

    def _inputs(self, layered: LayeredModel) -> Iterator[mx.array]:
        for batch in self._batches:
            x = first_input(layered, batch)
            _mx.eval(x)
            yield x

    def tail(self, *, seed: int, dtype: str) -> None:
        """The gradient at the last layer's output, and the costs of matrices after the layers."""
        if self._work.has("cost-tail.json"):
            return
        layered = self._open()
        found = top_matrices(layered)
        before = self._work.get_arrays(x_file(len(layered)))
        gradients: list[mx.array] = []
        energies: dict[str, mx.array] = {}
        kept: dict[str, list[Heard]] = {name: [] for name in found}
        with Tapped(layered.model, found) as tapped:
            for at, batch in enumerate(self._batches):
                gradient, heard = self._tail_of(
                    layered, tapped, batch, before[f"b{at}"], key=mx.random.key(seed + at)
                )
                gradients.append(gradient)
                self._keep(heard, at, kept, energies)
        measured = self._measured(found, kept, seed=seed, dtype=dtype)
        self._work.put_arrays("energy-tail.safetensors", energies)
        self._work.put_arrays(g_file(len(layered)), dict(_named(gradients)))
        self._work.put_json("cost-tail.json", measured)

    def _tail_of(
        self,
        layered: LayeredModel,
        tapped: Tapped,
        batch: mx.array,
        h: mx.array,
        *,
        key: mx.array,
    ) -> tuple[mx.array, Heards]:
        run, num_before = tail_run(layered, tapped, batch)
        logits, heard = tapped.listen(lambda: run(h))
        y = mx.random.categorical(logits, key=key)
        ones = mx.arange(logits.shape[-1]) == y[..., None]
        cotangent = ones.astype(mx.float32) - mx.softmax(logits, axis=-1)
        gradient, by_name = tapped.gradients(run, h, cotangent)
        joined = {
            name: [replace(c, gradient=g) for c, g in zip(calls, by_name[name], strict=True)]
            for name, calls in heard.items()
        }
        return gradient, {name: calls[num_before[name] :] for name, calls in joined.items()}

    def backward(self, part_done: OnPart, *, seed: int, dtype: str) -> None:
        """Every layer's gradient, and the costs of its matrices, from the last to the first."""
        layered = self._open()
        for idx in range(len(layered) - 1, -1, -1):
            if not self._work.has(f"cost-{idx:04d}.json"):
                layered.widen(layered.layers[idx])
                self._backward_of(layered, idx, seed=seed, dtype=dtype)
                self._work.drop(g_file(idx + 1))
            layered.release(layered.layers[idx])
            part_done()

    def _backward_of(self, layered: LayeredModel, idx: int, *, seed: int, dtype: str) -> None:
        layer = layered.layers[idx]
        found = matrices(layer)
        x = self._work.get_arrays(x_file(idx))
        after = self._work.get_arrays(g_file(idx + 1))
        gradients: list[mx.array] = []
        energies: dict[str, mx.array] = {}
        kept: dict[str, list[Heard]] = {name: [] for name in found}
        with Tapped(layer, found) as tapped:
            for at, batch in enumerate(self._batches):

                def use(_: Any, x: mx.array, run: Run, at: int = at) -> mx.array:
                    _, heard = tapped.listen(lambda: run(x))
                    gradient, by_name = tapped.gradients(run, x, after[f"b{at}"])
                    joined = {
                        n: [
                            replace(c, gradient=g)
                            for c, g in zip(heard[n], by_name[n], strict=True)
                        ]
                        for n in heard
                    }
                    self._keep(joined, at, kept, energies)
                    return gradient

                gradients.append(self._runs.visit(layered, idx, batch, x[f"b{at}"], use))
        measured = self._measured(found, kept, seed=seed + idx, dtype=dtype)
        self._work.put_arrays(f"energy-{idx:04d}.safetensors", energies)
        self._work.put_arrays(g_file(idx), dict(_named(gradients)))
        self._work.put_json(f"cost-{idx:04d}.json", measured)

    def head(self, *, seed: int, dtype: str) -> None:
        """The costs of matrices before the layers: the embeddings."""
        if self._work.has("cost-head.json"):
            return
        layered = self._open()
        found = top_matrices(layered)
        after = self._work.get_arrays(g_file(0))
        energies: dict[str, mx.array] = {}
        kept: dict[str, list[Heard]] = {name: [] for name in found}
        with Tapped(layered.model, found) as tapped:
            for at, batch in enumerate(self._batches):

                def run(_: mx.array, batch: mx.array = batch) -> mx.array:
                    return first_input(layered, batch)

                heard = self._runs.heard_before(layered, tapped, at)
                _, by_name = tapped.gradients(run, mx.zeros((1,)), after[f"b{at}"])
                joined = {
                    n: [replace(c, gradient=g) for c, g in zip(heard[n], by_name[n], strict=True)]
                    for n in heard
                }
                self._keep(joined, at, kept, energies)
        self._work.put_arrays("energy-head.safetensors", energies)
        self._work.put_json("cost-head.json", self._measured(found, kept, seed=seed, dtype=dtype))

    def _keep(self, heard: Heards, at: int, kept: Heards, energies: dict[str, mx.array]) -> None:
        """Note how much each token, or each column of a lookup, matters (mutates both)."""
        for name, calls in heard.items():
            for number, call in enumerate(calls):
                assert call.gradient is not None
                energies[f"{name}|b{at}|{number}"] = energy(call)
            if at * self._batches[0].size < MEASURED_TOKENS:
                kept[name] += calls
        _mx.eval(energies)

    def _measured(
        self, found: dict[str, Any], kept: Heards, *, seed: int, dtype: str
    ) -> dict[str, Any]:
        measured: dict[str, Any] = {}
        per_batch = self._batches[0].size
        num = min(len(self._batches), -(-MEASURED_TOKENS // per_batch)) * per_batch
        for name, matrix in found.items():
            if kept[name]:
                result = costs(matrix, kept[name], num_tokens=num, dtype=dtype, seed=seed)
                measured[name] = to_plain(result)
                _mx.clear_cache()
        return measured


def energy(call: Heard) -> mx.array:
    """The squared gradient at a call's output: summed over outputs for each token [tokens], and
    for a lookup over tokens for each column [columns]."""
    assert call.gradient is not None
    squared = mx.square(call.gradient)
    if call.x.dtype not in (mx.float32, mx.float16, mx.bfloat16):  # a lookup of ids
        return mx.sum(squared.reshape(-1, squared.shape[-1]), axis=0)
    return mx.sum(squared, axis=-1).reshape(-1)


def _plain(_: Any, x: mx.array, run: Run) -> mx.array:
    return run(x)


def _named(arrays: Iterator[mx.array] | Sequence[mx.array]) -> Iterator[tuple[str, mx.array]]:
    return ((f"b{at}", array) for at, array in enumerate(arrays))
