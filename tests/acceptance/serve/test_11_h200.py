"""Point 11: on an H200, an 8B-shaped bf16 model served; cold and hit logits equal; the ratios.

The GPU is not part of this machine: `scripts/gpu WHEELS python3 scripts/bench/gpu_serve.py
TOKENIZER_DIR OUT.json` measured there; docs/bench/h200-serve.json is judged here.
"""

import json
from typing import Any

import pytest

from tests.acceptance.conftest import Figure
from tests.live import REPOSITORY


@pytest.fixture(scope="module")
def result() -> Any:
    return json.loads((REPOSITORY / "docs" / "bench" / "h200-serve.json").read_text())


def test_served_and_exact(result: Any, figure: Figure) -> None:
    assert "H200" in result["machine"]["device"]
    assert result["gpu_tests"]["failed"] == 0 and result["gpu_tests"]["passed"] >= 8
    served = result["served"]
    assert served["again_cached"] == served["restart_cached"] == served["prompt_tokens"] - 1
    assert served["text"].strip()
    assert served["again_text_equal"] and served["restart_text_equal"]
    figure(
        f"{result['gpu_tests']['passed']} prompts: logits equal in memory and from disk; served: "
        f"{served['prompt_tokens']} tokens, ttft cold {served['cold_ttft_s']:.2f} s, "
        f"again {served['again_ttft_s']:.2f} s, restart {served['restart_ttft_s']:.2f} s"
    )


@pytest.mark.parametrize("rows", [1, 8])
def test_decode(result: Any, rows: int, figure: Figure) -> None:
    (decode,) = [d for d in result["overhead"]["decode_vs_bare"] if d["rows"] == rows]
    figure(f"decode, {rows} rows: {decode['ratio']} [{decode['low95']}, {decode['high95']}]")
    assert decode["high95"] >= 0.97


def test_prefill(result: Any, figure: Figure) -> None:
    prefill = result["overhead"]["prefill_cache_on_vs_off"]
    figure(
        f"prefill, cache on against off: {prefill['ratio']} [{prefill['low95']}, "
        f"{prefill['high95']}], control {prefill['control_off_off']['ratio']}"
    )
    assert prefill["high95"] >= 0.97
