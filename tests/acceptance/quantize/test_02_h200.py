"""Point 2, on an H200: what `omlx quantize` makes runs in plain mlx-lm and in `omlx serve` there.

The GPU is not part of this machine: `scripts/gpu WHEELS python3 scripts/bench/gpu_quantized.py
TOKENIZER_DIR --out FILE` measures there; docs/bench/h200-quantized.json is judged here.
"""

import json
from typing import Any

import pytest

from omlx.models.quantize.formats import BY_LABEL
from tests.acceptance.conftest import Figure
from tests.live import REPOSITORY

KEPT = REPOSITORY / "docs" / "bench" / "h200-quantized.json"
# Activations are in halves on the device: eleven bits, and thirty layers to add up over.
MAX_RELATIVE, MAX_KL = 0.02, 1e-3


@pytest.fixture(scope="module")
def result() -> Any:
    return json.loads(KEPT.read_text())


def test_it_was_an_h200(result: Any, figure: Figure) -> None:
    assert "H200" in result["device"]
    assert "gpu" in result["at"]
    assert len(result["models"]) >= 2
    figure(f"{result['device']}, mlx {result['machine']['mlx']}")


def test_every_format_is_multiplied_there(result: Any, figure: Figure) -> None:
    """A format that a device lacks is one that a plan must not choose."""
    lacking = {
        f"{label} with {rows} rows": found
        for label, errors in result["formats"].items()
        for rows, found in errors.items()
        if isinstance(found, str) or not found < MAX_RELATIVE
    }
    figure(f"{len(result['formats'])} formats; not right there: {lacking or 'none'}")
    assert {*result["formats"]} == {*BY_LABEL}
    assert not lacking


def test_the_models_answer_there_as_on_a_cpu(result: Any, figure: Figure) -> None:
    for model in result["models"]:
        logits, generated, served = (model[name] for name in ("logits", "generate", "served"))
        figure(
            f"{model['name']}: {len(model['formats']['others']) + 1} formats, logits "
            f"{logits['relative_error']:.1e} of their size from the CPU's, "
            f"KL {logits['kl_max']:.1e} at most; mlx-lm decodes "
            f"{generated['decode_tokens_per_s']:.0f} tokens/s; omlx serve: {served['status']}"
        )
        assert logits["is_finite"]
        assert logits["relative_error"] < MAX_RELATIVE
        assert logits["kl_max"] < MAX_KL
        assert generated["tokens"] > 1
        assert served["status"] == 200
        assert served["again_equal"]
        assert served["again_cached"] == served["prompt_tokens"] - 1
        assert served["exit_code"] == 0
