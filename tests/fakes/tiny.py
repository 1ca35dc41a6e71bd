"""Tiny random models, in memory and as directories, for tests of engine and cache.

Random weights are scaled so that logits are not degenerate; greedy text means nothing.
"""

import importlib
import json
from pathlib import Path
from typing import Any

import mlx.core as mx
from mlx.utils import tree_flatten, tree_map

NUM_VOCAB = 512
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "llama",
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "intermediate_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "vocab_size": NUM_VOCAB,
        "max_position_embeddings": 8192,
    },
    "gemma3_text": {
        "model_type": "gemma3_text",
        "hidden_size": 128,
        "num_hidden_layers": 4,
        "intermediate_size": 256,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "vocab_size": NUM_VOCAB,
        "sliding_window": 64,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 64,
    },
}


def build(name: str = "llama", *, dtype: mx.Dtype = mx.float32, seed: int = 0) -> Any:
    """A model with evaluated random weights."""
    return build_config(CONFIGS[name], dtype=dtype, seed=seed)


def build_config(config: dict[str, Any], *, dtype: mx.Dtype = mx.float32, seed: int = 0) -> Any:
    """The same for a config that is not in the table."""
    mx.random.seed(seed)
    arch = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = arch.Model(arch.ModelArgs.from_dict(config))

    def scaled(p: mx.array) -> mx.array:
        if p.ndim >= 2:
            p = mx.random.normal(p.shape) * (1.0 / p.shape[-1] ** 0.5)
        return p.astype(dtype)

    model.update(tree_map(scaled, model.parameters()))
    model.eval()
    mx.eval(model.parameters())
    return model


def save(model: Any, path: Path, config: dict[str, Any]) -> Path:
    """Write a model directory that mlx-lm loads; it has no tokenizer."""
    path.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(path / "model.safetensors"), dict(tree_flatten(model.parameters())))
    (path / "config.json").write_text(json.dumps(config))
    return path
