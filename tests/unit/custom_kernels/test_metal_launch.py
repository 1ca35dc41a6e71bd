"""What omlx launches on Metal, on a device that is C++: templates and grids fit the sources."""

from dataclasses import replace

import mlx.core as mx
import pytest

from omlx.custom_kernels.op import Op
from omlx.custom_kernels.registry import operation
from omlx.custom_kernels.verify import verify
from tests.shim import build, sources
from tests.shim.backend import Collecting, running
from tests.shim.calls import Library
from tests.shim.sources import Files

FILES = Files.read()
# The first cases are of one packing, with 1, 3, 8, 9 and 16 rows: both ways to multiply.
CHOSEN = (0, 1, 3)


def few(name: str) -> Op:
    op = operation(name)
    return replace(op, cases=tuple(op.cases[idx] for idx in CHOSEN))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Library:
    made = Collecting()
    for name in sources.NAMES:
        op = few(name)
        function = op.bind(made.backend)
        for case in op.cases:
            function(*op.inputs(case))
    instances = {call.instance.symbol(FILES): (FILES, call.instance) for call in made.calls}
    program = sources.program(instances.values())
    return Library(build.library([program], tmp_path_factory.mktemp("metal")))


@pytest.mark.parametrize("name", sources.NAMES)
def test_an_operation_is_right_as_it_is_launched(library: Library, name: str) -> None:
    with mx.stream(mx.cpu):
        outcome = verify(few(name), running(library, FILES))
    assert not outcome.reason and outcome.num_cases == len(CHOSEN)
    assert all(error > 0 for error in outcome.errors.values())
