"""Point 3: the same logits with kernels on and off, for four families, cold and restored.

Those of a GPU are in docs/bench/kernels.json and judged here. A model in 16 bits is never exact, so
both are measured against the same weights in float32: kernels must not be further from it.
"""

from typing import Any

import pytest

from tests.acceptance.conftest import Figure
from tests.acceptance.kernels import kept

FAMILIES = ("llama", "qwen3", "gemma3_text", "qwen3_moe")
FUSED = {"norm_qkv", "qk_rope", "norm_gate_up", "qmm_small"}
ROUNDING = 0.02  # of the logits' root mean square


@pytest.fixture(scope="module")
def found() -> Any:
    return kept.result()["parts"]["logits"]


@pytest.mark.parametrize("name", FAMILIES)
def test_kernels_are_as_near_to_float32_as_plain_mlx(found: Any, name: str, figure: Figure) -> None:
    family = found[name]
    assert family["lacking"] == {}
    assert {*family["used"]} >= (FUSED if name in ("llama", "qwen3") else {"qmm_small"})
    assert {*family["rows"]} == {"1", "2", "4", "8", "16"}
    for rows, apart in family["rows"].items():
        assert apart["kernels"] <= max(1.3 * apart["plain"], ROUNDING), rows
    one = family["rows"]["1"]
    figure(
        f"{name}: from float32 by {one['kernels']:.4f} with kernels, {one['plain']:.4f} without, "
        f"{one['between']:.4f} between both; restored logits "
        + ("are the same bits" if family["restored"]["same_bits"] else
           f"apart by {family['restored']['apart']:.1e}")
    )  # fmt: skip


@pytest.mark.parametrize("name", FAMILIES)
def test_what_comes_back_gives_the_logits_of_a_cold_run(found: Any, name: str) -> None:
    back = found[name]["restored"]
    assert back["cached"] == back["of"] - 1
    assert back["same_bits"] or back["apart"] < ROUNDING
