"""Tiny random models, one for each kind of layers, as folders that can be served.

Knows nothing about what they are for; their text means nothing. One character is one token.
"""

import importlib
import json
import string
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any

import mlx.core as mx
import mlx.utils

NUM_VOCAB = 512
WINDOW = 131_072
_END = NUM_VOCAB - 1
_mx: Any = mx  # what the stubs leave untyped
_trees: Any = mlx.utils
_TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


class Kind(StrEnum):
    """What the layers of a model keep of its tokens."""

    FULL = "full"
    MLA = "mla"
    WINDOW = "window"
    STATE = "state"
    HYBRID = "hybrid"


_COMMON: Mapping[str, Any] = MappingProxyType(
    {
        "hidden_size": 256,
        "num_hidden_layers": 8,
        "intermediate_size": 512,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 64,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e4,
        "vocab_size": NUM_VOCAB,
        "max_position_embeddings": WINDOW,
        "tie_word_embeddings": True,
    }
)
_EXPERTS: Mapping[str, Any] = MappingProxyType(
    {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 128,
        "norm_topk_prob": True,
    }
)


def config_of(kind: Kind) -> dict[str, Any]:
    """The configuration of a kind, as config.json has it."""
    match kind:
        case Kind.FULL:
            return {**_COMMON, "model_type": "llama"}
        case Kind.MLA:
            return {
                **_COMMON,
                "model_type": "deepseek_v3",
                "moe_intermediate_size": 128,
                "n_shared_experts": 1,
                "n_routed_experts": 4,
                "kv_lora_rank": 128,
                "q_lora_rank": 128,
                "qk_rope_head_dim": 32,
                "v_head_dim": 64,
                "qk_nope_head_dim": 64,
                "n_group": 1,
                "topk_group": 1,
                "num_experts_per_tok": 2,
                "first_k_dense_replace": 1,
            }
        case Kind.WINDOW:
            return {
                **_COMMON,
                "model_type": "gemma3_text",
                "sliding_window": 512,
                "sliding_window_pattern": 4,
                "query_pre_attn_scalar": 64,
            }
        case Kind.STATE:
            return {
                "model_type": "mamba2",
                "num_heads": 16,
                "head_dim": 32,
                "vocab_size": NUM_VOCAB,
                "hidden_size": 256,
                "intermediate_size": 512,
                "state_size": 64,
                "num_hidden_layers": 6,
                "layer_norm_epsilon": 1e-5,
                "conv_kernel": 4,
                "n_groups": 1,
                "use_bias": False,
                "use_conv_bias": True,
                "tie_word_embeddings": True,
                "time_step_limit": [0.0, 1e9],
                "time_step_rank": "auto",
                "max_position_embeddings": WINDOW,
            }
        case Kind.HYBRID:
            return {
                **_COMMON,
                **_EXPERTS,
                "model_type": "qwen3_next",
                "linear_num_value_heads": 4,
                "linear_num_key_heads": 2,
                "linear_key_head_dim": 64,
                "linear_value_head_dim": 64,
                "linear_conv_kernel_dim": 4,
                "full_attention_interval": 4,
                "partial_rotary_factor": 0.5,
            }


def write_tiny(kind: Kind, folder: Path, *, seed: int) -> Path:
    """Make a model in `folder`, which is made, too, with weights and a tokenizer; its path.

    Weights are float32, normal, scaled by the width that they read, so that logits stay moderate.
    """
    config = config_of(kind)
    _mx.random.seed(seed)
    arch = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model: Any = arch.Model(arch.ModelArgs.from_dict(config))
    model.update(_trees.tree_map(_random, model.parameters()))
    folder.mkdir(parents=True)
    weights = dict(_trees.tree_flatten(model.parameters()))
    _mx.save_safetensors(str(folder / "model.safetensors"), weights)
    for name, value in _text_files(config).items():
        (folder / name).write_text(json.dumps(value))
    return folder


def _random(weight: mx.array) -> mx.array:
    if weight.ndim < 2:
        return weight
    return _mx.random.normal(weight.shape) * (1.0 / weight.shape[-1] ** 0.5)


def _text_files(config: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "config.json": {**config, "eos_token_id": _END},
        "generation_config.json": {"eos_token_id": _END},
        "tokenizer_config.json": {
            "eos_token": "<end>",
            "chat_template": _TEMPLATE,
            "model_max_length": WINDOW,
        },
        "tokenizer.json": _tokenizer(),
    }


def _tokenizer() -> dict[str, Any]:
    """Printable characters, and pairs of letters for the ids that are left: whatever a random model
    says is text."""
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": False,
    }
    # As byte-level tokenizers spell them: a space is Ġ, a line break Ċ.
    single = [*string.ascii_letters, *string.digits, *string.punctuation, "Ġ", "Ċ"]
    pairs = [a + b for a in string.ascii_lowercase for b in string.ascii_lowercase]
    words = [*single, *pairs][:_END]
    return {
        "version": "1.0",
        "added_tokens": [
            {
                "id": _END,
                "content": "<end>",
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {word: token_id for token_id, word in enumerate(words)},
            "merges": [],
        },
    }
