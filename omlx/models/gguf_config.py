"""The configuration of a model in a GGUF file, as mlx-lm wants it, by family.

Knows nothing about tokenizers or how tensors are packed.
"""

import math
from collections.abc import Mapping

import numpy as np

from omlx.errors import ModelError
from omlx.models.gguf_read import F32, GgufFile
from omlx.models.gguf_sizes import Experts, Latent, Sizes

_NAMED_TOKENS = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
_ARCHITECTURES = {
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen2moe": ("qwen2_moe", "Qwen2MoeForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "qwen3moe": ("qwen3_moe", "Qwen3MoeForCausalLM"),
    "gemma2": ("gemma2", "Gemma2ForCausalLM"),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
    "phi3": ("phi3", "Phi3ForCausalLM"),
    "deepseek2": ("deepseek_v2", "DeepseekV2ForCausalLM"),
}
# Numbers that files of these families don't have: the models of so many layers scale queries by
# width over heads, all others by the size of a head.
_WIDE_QUERIES = {"gemma2": 46, "gemma3": 62}
_SIGMOID = 2
# What Llama 3.1 and 3.2 stretch their rotary frequencies by.
_LLAMA3_FACTORS = (8.0, 32.0)


def config(gguf: GgufFile, sizes: Sizes, *, dtype: str) -> dict[str, object]:
    """The new config.json, without quantization; ModelError for what mlx-lm can't compute."""
    family = sizes.family
    epsilon = gguf.number(f"{family}.attention.layer_norm_rms_epsilon")
    model_type, architecture = _model_type(gguf, sizes)
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "hidden_size": sizes.width,
        "intermediate_size": sizes.hidden,
        "num_hidden_layers": sizes.num_layers,
        "num_attention_heads": sizes.num_heads,
        "num_key_value_heads": sizes.num_kv_heads,
        "head_dim": sizes.head_size,
        "max_position_embeddings": gguf.integer(f"{family}.context_length"),
        # The file has it as float32, whose nearest decimal is not what anyone wrote.
        "rms_norm_eps": float(f"{epsilon:.6g}"),
        "rope_theta": gguf.number(f"{family}.rope.freq_base", default=10_000.0),
        "rope_scaling": _rope_scaling(gguf, sizes),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "vocab_size": sizes.num_vocab,
        "tie_word_embeddings": sizes.is_tied,
        **_own(gguf, sizes),
        **generation_config(gguf),
        "torch_dtype": dtype,
    }


def _model_type(gguf: GgufFile, sizes: Sizes) -> tuple[str, str]:
    if sizes.family == "llama" and sizes.experts is not None:
        return "mixtral", "MixtralForCausalLM"
    if sizes.family == "deepseek2" and _is_third(gguf):
        return "deepseek_v3", "DeepseekV3ForCausalLM"
    return _ARCHITECTURES[sizes.family]


def _is_third(gguf: GgufFile) -> bool:
    return gguf.integer("deepseek2.expert_gating_func", default=1) == _SIGMOID


def _own(gguf: GgufFile, sizes: Sizes) -> dict[str, object]:
    """What only some families have."""
    family, found = sizes.family, dict[str, object]()
    if sizes.experts is not None:
        found |= _experts(gguf, sizes, sizes.experts)
    if sizes.latent is not None:
        found |= _latent(sizes, sizes.latent)
    if family in _WIDE_QUERIES:
        is_wide = sizes.num_layers == _WIDE_QUERIES[family]
        found["query_pre_attn_scalar"] = (
            sizes.width // sizes.num_heads if is_wide else sizes.head_size
        )
        found["hidden_act"] = "gelu_pytorch_tanh"
    if family == "gemma2":
        for key, ours in (
            ("attn_logit_softcapping", "attn_logit_softcapping"),
            ("final_logit_softcapping", "final_logit_softcapping"),
        ):
            default = 50.0 if key.startswith("attn") else 30.0
            found[ours] = gguf.number(f"gemma2.{key}", default=default)
    if family == "gemma3":
        found["sliding_window"] = gguf.integer("gemma3.attention.sliding_window")
        found["sliding_window_pattern"] = 6
        found["rope_local_base_freq"] = 10_000.0
        found["rope_theta"] = gguf.number("gemma3.rope.freq_base", default=1_000_000.0)
    if family == "phi3":
        found["partial_rotary_factor"] = sizes.rope_size / sizes.head_size
        found["original_max_position_embeddings"] = gguf.integer(
            "phi3.rope.scaling.original_context_length",
            default=gguf.integer("phi3.context_length"),
        )
    return found


def _experts(gguf: GgufFile, sizes: Sizes, experts: Experts) -> dict[str, object]:
    family = sizes.family
    if family == "llama":
        return {"num_local_experts": experts.count, "num_experts_per_tok": experts.used}
    found: dict[str, object] = {
        "num_experts_per_tok": experts.used,
        "moe_intermediate_size": experts.hidden,
    }
    if family == "deepseek2":
        is_third = _is_third(gguf)
        return {
            **found,
            "n_routed_experts": experts.count,
            "n_shared_experts": experts.num_shared or None,
            "first_k_dense_replace": experts.num_dense,
            "moe_layer_freq": 1,
            "routed_scaling_factor": gguf.number("deepseek2.expert_weights_scale", default=1.0),
            "norm_topk_prob": gguf.metadata.get("deepseek2.expert_weights_norm", is_third) is True,
            "topk_method": "noaux_tc" if is_third else "greedy",
            "scoring_func": "sigmoid" if is_third else "softmax",
            "n_group": gguf.integer("deepseek2.expert_group_count", default=1),
            "topk_group": gguf.integer("deepseek2.expert_group_used_count", default=1),
        }
    found["num_experts"] = experts.count
    if family == "qwen3moe":
        return {**found, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True}
    return {**found, "shared_expert_intermediate_size": experts.shared_hidden}


def _latent(sizes: Sizes, latent: Latent) -> dict[str, object]:
    return {
        "q_lora_rank": latent.query_rank or None,
        "kv_lora_rank": latent.rank,
        "qk_rope_head_dim": latent.rope_size,
        "qk_nope_head_dim": sizes.head_size - latent.rope_size,
        "v_head_dim": latent.value_size,
        # Keys and values come from one latent: heads share nothing beyond it.
        "num_key_value_heads": sizes.num_heads,
        "head_dim": latent.rope_size,
    }


def _rope_scaling(gguf: GgufFile, sizes: Sizes) -> dict[str, object] | None:
    family = sizes.family
    if "rope_freqs.weight" in gguf.tensors:
        return _llama3(gguf, sizes)
    if "rope_factors_long.weight" in gguf.tensors:
        if family != "phi3":
            raise ModelError(f"{gguf.path} scales its rope (longrope), which {family} has not")
        return {
            "type": "longrope",
            "long_factor": _floats(gguf, "rope_factors_long.weight"),
            "short_factor": _floats(gguf, "rope_factors_short.weight"),
        }
    kind = gguf.metadata.get(f"{family}.rope.scaling.type", "none")
    if kind == "none":
        return None
    factor = gguf.number(f"{family}.rope.scaling.factor", default=0.0)
    allowed = ("linear",) if family in ("gemma3", "qwen2moe") else ("linear", "yarn")
    if kind not in allowed or not factor > 0 or family in ("gemma2", "phi3"):
        raise ModelError(
            f"{gguf.path} scales its rope ({kind}) in a way that can't be imported yet",
            hint="linear and yarn with a factor can be, where mlx-lm computes them.",
        )
    if kind == "linear":
        return {"type": "linear", "rope_type": "linear", "factor": factor}
    return _yarn(gguf, family, factor)


def _yarn(gguf: GgufFile, family: str, factor: float) -> dict[str, object]:
    length = gguf.integer(
        f"{family}.rope.scaling.original_context_length",
        default=gguf.integer(f"{family}.context_length"),
    )
    found: dict[str, object] = {
        "type": "yarn",
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": length,
    }
    if family == "deepseek2":
        multiplier = gguf.number("deepseek2.rope.scaling.yarn_log_multiplier", default=0.0)
        scale = float(f"{10 * multiplier:.6g}")  # the file has a tenth of it
        found |= {"mscale": scale, "mscale_all_dim": scale, "beta_fast": 32, "beta_slow": 1}
    return found


def _llama3(gguf: GgufFile, sizes: Sizes) -> dict[str, object]:
    """The parameters that give the file's factors: it has the factors only."""
    theirs = np.array(_floats(gguf, "rope_freqs.weight"))
    theta = gguf.number(f"{sizes.family}.rope.freq_base", default=10_000.0)
    for factor in _LLAMA3_FACTORS:
        ours = llama3_factors(factor, theta=theta, size=sizes.rope_size)
        if theirs.shape == ours.shape and np.allclose(theirs, ours, rtol=1e-3):
            return {
                "rope_type": "llama3",
                "type": "llama3",
                "factor": factor,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 8192,
            }
    raise ModelError(
        f"{gguf.path} scales its rope (rope_freqs) by factors that are not those of Llama 3,"
        " which can't be imported yet"
    )


def llama3_factors(factor: float, *, theta: float, size: int) -> np.ndarray:
    """What each rotary wavelength is stretched by in Llama 3.1 (8) and 3.2 (32): [size / 2]."""
    low, high, length = 1.0, 4.0, 8192
    waves = 2 * math.pi * theta ** (np.arange(0, size, 2) / size)
    smooth = np.clip((length / waves - low) / (high - low), 0.0, 1.0)
    return 1.0 / ((1 - smooth) / factor + smooth)


def _floats(gguf: GgufFile, name: str) -> list[float]:
    tensor = gguf.tensors.get(name)
    if tensor is None or tensor.quant is not F32 or len(tensor.shape) != 1:
        raise ModelError(f"{gguf.path}: the tensor {name!r} is not a list of float32 numbers")
    return [float(v) for v in np.frombuffer(gguf.read_rows(tensor, 0, 1), "<f4")]


def generation_config(gguf: GgufFile) -> dict[str, object]:
    """The new generation_config.json: ids of the start, end and padding tokens."""
    ids = token_ids(gguf)
    found: dict[str, object] = {
        f"{name}_token_id": ids[name] for name in ("bos", "eos", "pad") if name in ids
    }
    turn = ids.get("eot")
    if turn is not None and turn != ids.get("eos"):
        found["eos_token_id"] = [ids["eos"], turn] if "eos" in ids else turn
    return found


def token_ids(gguf: GgufFile) -> Mapping[str, int]:
    """The ids of named tokens; ModelError where one is past the last token."""
    num_tokens = len(gguf.texts("tokenizer.ggml.tokens"))
    found: dict[str, int] = {}
    for name, theirs in (*_NAMED_TOKENS.items(), ("eot", "eot")):
        key = f"tokenizer.ggml.{theirs}_token_id"
        if key in gguf.metadata:
            found[name] = gguf.integer(key)
            if found[name] >= num_tokens:
                raise ModelError(f"{gguf.path}: {key} is {found[name]}, past the last token")
    return found
