"""Point 11: on an H200, an 8B-shaped bf16 model served; cold and hit logits equal; the ratios.

The GPU is not part of this machine: `scripts/gpu WHEELS scripts/bench/gpu-serve` measured there and
wrote docs/bench/h200-serve.json, which is judged here.
"""

import json

from tests.acceptance.conftest import Figure
from tests.live import REPOSITORY


def test_recorded_run(figure: Figure) -> None:
    result = json.loads((REPOSITORY / "docs" / "bench" / "h200-serve.json").read_text())
    assert "H200" in result["machine"]["device"]
    assert result["gpu_tests"]["failed"] == 0 and result["gpu_tests"]["passed"] >= 8
    served = result["served"]
    assert served["again_cached"] == served["restart_cached"] == served["prompt_tokens"] - 1
    assert served["text"].strip()
    assert served["again_text_equal"] and served["restart_text_equal"]
    prefill = result["overhead"]["prefill_cache_on_vs_off"]
    assert prefill["high95"] >= 0.97, prefill
    for decode in result["overhead"]["decode_vs_bare"]:
        assert decode["high95"] >= 0.97, decode
    figure(
        f"prefill on/off {prefill['ratio']} [{prefill['low95']}, {prefill['high95']}]; decode "
        + ", ".join(f"{d['rows']} rows {d['ratio']}" for d in result["overhead"]["decode_vs_bare"])
        + f"; served ttft cold {served['cold_ttft_s']:.2f} s, again {served['again_ttft_s']:.2f} s,"
        f" restart {served['restart_ttft_s']:.2f} s"
    )
