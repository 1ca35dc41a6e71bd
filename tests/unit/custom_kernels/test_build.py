"""Verification, timing and verdicts, with plain functions as kernels."""

from dataclasses import replace
from pathlib import Path

import pytest

from omlx.custom_kernels.backend import Device
from omlx.custom_kernels.build import broken_record, build
from omlx.custom_kernels.names import NAMES
from omlx.custom_kernels.op import Op
from omlx.custom_kernels.records import Verdict, read_records
from omlx.custom_kernels.registry import operation
from omlx.custom_kernels.status import kernel_status
from omlx.custom_kernels.timing import time_op
from omlx.custom_kernels.verify import verify
from tests.fakes.kernels import FakeBackend

SMALL = 300_000  # weights
SOURCED = [name for name in NAMES if name != "flat_rows"]


def small(name: str, num: int = 6) -> Op:
    """An operation with a few of its small cases, of both types where it has them."""
    op = operation(name)
    cases = [case for case in op.cases if case.num_weights <= SMALL and case.rows < 9]
    step = max(1, len(cases) // num)
    chosen = tuple(cases[::step])
    return replace(
        op, cases=chosen, timed=tuple(replace(case, dtype="bfloat16") for case in chosen[:1])
    )


def nothing(done: int, total: int, stage: str) -> None:
    """Progress that nobody sees."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kernels.json"


@pytest.mark.parametrize("backend", ["cuda", "metal"])
@pytest.mark.parametrize("name", SOURCED)
def test_a_right_kernel_passes_all_its_cases(name: str, backend: str) -> None:
    op = small(name, 8)
    found = verify(op, FakeBackend(Device(backend, "G9", "0.32.4")))
    assert (found.reason, found.num_cases) == ("", len(op.cases))
    assert all(0 < found.errors[dtype] < op.tolerances[dtype] for dtype in found.errors)


def test_rows_of_a_batch_in_one_product_are_right() -> None:
    """In float32, since a CPU adds in the type that it has."""
    op = small("flat_rows")
    cases = tuple(replace(case, dtype="float32") for case in op.cases)
    op = replace(op, cases=cases, tolerances={"float32": 1e-4})
    assert verify(op, FakeBackend()).reason == ""


@pytest.mark.parametrize("name", SOURCED)
@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("off", "an error of"),
        ("silent", "not written"),
        ("refused", 'error: identifier "y" is undefined'),
    ],
)
def test_a_wrong_kernel_fails(name: str, how: str, reason: str) -> None:
    found = verify(small(name), FakeBackend(broken=((name, how),)))
    assert reason in found.reason and found.num_cases == 0


def test_a_kernel_that_changes_its_mind_fails() -> None:
    op = small("gemm_small", 1)
    right = FakeBackend()
    steps = iter((1.0, 1.004))

    def bind(_: object):
        function = op.bind(right)
        return lambda x, w: function(x, w) * next(steps)

    assert "two runs" in verify(replace(op, cases=op.cases[:1], bind=bind), right).reason


def test_an_output_of_another_shape_fails() -> None:
    op = replace(small("gemm_small"), bind=lambda _: lambda x, w: (x @ w.T)[..., :-1])
    assert "instead of" in verify(op, FakeBackend()).reason


def test_times_are_those_of_the_clock_by_turns() -> None:
    op = small("gemm_small")
    ticks = iter(range(10_000))
    (timed,) = time_op(op, FakeBackend(), cold_bytes=1, clock=lambda: float(next(ticks)))
    assert timed.kernel_s == timed.reference_s == pytest.approx(1 / 3)
    assert timed.speedup == 1.0


def test_weights_are_more_than_a_cache_holds() -> None:
    from omlx.custom_kernels.timing import COLD_BYTES

    made: list[int] = []
    op = small("gemm_small")
    case = op.timed[0]

    def inputs(case):
        made.append(case.weight_bytes)
        return operation("gemm_small").inputs(case)

    time_op(replace(op, inputs=inputs), FakeBackend(), cold_bytes=10 * case.weight_bytes)
    assert sum(made) == 10 * case.weight_bytes
    assert COLD_BYTES > 2 * 96e6, "the last cache of the largest GPUs"


def test_a_verdict_is_kept_and_read(path: Path) -> None:
    backend, op = FakeBackend(), small("qmm_small")
    record = build(op, backend, path, nothing)
    assert record is not None and record.verdict is Verdict.VERIFIED
    assert {*record.speedups} == {case.shape_class for case in op.timed}
    assert read_records(path) == (record,)
    (status,) = [one for one in kernel_status(path, backend) if one.name == "qmm_small"]
    assert (status.state, status.num_cases) == ("verified", len(op.cases))


def test_a_failure_is_kept_with_its_reason(path: Path) -> None:
    backend = FakeBackend(broken=(("gemm_small", "off"),))
    record = build(small("gemm_small"), backend, path, nothing)
    assert record is not None and record.verdict is Verdict.FAILED and not record.speedups
    (status,) = [one for one in kernel_status(path, backend) if one.name == "gemm_small"]
    assert status.state == "failed" and "an error of" in status.reason and not status.is_faster


def test_without_a_source_nothing_is_built(path: Path) -> None:
    backend = FakeBackend(broken=(("gemm_small", "absent"),))
    assert build(small("gemm_small"), backend, path, nothing) is None
    assert not path.exists()
    (status,) = [one for one in kernel_status(path, backend) if one.name == "gemm_small"]
    assert (status.state, status.reason) == ("no kernel here", "its source is missing")


def test_progress_goes_to_the_end_of_each_stage(path: Path) -> None:
    said: list[tuple[int, int, str]] = []
    op = small("gemm_small")
    build(op, FakeBackend(), path, lambda *one: said.append(one))
    verified = [one for one in said if one[2] == "verify gemm_small"]
    assert [one[0] for one in verified] == list(range(len(op.cases)))
    assert any(one[2] == "time gemm_small" for one in said)


@pytest.mark.parametrize(
    "other",
    [
        FakeBackend(revision="2"),
        FakeBackend(replace(FakeBackend().device, mlx="0.33.0")),
        FakeBackend(replace(FakeBackend().device, name="Another")),
    ],
    ids=["source", "mlx", "device"],
)
def test_a_verdict_does_not_hold_for_another(path: Path, other: FakeBackend) -> None:
    build(small("gemm_small"), FakeBackend(), path, nothing)
    (status,) = [one for one in kernel_status(path, other) if one.name == "gemm_small"]
    assert status.state == "not built"
    build(small("gemm_small"), other, path, nothing)
    (status,) = [one for one in kernel_status(path, other) if one.name == "gemm_small"]
    assert status.state == "verified"


def test_a_corrupt_file_asks_for_new_verdicts(path: Path) -> None:
    backend = FakeBackend()
    build(small("gemm_small"), backend, path, nothing)
    path.write_text(path.read_text()[:-20])
    assert {one.state for one in kernel_status(path, backend)} == {"not built"}
    build(small("gemm_small"), backend, path, nothing)
    assert [one.op for one in read_records(path)] == ["gemm_small"]


def test_a_process_that_dies_is_a_verdict() -> None:
    record = broken_record(operation("qk_rope"), FakeBackend(), "ended with exit code -6")
    assert record.verdict is Verdict.FAILED and record.reason == "ended with exit code -6"


def test_the_status_of_this_machine_needs_no_gpu(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from omlx.custom_kernels import native_kernel_status

    monkeypatch.setenv("OMLX_HOME", str(path.parent))
    assert [one.name for one in native_kernel_status()] == list(NAMES)
