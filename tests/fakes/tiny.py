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
_ATTENTION: dict[str, Any] = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "vocab_size": NUM_VOCAB,
}
_QWEN3: dict[str, Any] = {
    **_ATTENTION,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "rope_theta": 1e4,
    "tie_word_embeddings": True,
}
_EXPERTS: dict[str, Any] = {
    "num_experts_per_tok": 2,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
    "moe_intermediate_size": 64,
    "norm_topk_prob": True,
}
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
    "qwen3": {**_QWEN3, "model_type": "qwen3"},
    "qwen3_moe": {
        **_QWEN3,
        **_EXPERTS,
        "model_type": "qwen3_moe",
        "num_experts": 8,
    },
    "gemma3_text": {
        **_ATTENTION,
        "model_type": "gemma3_text",
        "num_hidden_layers": 4,
        "sliding_window": 64,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 64,
    },
    "gpt_oss": {
        **_ATTENTION,
        "model_type": "gpt_oss",
        "intermediate_size": 128,
        "sliding_window": 64,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "beta_fast": 32.0,
            "beta_slow": 1.0,
            "truncate": False,
            "original_max_position_embeddings": 4096,
        },
    },
    "qwen3_next": {
        **_QWEN3,
        **_EXPERTS,
        "model_type": "qwen3_next",
        "num_hidden_layers": 4,
        "linear_num_value_heads": 4,
        "linear_num_key_heads": 2,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "shared_expert_intermediate_size": 64,
        "partial_rotary_factor": 0.5,
    },
    "mamba2": {
        "model_type": "mamba2",
        "num_heads": 8,
        "head_dim": 32,
        "vocab_size": NUM_VOCAB,
        "hidden_size": 128,
        "intermediate_size": 256,
        "state_size": 32,
        "num_hidden_layers": 3,
        "layer_norm_epsilon": 1e-5,
        "conv_kernel": 4,
        "n_groups": 1,
        "use_bias": False,
        "use_conv_bias": True,
        "tie_word_embeddings": True,
        "time_step_limit": (0.0, float("inf")),
        "time_step_rank": "auto",
    },
    "falcon_h1": {
        **_ATTENTION,
        "model_type": "falcon_h1",
        "head_dim": 32,
        "mamba_d_ssm": 256,
        "mamba_d_head": 32,
        "mamba_n_heads": 8,
        "mamba_d_state": 32,
        "mamba_chunk_size": 64,
    },
    "lfm2": {
        "model_type": "lfm2",
        "vocab_size": NUM_VOCAB,
        "hidden_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 128,
        "block_multiple_of": 32,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "block_ff_dim": 256,
        "full_attn_idxs": [1],
    },
    "deepseek_v3": {
        "model_type": "deepseek_v3",
        "vocab_size": NUM_VOCAB,
        "hidden_size": 128,
        "intermediate_size": 256,
        "moe_intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "n_shared_experts": 1,
        "n_routed_experts": 4,
        "kv_lora_rank": 64,
        "q_lora_rank": 64,
        "qk_rope_head_dim": 32,
        "v_head_dim": 32,
        "qk_nope_head_dim": 32,
        "n_group": 1,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "first_k_dense_replace": 1,
    },
}
# 24 KiB of state a token, so that prompts of thousands of tokens count against hundreds of MB.
HEAVY: dict[str, Any] = {**CONFIGS["llama"], "num_hidden_layers": 12, "num_key_value_heads": 4}


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
    # Once, since arrays that are no parameters, such as RoPE's, stay lazy and bound to this thread.
    mx.eval(model(mx.array([[0]])))
    return model


def save(model: Any, path: Path, config: dict[str, Any]) -> Path:
    """Write a model directory that mlx-lm loads; it has no tokenizer."""
    path.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(path / "model.safetensors"), dict(tree_flatten(model.parameters())))
    (path / "config.json").write_text(json.dumps(config))
    return path
