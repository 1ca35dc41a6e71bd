"""Runs a model on the calibration's batches: whole layers, or what their matrices hear.

Knows nothing about costs or formats. The inputs of layers come from files of the work folder.
"""

# What mlx's stubs and mlx-lm leave untyped.
# pyright: basic

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx

from omlx.errors import ModelError
from omlx.models.quantize.stream import LayeredModel
from omlx.models.quantize.taps import Heard, Tapped, matrices
from omlx.models.quantize.work import Work

# What the stubs of mlx leave untyped.
_mx: Any = mx
Heards = dict[str, list[Heard]]
# Runs one layer as the model would.
Run = Callable[[mx.array], mx.array]


class _Reached(Exception):
    """Ends a forward pass at the first layer, with its input."""

    def __init__(self, x: mx.array) -> None:
        super().__init__()
        self.x = x


class Runs:
    """The calibration's batches and the folder of results; for one thread."""

    def __init__(
        self, open_model: Callable[[], LayeredModel], batches: Sequence[mx.array], work: Work
    ) -> None:
        self.open = open_model
        self.batches = batches  # token ids [sequences, tokens] each
        self.work = work

    def visit(
        self,
        layered: LayeredModel,
        idx: int,
        batch: mx.array,
        x: mx.array,
        use: Callable[[Any, mx.array, Run], mx.array],
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

    def heard_after(self, layered: LayeredModel, tapped: Tapped, at: int, h: mx.array) -> Heards:
        """What matrices after the layers hear, for one batch."""
        run, num_before = tail_run(layered, tapped, self.batches[at])
        _, heard = tapped.listen(lambda: run(h))
        return {name: calls[num_before[name] :] for name, calls in heard.items()}

    def heard_before(self, layered: LayeredModel, tapped: Tapped, at: int) -> Heards:
        """What matrices before the layers hear, for one batch."""
        return tapped.listen(lambda: first_input(layered, self.batches[at]))[1]

    def staged(
        self, layered: LayeredModel, tapped: Tapped, idx: int, x: mx.array
    ) -> list[list[str]]:
        """A layer's matrices in the order in which they are called, those of one input together."""
        found: list[list[str]] = []

        def use(_: Any, x: mx.array, run: Run) -> mx.array:
            found.extend(tapped.stages(lambda: run(x)))
            return x

        self.visit(layered, idx, self.batches[0], x, use)
        return found

    def heard_in(
        self, layered: LayeredModel, tapped: Tapped, idx: int, given: tuple[int, mx.array],
        names: Sequence[str],
    ) -> Heards:  # fmt: skip
        """What some matrices of a layer hear for `given`: the number of a batch, and its input."""
        at, x = given
        found: Heards = {}

        def use(_: Any, x: mx.array, run: Run) -> mx.array:
            found.update(tapped.inputs(lambda: run(x), names))
            return x

        self.visit(layered, idx, self.batches[at], x, use)
        return found


def tail_run(
    layered: LayeredModel, tapped: Tapped, batch: mx.array
) -> tuple[Callable[[mx.array], mx.array], dict[str, int]]:
    """A function from the last layer's output to logits, and how much each matrix heard before."""
    last = len(layered) - 1
    num_before: dict[str, int] = {}

    def run(h: mx.array) -> mx.array:
        def on_layer(at: int, _: Any, given: mx.array, *__: Any, **___: Any) -> mx.array:
            if at < last:
                return given
            num_before.update({n: len(tap.hears.heard) for n, tap in tapped.taps.items()})
            return h

        return layered.run(batch, on_layer).astype(mx.float32)

    return run, num_before


def first_input(layered: LayeredModel, batch: mx.array) -> mx.array:
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


def x_file(idx: int) -> str:
    return f"x-{idx:04d}.safetensors"


def g_file(idx: int) -> str:
    return f"g-{idx:04d}.safetensors"


def q_file(idx: int) -> str:
    """What `x_file` is, with all before the layer rounded."""
    return f"q-{idx:04d}.safetensors"


def part_file(idx: int) -> str:
    """The file of a rounded layer."""
    return f"part-{idx:04d}.safetensors"


REST_FILE = "part-rest.safetensors"
