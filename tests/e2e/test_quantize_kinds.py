"""Models of every kind of layer, quantized: sane formats, finite outputs, more bits less error."""

import json
from pathlib import Path

import mlx.core as mx
import pytest

from omlx.models.quantize.formats import BY_LABEL
from omlx.models.quantize.plan import KEPT
from tests.quantizing import kl, quantized, small_model

pytestmark = pytest.mark.e2e
KINDS = ("qwen3", "llama", "qwen3_moe", "qwen3_next", "deepseek_v3", "mamba2", "gemma3_text",
         "falcon_h1", "gpt_oss", "lfm2")  # fmt: skip
BITS = (3.5, 4.75, 7.0)


@pytest.mark.parametrize("kind", KINDS)
def test_more_bits_are_less_error_and_sizes_are_kept(tmp_path: Path, kind: str) -> None:
    model = small_model(tmp_path / "model", kind)
    # float32, since experts in halves can't be computed on a CPU.
    options = {"dtype": "float32"}
    found: list[float] = []
    predicted: list[float] = []
    for bits in BITS:
        out = tmp_path / f"q{bits}"
        made = quantized(model, out, bits + 1.0, **options)
        assert made.plan.bits <= bits + 1.0
        size = sum(a.nbytes for a in mx.load(str(out / "model.safetensors")).values())
        assert size == made.plan.nbytes
        assert 0.97 * (bits + 1.0) < made.plan.bits or made.plan.predicted_kl < 1e-5
        found.append(kl(model, out))
        predicted.append(made.plan.predicted_kl)
        for name, label in made.plan.formats.items():
            if name.endswith((".gate", ".router", "shared_expert_gate")):
                assert label == KEPT or BY_LABEL[label].bits >= 6, name
        config = json.loads((out / "config.json").read_text())
        assert config["quantization"] == config["quantization_config"]
    assert found == sorted(found, reverse=True), found
    assert found[-1] < 0.25 * found[0]
    assert predicted == sorted(predicted, reverse=True), predicted
