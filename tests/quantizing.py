"""Small models of many kinds for tests of quantization, each with a tokenizer, and their KL."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from omlx.models.load import load
from omlx.models.quantize.plan import Goal
from omlx.models.quantize.run import Made, Options, Quantization
from tests.fakes import tiny
from tests.unit.models.tiny import text_folder

NUM_VOCAB = 288  # a little more than the tokenizer has
_SMALL: dict[str, dict[str, Any]] = {
    "qwen3": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "head_dim": 32},
    "llama": {"num_hidden_layers": 3, "tie_word_embeddings": False},
    "qwen3_moe": {},
    "qwen3_next": {"shared_expert_intermediate_size": 64},
    "deepseek_v3": {},
    "mamba2": {"num_heads": 4, "num_hidden_layers": 2},
    "gemma3_text": {"num_hidden_layers": 2},
    "falcon_h1": {},
    "gpt_oss": {"intermediate_size": 64},
    "lfm2": {},
}


def config_of(kind: str) -> dict[str, Any]:
    """The configuration of a model that takes a second to measure."""
    config = {**tiny.CONFIGS[kind], **_SMALL[kind], "vocab_size": NUM_VOCAB}
    return json.loads(json.dumps(config).replace("Infinity", "1e30"))


def small_model(folder: Path, kind: str, *, more: Mapping[str, Any] | None = None) -> Path:
    """A model directory; `more` is only in its config.json."""
    config = config_of(kind)
    text_folder(folder, config={**config, **(more or {})}, template="{{ messages[0].content }}")
    # tiny.save writes the config, too.
    return tiny.save(tiny.build_config(config), folder, {**config, **(more or {})})


def quantized(model: Path, out: Path, bits: float, **options: Any) -> Made:
    """Quantize in this process, on few tokens."""
    given = {"tokens": 256, **options}
    return Quantization(Options(model, out, Goal(bits=bits), **given), lambda *_: None).run()


def kl(reference: Path, model: Path, *, seed: int = 5) -> float:
    """KL(reference || model) on random tokens, in nats a token."""
    ids = mx.array([np.random.default_rng(seed).integers(3, 260, 64).tolist()])
    log_p, log_q = (_log_softmax(load(path).model(ids)) for path in (reference, model))
    return float(mx.mean(mx.sum(mx.exp(log_p) * (log_p - log_q), axis=-1)).item())


def _log_softmax(logits: mx.array) -> mx.array:
    logits = logits.astype(mx.float32)
    assert mx.all(mx.isfinite(logits)).item()
    return logits - mx.logsumexp(logits, axis=-1, keepdims=True)
