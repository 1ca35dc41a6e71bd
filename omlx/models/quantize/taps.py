"""Hears what goes into the matrices of a module, and how its output reacts to errors in theirs.

Knows nothing about formats or files.
"""

# What mlx's stubs and mlx-lm leave untyped.
# pyright: basic

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import count
from typing import Any, cast

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten
from mlx_lm.models.mla import MultiLinear
from mlx_lm.models.switch_layers import SwitchLinear

from omlx.errors import ModelError

# What the stubs of mlx leave untyped.
_mx: Any = mx
MATRICES = (nn.Linear, nn.Embedding, SwitchLinear, MultiLinear)


@dataclass(frozen=True, slots=True)
class Heard:
    """One call of a matrix: its input, the other arguments, and the gradient at its output.

    `gradient` is that of the log probability of sampled tokens; None where none was asked for.
    `is_head` marks an embedding that is used as the head.
    """

    x: mx.array
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    gradient: mx.array | None = None
    is_head: bool = False


class Tap(nn.Module):
    """Stands for a matrix, notes its inputs, and adds probes to its outputs."""

    def __init__(self, inner: Any, numbers: Callable[[], int]) -> None:
        super().__init__()
        self._reach = lambda: inner
        self._state: Callable[[], _State] = _keeper(numbers)

    @property
    def inner(self) -> Any:
        """The matrix itself."""
        return self._reach()

    @property
    def hears(self) -> "_State":
        """What was heard since the last `reset`."""
        return self._state()

    def __call__(self, x: mx.array, *args: Any, **kwargs: Any) -> mx.array:
        """The matrix's output, and a probe's zeros."""
        return self.hears.note(self._reach()(x, *args, **kwargs), Heard(x, args, kwargs))

    def as_linear(self, x: mx.array) -> mx.array:
        """An embedding as the head."""
        return self.hears.note(self._reach().as_linear(x), Heard(x, (), {}, is_head=True))

    def __getattr__(self, key: str) -> Any:
        """The matrix's own attributes."""
        if key in ("_reach", "_state"):
            raise AttributeError(key)
        return getattr(self._reach(), key)


class _State:
    """The calls of one run, and the probes to add in their order; `first` numbers the first one."""

    def __init__(self, numbers: Callable[[], int]) -> None:
        self._numbers = numbers
        self.first = 0
        self.heard: list[Heard] = []
        self.shapes: list[tuple[int, ...]] = []
        self.probes: list[mx.array] = []

    def reset(self, probes: Sequence[mx.array] = ()) -> None:
        """Begin a run (mutates)."""
        self.heard, self.shapes, self.probes = [], [], list(probes)

    def note(self, out: mx.array, heard: Heard) -> mx.array:
        """Keep a call, and give its output on (mutates)."""
        at, number = len(self.heard), self._numbers()
        self.first = self.first if at else number
        self.heard.append(heard)
        self.shapes.append(tuple(out.shape))
        return out + self.probes[at] if self.probes else out


def _keeper(numbers: Callable[[], int]) -> Callable[[], _State]:
    state = _State(numbers)
    return lambda: state


def matrices(module: Any) -> dict[str, Any]:
    """The matrices below a module that have a quantized form, by their names, sorted."""
    found = {name: one for name, one in module.named_modules() if type(one) in MATRICES}
    return dict(sorted(found.items()))


class Tapped:
    """A module whose matrices are tapped while this is entered."""

    def __init__(self, module: Any, found: Mapping[str, Any]) -> None:
        self._module = module
        self._found = found
        numbers = count().__next__
        self.taps = {name: Tap(inner, numbers) for name, inner in found.items()}

    def __enter__(self) -> "Tapped":
        self._put(self.taps)
        return self

    def __exit__(self, *_: object) -> None:
        self._put(self._found)

    def _put(self, modules: Mapping[str, Any]) -> None:
        self._module.update_modules(tree_unflatten(list(modules.items())))

    def listen(self, run: Callable[[], mx.array]) -> tuple[mx.array, dict[str, list[Heard]]]:
        """What a run gives, and what each matrix heard in it, evaluated."""
        out, heard = self._run(run)
        _mx.eval(out, _inputs(heard))
        return out, heard

    def inputs(self, run: Callable[[], mx.array], names: Collection[str]) -> dict[str, list[Heard]]:
        """What some matrices hear in a run, evaluated; what comes after them is not computed."""
        _, heard = self._run(run)
        found = {name: heard[name] for name in names}
        _mx.eval(_inputs(found))
        return found

    def stages(self, run: Callable[[], mx.array]) -> list[list[str]]:
        """The matrices by what they hear first, in the order of a run, which is not computed: those
        of a stage hear the same array. What is never called comes last."""
        _, heard = self._run(run)
        by_input: dict[int, list[str]] = {}
        called = [name for name in heard if heard[name]]
        for name in sorted(called, key=lambda name: self.taps[name].hears.first):
            by_input.setdefault(id(heard[name][0].x), []).append(name)
        rest = [name for name in heard if not heard[name]]
        return [*by_input.values(), *([rest] if rest else [])]

    def _run(self, run: Callable[[], mx.array]) -> tuple[mx.array, dict[str, list[Heard]]]:
        for tap in self.taps.values():
            tap.hears.reset()
        out = run()
        return out, {name: tap.hears.heard for name, tap in self.taps.items()}

    def gradients(
        self, run: Callable[[mx.array], mx.array], x: mx.array, cotangent: mx.array
    ) -> tuple[mx.array, dict[str, list[mx.array]]]:
        """The gradients at `x` and at the output of every call of each matrix."""
        for tap in self.taps.values():
            tap.hears.reset()
        run(x)  # lazily: for the shapes
        shapes = {name: tap.hears.shapes for name, tap in self.taps.items()}
        names = [(name, at) for name in shapes for at in range(len(shapes[name]))]
        probes = [mx.zeros(shapes[name][at]) for name, at in names]

        def probed(x: mx.array, *probes: mx.array) -> list[mx.array]:
            for name, tap in self.taps.items():
                own = [p for (other, _), p in zip(names, probes, strict=True) if other == name]
                tap.hears.reset(own)
            return [run(x)]

        try:
            _, found = _mx.vjp(probed, [x, *probes], [cotangent])
            _mx.eval(found)
        except (ValueError, RuntimeError) as error:
            raise ModelError(
                f"mlx has no gradient of this architecture: {error}",
                hint="It can't be quantized by measurement; mlx_lm.convert makes uniform formats.",
            ) from error
        for tap in self.taps.values():
            tap.hears.reset()
        by_name: dict[str, list[mx.array]] = {name: [] for name in shapes}
        for (name, _), gradient in zip(names, found[1:], strict=True):
            by_name[name].append(gradient)
        return found[0], by_name


def _inputs(heard: Mapping[str, Sequence[Heard]]) -> list[Any]:
    return [[h.x, *h.args, *h.kwargs.values()] for calls in heard.values() for h in calls]


def number(array: mx.array) -> float:
    """The value of an array that has one."""
    return float(cast(float, array.item()))


def with_weight(matrix: Any, weight: mx.array) -> Any:
    """A matrix like another with other values and without a bias; the other stays as it is."""
    other = copy(matrix)
    other.pop("bias", None)
    other.weight = weight
    return other


def output(matrix: Any, heard: Heard) -> mx.array:
    """What a matrix gives for a call that was heard."""
    if heard.is_head:
        return matrix.as_linear(heard.x)
    return matrix(heard.x, *heard.args, **heard.kwargs)
