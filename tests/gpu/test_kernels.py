"""On a GPU: the real kernels against float64, their verdicts, and a model that they serve.

The whole tables are verified by scripts/bench/kernels.py, in processes side by side, since most of
the time is compiling; here each operation has some cases of each type, edges among them.
"""

from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import pytest

from omlx.custom_kernels.backend import Backend, Compiled, this_backend
from omlx.custom_kernels.build import build
from omlx.custom_kernels.names import NAMES
from omlx.custom_kernels.op import Op
from omlx.custom_kernels.records import Record, Verdict, read_records
from omlx.custom_kernels.registry import digest, operation
from omlx.custom_kernels.selection import Selection
from omlx.custom_kernels.verify import verify
from omlx.models.kernels import use_kernels
from omlx.settings.places import data_dir
from tests.unit.models.test_kernels import ROWS, error, quantized, steps
from tests.unit.models.test_kernels import cast as in_type

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
FEW = 8


@pytest.fixture(scope="module")
def backend() -> Backend:
    found = this_backend()
    assert found is not None, "mlx computes on the CPU here"
    return found


def some(name: str) -> Op:
    """An operation with some of its cases, from all over its table, and one that is timed."""
    op = operation(name)
    return replace(op, cases=op.cases[:: max(1, len(op.cases) // FEW)], timed=op.timed[:1])


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_is_right(name: str, backend: Backend) -> None:
    if digest(operation(name), backend) is None:
        assert name == "flat_rows", "all others have sources for both"
        return
    op = some(name)
    found = verify(op, backend)
    assert (found.reason, found.num_cases) == ("", len(op.cases))


def test_a_source_that_does_not_compile_is_a_verdict(backend: Backend, tmp_path: Path) -> None:
    device = backend.device
    suffix = {"cuda": "cu", "metal": "metal"}[device.backend]
    (tmp_path / device.backend).mkdir()
    (tmp_path / device.backend / f"gemm_small.{suffix}").write_text("// body\nnothing[0] = 1;\n")
    spoiled = Compiled(device, folder=tmp_path)
    record = build(some("gemm_small"), spoiled, tmp_path / "k.json", lambda *_: None)
    assert record is not None and record.verdict is Verdict.FAILED and record.reason


def test_a_source_that_is_wrong_is_a_verdict(backend: Backend, tmp_path: Path) -> None:
    device = backend.device
    suffix = {"cuda": "cu", "metal": "metal"}[device.backend]
    (tmp_path / device.backend).mkdir()
    (tmp_path / "include").symlink_to(data_dir("kernels") / "include")
    source = data_dir("kernels") / device.backend / f"qk_rope.{suffix}"
    text = source.read_text()
    assert "a * s + b * c" in text
    wrong = text.replace("a * s + b * c", "a * s - b * c")
    (tmp_path / device.backend / source.name).write_text(wrong)
    found = verify(some("qk_rope"), Compiled(device, folder=tmp_path))
    assert "an error of" in found.reason


def test_outputs_that_are_not_written_are_noticed(backend: Backend, tmp_path: Path) -> None:
    device = backend.device
    suffix = {"cuda": "cu", "metal": "metal"}[device.backend]
    (tmp_path / device.backend).mkdir()
    source = data_dir("kernels") / device.backend / f"qk_rope.{suffix}"
    text = source.read_text()
    assert "to[i + HALF] = from[i + HALF];" in text
    (tmp_path / device.backend / source.name).write_text(
        text.replace("to[i + HALF] = from[i + HALF];", "")
    )
    found = verify(some("qk_rope"), Compiled(device, folder=tmp_path))
    assert "not written" in found.reason


@pytest.fixture(scope="module")
def kept(backend: Backend, tmp_path_factory: pytest.TempPathFactory) -> list[Record]:
    """Verdicts on all kernels by some of their cases. They serve here also where they are no
    faster: this is about what they compute."""
    path = tmp_path_factory.mktemp("state") / "kernels.json"
    for kernel in NAMES:
        if digest(operation(kernel), backend) is not None:
            build(some(kernel), backend, path, lambda *_: None)
    return [
        replace(one, speedups={case.shape_class: 2.0 for case in operation(one.op).timed})
        for one in read_records(path)
    ]


@pytest.mark.parametrize("name", ["llama", "qwen3", "gemma3_text", "qwen3_moe"])
def test_logits_with_kernels(name: str, backend: Backend, kept: list[Record]) -> None:
    plain = {rows: steps(quantized(name), rows) for rows in ROWS}
    model, wide = quantized(name), in_type(quantized(name), mx.float32)
    served = use_kernels(model, Selection(backend, kept))
    assert served.used and not served.lacking
    for rows in ROWS:
        exact = steps(wide, rows)
        assert error(steps(model, rows), exact) < max(1.2 * error(plain[rows], exact), 0.01)
