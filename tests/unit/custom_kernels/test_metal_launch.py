"""How kernels are launched on Metal, with the Metal sources compiled as C++: both belong together.

`test_metal` has its own launches of the sources; here omlx's launching code makes them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from omlx.custom_kernels.backend import Backend, Device, Launch
from omlx.custom_kernels.launch import Grid, Run
from omlx.custom_kernels.metal import metal_plan
from omlx.custom_kernels.names import NAMES
from omlx.custom_kernels.op import Case, in_order
from omlx.custom_kernels.registry import operation
from tests.shim import build, cases, sources
from tests.shim.calls import Array, Call, Library
from tests.shim.sources import Files

FILES = Files.read()
SOURCED = [name for name in NAMES if operation(name).has_source]
KINDS = {
    mx.bfloat16: "bfloat", mx.float16: "half", mx.float32: "float", mx.int32: "int",
    mx.uint32: "uint",
}  # fmt: skip


@dataclass
class Recorder:
    """A Metal device that keeps the calls that it gets, as the shim takes them."""

    device: Device = Device("metal", "shim", "0")
    calls: list[Call] = field(default_factory=list)

    def digest(self, name: str) -> str | None:
        """Its name."""
        return name

    def poisoned(self) -> Backend:
        """Outputs are poisoned anyway."""
        return self

    def kernel(self, name: str, inputs: Sequence[str], outputs: Sequence[str]) -> Launch:
        """A launch that keeps the call."""
        return Recording(self, name, inputs, outputs)


@dataclass
class Recording:
    """A launch of one kernel."""

    recorder: Recorder
    name: str
    inputs: Sequence[str]
    outputs: Sequence[str]

    def prepare(
        self,
        *,
        template: Mapping[str, Any],
        grid: Grid,
        shapes: Sequence[Sequence[int]],
        dtypes: Sequence[mx.Dtype],
    ) -> Run:
        """Keeps the call and gives zeros."""
        plain = tuple((name, KINDS.get(value, value)) for name, value in template.items())

        def run(inputs: list[mx.array]) -> list[mx.array]:
            named = zip(self.inputs, map(array_of, inputs), strict=True)
            made = zip(self.outputs, map(tuple, shapes), strict=True)
            place = (grid.blocks, grid.rows, grid.threads)
            self.recorder.calls.append(Call(self.name, plain, tuple(named), tuple(made), place))
            return [mx.zeros(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]

        return run


def array_of(x: mx.array) -> Array:
    bits = x.view(mx.uint16) if x.dtype == mx.bfloat16 else x
    return Array(np.ascontiguousarray(np.array(bits)), KINDS[x.dtype])


@dataclass(frozen=True)
class Made:
    """One case of an operation, as it is launched, with its exact results."""

    name: str
    case: Case
    call: Call
    exact: list[np.ndarray]


def chosen(name: str) -> list[Case]:
    """Small cases of 3 and of 9 rows, and one with a residual where there are some."""
    small = [case for case in operation(name).cases if case.num_weights < 300_000]
    found = [next(case for case in small if case.rows == rows) for rows in (3, 9)]
    return [*found, *[case for case in small if case.has_residual][:1]]


def made(name: str) -> list[Made]:
    op, recorder = operation(name), Recorder()
    found = []
    for seed, case in enumerate(chosen(name)):
        mx.random.seed(seed)
        inputs = op.inputs(case)
        op.bind(recorder)(*inputs)
        with mx.stream(mx.cpu):
            exact = [np.array(one) for one in in_order(op.exact(*inputs))]
        found.append(Made(name, case, recorder.calls[-1], exact))
    return found


@pytest.fixture(scope="module")
def launched() -> list[Made]:
    return [one for name in SOURCED for one in made(name)]


@pytest.fixture(scope="module")
def library(
    launched: list[Made], tmp_path_factory: pytest.TempPathFactory, worker_id: str
) -> Library:
    base = tmp_path_factory.getbasetemp()
    folder = (base if worker_id == "master" else base.parent) / "metal_launch"
    folder.mkdir(exist_ok=True)
    each = list({one.call.instance: None for one in launched})
    programs = [sources.program((FILES, one) for one in each[part::2]) for part in range(2)]
    return Library(build.library(programs, folder))


@pytest.mark.parametrize("name", SOURCED)
def test_launches_give_the_exact_results(launched: list[Made], library: Library, name: str) -> None:
    for one in (one for one in launched if one.name == name):
        results = library.run(one.call, FILES)
        for result, exact in zip(results, one.exact, strict=True):
            assert result.data.shape == exact.shape
            allowed = np.abs(exact) + np.sqrt(np.mean(exact**2))
            worst = float((np.abs(result.exact - exact) / allowed).max())
            assert worst < operation(name).tolerances[one.case.dtype], one.case.label


@pytest.mark.parametrize("rows", range(1, 17))
def test_the_sources_are_tested_as_they_are_launched(rows: int) -> None:
    assert metal_plan(rows, 4096)[0] == cases.launch_of(rows)
