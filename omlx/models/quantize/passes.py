"""The passes over a model's layers: activations forward, gradients and costs backward.

Knows nothing about allocation. Every layer's result is a file of the work folder, and what is
there is not computed again.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx

from omlx.errors import ModelError
from omlx.models.quantize.errors import costs, to_plain
from omlx.models.quantize.stream import LayeredModel
from omlx.models.quantize.taps import Heard, Tapped, matrices
from omlx.models.quantize.work import Work

# What the stubs of mlx leave untyped.
_mx: Any = mx
MEASURED_TOKENS = 512  # errors are measured on so many; moments take all
Heards = dict[str, list[Heard]]
# Called when one more part is done.
OnPart = Callable[[], None]


class _Reached(Exception):
    """Ends a forward pass at the first layer, with its input."""

    def __init__(self, x: mx.array) -> None:
        super().__init__()
        self.x = x


class Passes:
    """A model, the calibration's batches, and the folder of results; for one thread."""

    def __init__(
        self, open_model: Callable[[], LayeredModel], batches: Sequence[mx.array], work: Work
    ) -> None:
        self._open = open_model
        self._batches = batches  # token ids [sequences, tokens] each
        self._work = work
        self.num_tokens = sum(batch.size for batch in batches)

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
                    self.visit(layered, idx, batch, before[f"b{at}"], _plain)
                    for at, batch in enumerate(self._batches)
                ]
                self._work.put_arrays(x_file(idx + 1), dict(_named(outs)))
            layered.release(layer)
            part_done()

    def _inputs(self, layered: LayeredModel) -> Iterator[mx.array]:
        for batch in self._batches:
            x = _first_input(layered, batch)
            _mx.eval(x)
            yield x

    def visit(
        self,
        layered: LayeredModel,
        idx: int,
        batch: mx.array,
        x: mx.array,
        use: Callable[[Any, mx.array, Callable[[mx.array], mx.array]], mx.array],
    ) -> mx.array:
        """What `use(layer, x, run)` gives, where `run` runs one layer as the model would."""
        found: list[mx.array] = []

        def on_layer(at: int, layer: Any, given: mx.array, *args: Any, **kwargs: Any) -> mx.array:
            if at == idx:
                found.append(use(layer, x, lambda value: layer(value, *args, **kwargs)))
            return given

        layered.run(batch, on_layer)
        out = found[0]
        if type(out) is not mx.array or out.shape != x.shape:
            raise ModelError(
                "the layers of this architecture hand on more than one array",
                hint="It can't be quantized layer by layer; use mlx_lm.convert.",
            )
        _mx.eval(out)
        return out

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
        run, num_before = _tail_run(layered, tapped, batch)
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

    def heard_after(self, layered: LayeredModel, tapped: Tapped, at: int, h: mx.array) -> Heards:
        """What matrices after the layers hear, for one batch."""
        run, num_before = _tail_run(layered, tapped, self._batches[at])
        _, heard = tapped.listen(lambda: run(h))
        return {name: calls[num_before[name] :] for name, calls in heard.items()}

    def heard_before(self, layered: LayeredModel, tapped: Tapped, at: int) -> Heards:
        """What matrices before the layers hear, for one batch."""
        return tapped.listen(lambda: _first_input(layered, self._batches[at]))[1]

    def heard_in(self, layered: LayeredModel, tapped: Tapped, idx: int, at: int) -> Heards:
        """What matrices of one layer hear, for one batch."""
        x = self._work.get_arrays(x_file(idx))[f"b{at}"]
        found: list[Heards] = []

        def use(_: Any, x: mx.array, run: Callable[[mx.array], mx.array]) -> mx.array:
            out, heard = tapped.listen(lambda: run(x))
            found.append(heard)
            return out

        self.visit(layered, idx, self._batches[at], x, use)
        return found[0]

    @property
    def num_batches(self) -> int:
        """How many batches the calibration has."""
        return len(self._batches)

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

                def use(
                    _: Any, x: mx.array, run: Callable[[mx.array], mx.array], at: int = at
                ) -> mx.array:
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

                gradients.append(self.visit(layered, idx, batch, x[f"b{at}"], use))
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
                    return _first_input(layered, batch)

                heard = self.heard_before(layered, tapped, at)
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


def _tail_run(
    layered: LayeredModel, tapped: Tapped, batch: mx.array
) -> tuple[Callable[[mx.array], mx.array], dict[str, int]]:
    """A function from the last layer's output to logits, and how much each matrix heard before."""
    last = len(layered) - 1
    num_before: dict[str, int] = {}

    def run(h: mx.array) -> mx.array:
        def on_layer(at: int, _: Any, given: mx.array, *__: Any, **___: Any) -> mx.array:
            if at < last:
                return given
            num_before.update({n: len(tap.state.heard) for n, tap in tapped.taps.items()})
            return h

        return layered.run(batch, on_layer).astype(mx.float32)

    return run, num_before


def _plain(_: Any, x: mx.array, run: Callable[[mx.array], mx.array]) -> mx.array:
    return run(x)


def _first_input(layered: LayeredModel, batch: mx.array) -> mx.array:
    def on_layer(_: int, __: Any, x: mx.array, *___: Any, **____: Any) -> mx.array:
        raise _Reached(x)

    try:
        layered.run(batch, on_layer)
    except _Reached as reached:
        return reached.x.astype(mx.float32)
    raise ModelError("the model never calls its layers")


def top_matrices(layered: LayeredModel) -> dict[str, Any]:
    """The matrices outside the list of layers."""
    inside = f"{layered.prefix}."
    return {n: m for n, m in matrices(layered.model).items() if not n.startswith(inside)}


def _named(arrays: Iterator[mx.array] | Sequence[mx.array]) -> Iterator[tuple[str, mx.array]]:
    return ((f"b{at}", array) for at, array in enumerate(arrays))


def x_file(idx: int) -> str:
    return f"x-{idx:04d}.safetensors"


def g_file(idx: int) -> str:
    return f"g-{idx:04d}.safetensors"
