"""Operations: sources and tables that belong together, exact results, launches by plain functions.

The kernels here are plain functions that get what mlx would get; the real ones are in tests/gpu.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import pytest

from omlx.custom_kernels.backend import Device
from omlx.custom_kernels.float64 import unpacked
from omlx.custom_kernels.fused import Packed
from omlx.custom_kernels.metal import metal_plan
from omlx.custom_kernels.names import NAMES
from omlx.custom_kernels.op import BACKENDS, Case, in_order
from omlx.custom_kernels.registry import digest, operation, operations
from omlx.custom_kernels.source import SUFFIXES, read_source
from omlx.errors import OmlxError, UsageError
from tests.fakes.kernels import FakeBackend

KERNELS = Path(__file__).resolve().parents[3] / "kernels"
BUCKETS = [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (8, 8), (9, 16), (16, 16), (17, 32), (64, 32)]


def test_names_are_those_of_the_registry() -> None:
    assert tuple(op.name for op in operations()) == NAMES


def test_operations_are_found_by_name() -> None:
    assert [op.name for op in operations(("qk_rope", "flat_rows"))] == ["flat_rows", "qk_rope"]
    with pytest.raises(UsageError, match="no kernel 'qmm'") as caught:
        operations(("qmm",))
    assert "qmm_small" in caught.value.hint


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_source_has_an_operation_and_each_operation_a_source(backend: str) -> None:
    wanted = {op.name for op in operations() if op.has_source and backend in op.backends}
    found = {path.stem for path in (KERNELS / backend).glob(f"*.{SUFFIXES[backend]}")}
    assert found == wanted


def test_each_file_of_kernels_is_a_source_or_included_by_one() -> None:
    sources = [path for suffix in SUFFIXES.values() for path in KERNELS.rglob(f"*.{suffix}")]
    for path in sources:
        read_source(path.parent.name, path.stem)
    texts = [path.read_text() for path in [*sources, *(KERNELS / "include").iterdir()]]
    for path in (KERNELS / "include").iterdir():
        assert any(f'#include "{path.name}"' in text for text in texts), path.name


def test_a_source_that_is_not_whole_is_named(tmp_path: Path) -> None:
    (tmp_path / "cuda").mkdir()
    (tmp_path / "cuda" / "half.cu").write_text("// body is missing\n")
    with pytest.raises(OmlxError, match="half.cu has no line"):
        read_source("cuda", "half", folder=tmp_path)
    with pytest.raises(OmlxError, match="can't read the kernel source .*none.cu"):
        read_source("cuda", "none", folder=tmp_path)


def test_a_digest_changes_with_what_is_included(tmp_path: Path) -> None:
    for name in ("cuda", "include"):
        (tmp_path / name).mkdir()
    (tmp_path / "cuda" / "one.cu").write_text('#include "part.cuh"\n// body\ny[0] = TWO;\n')
    part = tmp_path / "include" / "part.cuh"
    part.write_text("#pragma once\n#define TWO 2\n")
    before = read_source("cuda", "one", folder=tmp_path)
    assert before.header == "#define TWO 2\n" and before.body == "y[0] = TWO;\n"
    part.write_text("#pragma once\n#define TWO 3\n")
    assert read_source("cuda", "one", folder=tmp_path).digest != before.digest


@pytest.mark.parametrize("name", NAMES)
def test_tables_hold_what_the_operation_takes(name: str) -> None:
    op = operation(name)
    assert all(op.takes(case) for case in (*op.cases, *op.timed))
    assert len({*op.cases}) == len(op.cases) and len({*op.timed}) == len(op.timed)
    classes = [case.shape_class for case in op.timed]
    assert len({*classes}) == len(classes), "each shape class is timed once"


@pytest.mark.parametrize("name", [name for name in NAMES if name != "flat_rows"])
def test_every_number_of_rows_has_a_class_that_is_timed(name: str) -> None:
    op = operation(name)
    for rows in range(1, 17):
        some = op.timed[0]
        case = Case(some.dtype, rows, some.num_in, some.outs, some.bits, some.group, some.heads)
        assert case.shape_class in {one.shape_class for one in op.timed}


@pytest.mark.parametrize(("rows", "timed"), BUCKETS)
def test_rows_share_a_class_with_those_that_stand_for_them(rows: int, timed: int) -> None:
    assert Case("bfloat16", rows).shape_class == Case("bfloat16", timed).shape_class


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("qmm_small", Case("float32", 1, 640, (64,), 4, 64)),
        ("qmm_small", Case("bfloat16", 17, 640, (64,), 4, 64)),
        ("qmm_small", Case("bfloat16", 1, 640, (64,), 3, 64)),
        ("qmm_small", Case("bfloat16", 1, 640, (64,), 4, 16)),
        ("gemm_small", Case("bfloat16", 1, 648, (64,))),
        ("gemm_small", Case("", 1, 640, (64,))),
        ("flat_rows", Case("bfloat16", 7, 640, (64,), 4, 64)),
        ("norm_qkv", Case("bfloat16", 1, 640, (64, 32, 32), 4, 64)),
        ("norm_gate_up", Case("bfloat16", 1, 640, (64, 72), 4, 64)),
        ("qk_rope", Case("bfloat16", 1, heads=(4, 2, 80))),
    ],
)
def test_what_a_kernel_cannot_is_not_taken(name: str, case: Case) -> None:
    assert not operation(name).takes(case)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_weights_are_unpacked_as_mlx_packs_them(bits: int, group: int) -> None:
    matrix = mx.random.normal((24, 256), key=mx.random.key(3))
    quantized = mx.quantize(matrix, group_size=group, bits=bits)
    by_mlx = mx.dequantize(*quantized, group_size=group, bits=bits)
    with mx.stream(mx.cpu):
        exact = unpacked(Packed(*quantized, bits, group))
        assert exact.dtype == mx.float64
        assert mx.abs(exact - by_mlx.astype(mx.float64)).max().item() < 1e-6


def _difference(found: list[mx.array], exact: list[mx.array]) -> float:
    with mx.stream(mx.cpu):
        pairs = [
            (mx.abs(a.astype(mx.float64).reshape(-1) - b.reshape(-1)).max() / b.max()).item()
            for a, b in zip(found, exact, strict=True)
        ]
    return max(float(one) for one in pairs)


@pytest.mark.parametrize("name", NAMES)
def test_the_reference_in_float32_is_near_the_exact_result(name: str) -> None:
    """In 16 bits a CPU adds in 16 bits, too, which says nothing."""
    op = operation(name)
    mx.random.seed(1)
    for case in op.cases[:2]:
        inputs: list[Any] = op.inputs(replace(case, dtype="float32"))
        reference = in_order(op.reference(*inputs))
        if name == "norm_qkv":  # plain mlx has them apart
            reference = [mx.concatenate(reference, axis=-1)]
        with mx.stream(mx.cpu):
            exact = in_order(op.exact(*inputs))
        # Far positions times frequencies that were inverted twice turn by a little more.
        assert _difference(reference, exact) < (5e-3 if name == "qk_rope" else 1e-4)


def test_a_digest_is_of_source_and_launching_code(tmp_path: Path) -> None:
    op, backend = operation("qmm_small"), FakeBackend()
    before = digest(op, backend)
    assert before is not None
    assert digest(op, FakeBackend(revision="2")) != before
    code = tmp_path / "launch.py"
    code.write_text("tiles = 1")
    moved = digest(replace(op, code=(code,)), backend)
    code.write_text("tiles = 2")
    assert digest(replace(op, code=(code,)), backend) != moved


def test_a_kernel_without_a_source_for_a_device_has_no_digest() -> None:
    metal = FakeBackend(Device("metal", "M9", "0.32.4"))
    assert digest(operation("flat_rows"), metal) is None
    assert digest(operation("qmm_small"), metal) is not None
    assert digest(operation("qmm_small"), FakeBackend(broken=(("qmm_small", "absent"),))) is None


@pytest.mark.parametrize("rows", range(1, 17))
def test_on_metal_every_sum_has_a_simdgroup_and_memory_suffices(rows: int) -> None:
    for num_sums in (16, 72, 4096):
        template, grid = metal_plan(rows, num_sums)
        assert template["ROWS"] >= rows and template["OUT"] % 2 == 0
        assert template["ROWS"] <= 4 or template["ROWS"] in (8, 16)
        assert template["ROWS"] > 4 or template["ROWS"] * template["OUT"] <= 32
        assert grid.threads == 32 * template["WARPS"]
        a_block = template["OUT"] * template["WARPS"]
        assert (grid.blocks - 1) * a_block < num_sums <= grid.blocks * a_block
