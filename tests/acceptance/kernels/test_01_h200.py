"""Point 1: on an H200, every kernel is right over its whole table, and fast.

The GPU is not part of this machine: docs/bench/kernels.json is judged here.
"""

from typing import Any

import pytest

from omlx.custom_kernels.names import NAMES
from omlx.custom_kernels.op import TOLERANCES
from omlx.custom_kernels.registry import operation
from tests.acceptance.conftest import Figure
from tests.acceptance.kernels import kept

QMM_OF_BOUND = 0.5  # 4096 x 12288 in 4 bits, at 1 to 8 rows
GEMM_SPEEDUP = 1.5  # at 2 rows
DECODE = {"1": 2.0, "8": 5.0}  # omlx with kernels over plain mlx-lm, by rows


@pytest.fixture(scope="module")
def result() -> Any:
    return kept.result()


def test_it_was_an_h200(result: Any) -> None:
    assert "H200" in result["machine"]["device"]
    assert {*result["parts"]} >= {"verify", "time", "decode", "logits"}


@pytest.mark.parametrize("name", NAMES)
def test_each_is_right_over_its_table(result: Any, name: str, figure: Figure) -> None:
    found = result["parts"]["verify"][name]
    assert found["reason"] == ""
    assert found["cases"] == found["of"] == len(operation(name).cases)
    assert {*found["errors"]} == {case.dtype for case in operation(name).cases}
    for dtype, error in found["errors"].items():
        assert 0 < error < TOLERANCES[dtype]
    errors = ", ".join(f"{dtype} {error:.1e}" for dtype, error in found["errors"].items())
    figure(f"{name}: {found['cases']} cases, largest errors {errors}")


@pytest.mark.parametrize("rows", [1, 2, 4, 8])
def test_qmm_small_comes_near_the_bandwidth(result: Any, rows: int, figure: Figure) -> None:
    found = kept.row(result["parts"]["time"]["qmm_small"], rows=rows, bits=4, outs=[12288])
    figure(
        f"qmm_small, 4096 x 12288, {rows} rows: {found['kernel_us']} us, "
        f"{100 * found['of_bound']:.0f} % of the bound; mlx {found['mlx_us']} us, "
        f"{100 * found['mlx_of_bound']:.0f} %"
    )
    assert found["of_bound"] >= QMM_OF_BOUND


def test_gemm_small_is_faster_than_mlx(result: Any, figure: Figure) -> None:
    rows = [one for one in result["parts"]["time"]["gemm_small"] if one["rows"] == 2]
    figure(
        "gemm_small at 2 rows: "
        + ", ".join(f"{one['outs'][0]} x {one['num_in']} {one['speedup']:.2f}" for one in rows)
    )
    assert kept.row(rows, outs=[12288])["speedup"] >= GEMM_SPEEDUP


def test_the_fused_ones_are_faster_than_their_parts(result: Any, figure: Figure) -> None:
    for name in ("norm_qkv", "norm_gate_up", "qk_rope"):
        rows = [one for one in result["parts"]["time"][name] if one["bits"] in (0, 4)]
        shown = ", ".join(f"{one['class']} {one['speedup']:.2f}" for one in rows)
        figure(f"{name} over mlx's operations: {shown}")
        assert all(one["speedup"] > 1 for one in rows)


@pytest.mark.parametrize("rows", ["1", "8"])
def test_a_model_decodes_faster(result: Any, rows: str, figure: Figure) -> None:
    found = result["parts"]["decode"]
    plain = found["library"][rows]["tokens_per_s"]
    ours = found["engine"][rows]
    figure(
        f"8B shape in 4 bits, {found['layers']} layers, {rows} rows: plain mlx-lm {plain} tok/s, "
        f"the same loop with kernels {found['kernels'][rows]['tokens_per_s']}, omlx's engine {ours}"
    )
    assert ours / plain >= DECODE[rows]
