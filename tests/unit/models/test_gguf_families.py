"""Files of every family: a model of mlx-lm written as llama.cpp would, imported, gives the same
logits. Also tokenizers, and types of tensors against the gguf package.

Knows nothing about hostile files; test_gguf_read.py does.
"""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.utils import load_model
from safetensors.numpy import load_file

from omlx.errors import ModelError
from omlx.models.gguf import Form, import_gguf
from omlx.models.gguf_arrays import BITS, affine, floats
from omlx.models.gguf_config import llama3_factors
from omlx.models.gguf_read import QUANTS
from omlx.models.gguf_tokenizer import scored_merges
from omlx.models.text import TextModel
from tests.fakes import tiny
from tests.unit.models import gguf_writer as w

WIDTH, HIDDEN, HEADS, KV, HEAD, LAYERS, EXPERTS = 64, 96, 4, 2, 16, 2, 4
COMMON: dict[str, Any] = {
    "hidden_size": WIDTH, "intermediate_size": HIDDEN, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "num_key_value_heads": KV, "rms_norm_eps": 1e-5,
    "vocab_size": w.num_tokens(), "max_position_embeddings": 128, "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
}  # fmt: skip
MIXTURE: dict[str, Any] = {
    "num_experts": EXPERTS, "num_experts_per_tok": 2, "moe_intermediate_size": 32,
    "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True,
    "shared_expert_intermediate_size": 48,
}  # fmt: skip
LATENT: dict[str, Any] = {
    "moe_intermediate_size": 32, "n_routed_experts": EXPERTS, "n_shared_experts": 2,
    "num_experts_per_tok": 2, "kv_lora_rank": 32, "q_lora_rank": 32, "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 16, "v_head_dim": 16, "first_k_dense_replace": 1, "n_group": 1,
    "topk_group": 1, "num_key_value_heads": HEADS, "routed_scaling_factor": 1.5,
    "topk_method": "greedy", "max_position_embeddings": 128,
    "rope_scaling": {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32,
                     "mscale": 0.7, "mscale_all_dim": 0.7, "beta_fast": 32, "beta_slow": 1},
}  # fmt: skip
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"head_dim": HEAD}),
    "mixtral": ("llama", {"num_local_experts": EXPERTS, "num_experts_per_tok": 2}),
    "qwen2": ("qwen2", {}),
    "qwen2_moe": ("qwen2moe", MIXTURE),
    "qwen3": ("qwen3", {"head_dim": HEAD}),
    "qwen3_moe": ("qwen3moe", {**MIXTURE, "head_dim": HEAD}),
    "gemma2": ("gemma2", {"head_dim": HEAD, "query_pre_attn_scalar": HEAD}),
    "gemma3_text": (
        "gemma3",
        {"head_dim": HEAD, "query_pre_attn_scalar": HEAD, "sliding_window": 16,
         "num_hidden_layers": 6},
    ),
    "phi3": ("phi3", {}),
    "deepseek_v2": ("deepseek2", LATENT),
    "deepseek_v3": ("deepseek2", {**LATENT, "topk_method": "noaux_tc", "q_lora_rank": None,
                                  "rope_scaling": None}),
}  # fmt: skip
PARTS = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.q_a_layernorm": "attn_q_a_norm",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_b_proj": "attn_kv_b",
    "self_attn.kv_a_layernorm": "attn_kv_a_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "mlp.gate_up_proj": "ffn_up", "mlp.gate": "ffn_gate_inp",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
    **{f"{mlp}.switch_mlp.{n}_proj": f"ffn_{n}_exps"
       for mlp in ("mlp", "block_sparse_moe") for n in ("gate", "up", "down")},
    **{f"mlp.shared_expert{s}.{n}_proj": f"ffn_{n}_shexp"
       for s in ("", "s") for n in ("gate", "up", "down")},
}  # fmt: skip


def their_name(name: str, family: str) -> str:
    if name.endswith("e_score_correction_bias"):
        return f"blk.{name.split('.')[2]}.exp_probs_b.bias"
    stem, _, suffix = name.rpartition(".")
    if stem in PARTS:
        return f"{PARTS[stem]}.{suffix}"
    _, _, idx, part = stem.split(".", 3)
    part_name = PARTS[part]
    if part == "post_attention_layernorm" and family in ("gemma2", "gemma3"):
        part_name = "post_attention_norm"
    return f"blk.{idx}.{part_name}.{suffix}"


def rotated(values: np.ndarray, heads: int) -> np.ndarray:
    """Rows in llama.cpp's order: i and i + d/2 side by side."""
    return values.reshape(heads, 2, -1, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)


def weights_of(model: Any, kind: str) -> dict[str, np.ndarray]:
    """A model's weights as Hugging Face has them, with what mlx-lm splits joined again."""
    found = {n: np.array(a.astype(mx.float32)) for n, a in tree_flatten(model.parameters())}
    if kind != "deepseek_v3":
        return found
    for idx in range(LAYERS):
        stem = f"model.layers.{idx}.self_attn"
        keys = found.pop(f"{stem}.embed_q.weight").swapaxes(-1, -2)
        values = found.pop(f"{stem}.unembed_out.weight")
        joined = np.concatenate([keys, values], axis=1)
        found[f"{stem}.kv_b_proj.weight"] = joined.reshape(-1, joined.shape[-1])
    return found


def tensors_of(model: Any, kind: str, family: str) -> list[w.Tensor]:
    tensors: list[w.Tensor] = []
    for name, values in weights_of(model, kind).items():
        if family == "llama" and "q_proj" in name:
            values = rotated(values, HEADS)
        elif family == "llama" and "k_proj" in name:
            values = rotated(values, KV)
        elif family in ("gemma2", "gemma3") and "norm" in name:
            values = values + np.float32(1)
        elif "shared_expert_gate" in name:
            values = values[0]
        data = values.astype("<f4").tobytes()
        tensors.append(w.Tensor(their_name(name, family), values.shape, "F32", data))
    return tensors


def metadata_of(config: Mapping[str, Any], kind: str, family: str) -> dict[str, w.Typed]:
    base = {n: v for n, v in w.llama_metadata().items() if not n.startswith("llama.")}
    is_latent = family == "deepseek2"
    head = LATENT["qk_nope_head_dim"] + LATENT["qk_rope_head_dim"] if is_latent else HEAD
    own: dict[str, w.Typed] = {
        "block_count": w.u32(config["num_hidden_layers"]), "context_length": w.u32(128),
        "embedding_length": w.u32(WIDTH), "feed_forward_length": w.u32(HIDDEN),
        "attention.head_count": w.u32(HEADS),
        "attention.head_count_kv": w.u32(HEADS if is_latent else KV),
        "attention.key_length": w.u32(head), "attention.layer_norm_rms_epsilon": w.f32(1e-5),
        "rope.dimension_count": w.u32(LATENT["qk_rope_head_dim"] if is_latent else HEAD),
        "rope.freq_base": w.f32(10_000.0), "vocab_size": w.u32(w.num_tokens()),
    }  # fmt: skip
    if "num_experts_per_tok" in config:
        own |= {"expert_count": w.u32(EXPERTS), "expert_used_count": w.u32(2)}
        if kind != "mixtral":
            own["expert_feed_forward_length"] = w.u32(32)
    if family == "qwen2moe":
        own["expert_shared_feed_forward_length"] = w.u32(48)
    if family == "gemma3":
        own["attention.sliding_window"] = w.u32(16)
    if is_latent:
        own |= {
            "expert_shared_count": w.u32(2), "leading_dense_block_count": w.u32(1),
            "attention.q_lora_rank": w.u32(config["q_lora_rank"] or 0),
            "attention.kv_lora_rank": w.u32(32), "attention.value_length": w.u32(16),
            "expert_weights_scale": w.f32(1.5),
        }  # fmt: skip
        if kind == "deepseek_v3":
            own |= {"expert_gating_func": w.u32(2), "expert_weights_norm": w.Typed(7, b"\1")}
        else:
            own |= {
                "rope.scaling.type": w.text("yarn"), "rope.scaling.factor": w.f32(4.0),
                "rope.scaling.original_context_length": w.u32(32),
                "rope.scaling.yarn_log_multiplier": w.f32(0.07),
            }  # fmt: skip
    return {
        **base,
        "general.architecture": w.text(family),
        **{f"{family}.{key}": value for key, value in own.items()},
    }


def written(tmp_path: Path, kind: str) -> tuple[Path, Any]:
    family, more = MODELS[kind]
    config = {**COMMON, "model_type": kind, **more}
    model = tiny.build_config(config)
    path = tmp_path / "m.gguf"
    w.write_gguf(path, metadata_of(config, kind, family), tensors_of(model, kind, family))
    return path, model


@pytest.mark.parametrize("kind", MODELS)
def test_an_imported_model_computes_what_the_original_does(tmp_path: Path, kind: str) -> None:
    path, model = written(tmp_path, kind)
    import_gguf(path, tmp_path / "out")
    found, config = load_model(tmp_path / "out")
    assert config["model_type"] == kind
    ids = mx.array([[5, 17, 90, 33, 8, 121, 64, 7] * 4])
    assert mx.allclose(found(ids), model(ids), atol=2e-4, rtol=1e-4).item()


def changed(path: Path, kind: str, metadata: Mapping[str, w.Typed], more: list[w.Tensor]) -> Path:
    family, config = MODELS[kind]
    whole = {**COMMON, "model_type": kind, **config}
    tensors = tensors_of(tiny.build_config(whole), kind, family)
    return w.write_gguf(path, {**metadata_of(whole, kind, family), **metadata}, [*tensors, *more])


def rope_tensor(values: np.ndarray, name: str = "rope_freqs.weight") -> w.Tensor:
    return w.Tensor(name, values.shape, "F32", values.astype("<f4").tobytes())


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama_3_is_known_by_its_factors(tmp_path: Path, factor: float) -> None:
    factors = llama3_factors(factor, theta=10_000.0, size=HEAD)
    path = changed(tmp_path / "m.gguf", "llama", {}, [rope_tensor(factors)])
    import_gguf(path, tmp_path / "out")
    model, config = load_model(tmp_path / "out")
    assert config["rope_scaling"]["factor"] == factor
    exponents = np.arange(0, HEAD, 2) / HEAD
    theirs = np.array(model.layers[0].self_attn.rope._freqs)
    assert np.allclose(theirs, 10_000.0**exponents * factors, rtol=1e-4)


def test_phi_3_brings_its_factors(tmp_path: Path) -> None:
    long, short = np.linspace(1, 4, HEAD // 2), np.ones(HEAD // 2)
    more = [
        rope_tensor(long, "rope_factors_long.weight"),
        rope_tensor(short, "rope_factors_short.weight"),
    ]
    metadata = {"phi3.rope.scaling.original_context_length": w.u32(64)}
    import_gguf(changed(tmp_path / "m.gguf", "phi3", metadata, more), tmp_path / "out")
    _, config = load_model(tmp_path / "out")
    assert np.allclose(config["rope_scaling"]["long_factor"], long)
    assert config["original_max_position_embeddings"] == 64


@pytest.mark.parametrize(
    ("kind", "metadata", "more", "reason"),
    [
        ("llama", {}, [rope_tensor(np.full(HEAD // 2, 3.0))], "not those of Llama 3"),
        ("qwen2", {"qwen2.rope.scaling.type": w.text("odd"),
                   "qwen2.rope.scaling.factor": w.f32(2)}, [], r"scales its rope \(odd\)"),
        ("qwen3_moe", {"qwen3moe.expert_used_count": w.u32(9)}, [], "no qwen3moe model"),
        ("deepseek_v2", {}, [rope_tensor(np.ones(8), "blk.0.attn_k_b.weight")], "attn_k_b apart"),
        ("gemma3_text", {"gemma3.attention.sliding_window": w.text("x")}, [], "sliding_window"),
    ],
)  # fmt: skip
def test_what_mlx_lm_can_not_compute_is_said(
    tmp_path: Path, kind: str, metadata: dict[str, w.Typed], more: list[w.Tensor], reason: str
) -> None:
    path = changed(tmp_path / "m.gguf", kind, metadata, more)
    with pytest.raises(ModelError, match=reason):
        import_gguf(path, tmp_path / "out")
    assert [file.name for file in tmp_path.iterdir()] == ["m.gguf"]


SUPPORTED = sorted(quant.name for quant in QUANTS.values())


def blocks(name: str, rows: int, columns: int, seed: int = 0) -> bytes:
    """Random blocks of a type, with scales that are numbers."""
    kind = gguf.GGMLQuantizationType[name]
    values = np.random.default_rng(seed).normal(size=(rows, columns)).astype(np.float32)
    try:
        return gguf.quants.quantize(values, kind).tobytes()
    except NotImplementedError:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        data = np.random.default_rng(seed).integers(
            0, 256, rows * columns // block * size, np.uint8
        )
        return bytes(data)


@pytest.mark.parametrize("name", SUPPORTED)
def test_every_type_has_the_size_and_values_of_the_gguf_package(name: str) -> None:
    kind = gguf.GGMLQuantizationType[name]
    quant = next(quant for quant in QUANTS.values() if quant.name == name)
    assert QUANTS[int(kind)] is quant
    assert gguf.GGML_QUANT_SIZES[kind] == (quant.block, quant.block_bytes)
    data = blocks(name, 3, 512)
    shape = (3, len(data) // 3)
    with np.errstate(all="ignore"):
        theirs = gguf.quants.dequantize(np.frombuffer(data, np.uint8).reshape(shape), kind)
    assert np.array_equal(floats(quant, data, 3), theirs, equal_nan=True)


@pytest.mark.parametrize("name", ["Q5_0", "Q5_1", "Q4_K", "Q5_K"])
def test_what_is_repacked_stands_for_the_same_values(tmp_path: Path, name: str) -> None:
    quant = next(quant for quant in QUANTS.values() if quant.name == name)
    data = blocks(name, 4, 512)
    rows = affine(quant, data, 4)
    values = rows.codes.reshape(4, -1, 32) * rows.scales[..., None] + rows.biases[..., None]
    assert np.allclose(values.reshape(4, -1), floats(quant, data, 4), rtol=1e-5, atol=1e-6)
    assert rows.codes.max() < 2 ** BITS[quant]


@pytest.mark.parametrize("form", ["float32", "native"])
def test_five_bits_go_through_the_whole_import(tmp_path: Path, form: Form) -> None:
    w_types = {"Q5_1": (7, 32, 24)}
    original = dict(w.TYPES)
    w.TYPES.update(w_types)
    try:
        tensors = w.llama_tensors("F32", embedding="F32")
        for tensor in tensors:
            if len(tensor.shape) == 2:
                tensor.quant, tensor.data = "Q5_1", blocks("Q5_1", *tensor.shape)
        path = w.write_gguf(tmp_path / "m.gguf", w.llama_metadata(), tensors)
        import_gguf(path, tmp_path / "out", form=form)
    finally:
        w.TYPES.clear()
        w.TYPES.update(original)
    name = "model.layers.0.mlp.up_proj"
    source = next(t for t in tensors if t.name == "blk.0.ffn_up.weight")
    quant = next(quant for quant in QUANTS.values() if quant.name == "Q5_1")
    wanted = floats(quant, source.data, source.shape[0])
    found = mx.load(str(tmp_path / "out" / "model.safetensors"))
    values = found[f"{name}.weight"]
    if form == "native":
        values = mx.dequantize(
            values, found[f"{name}.scales"], found[f"{name}.biases"], group_size=32, bits=5
        )
    assert np.allclose(np.array(values), wanted, atol=1e-6)


def test_gemma_norms_lose_the_one_that_files_add(tmp_path: Path) -> None:
    path, model = written(tmp_path, "gemma2")
    import_gguf(path, tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")["model.norm.weight"]
    assert np.allclose(found, np.array(model.model.norm.weight), atol=1e-6)


def spm_metadata(*, prefix: bool) -> dict[str, w.Typed]:
    """The tokenizer of a SentencePiece model: bytes, pieces, and scores by length."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{n:02X}>" for n in range(256))]
    types = [2, 3, 3, *[6] * 256]
    pieces = ["▁", "t", "h", "e", "c", "a", "th", "the", "▁the", "▁c", "at", "▁cat", "é"]
    tokens += pieces
    types += [1] * len(pieces)
    scores = [0.0] * 259 + [-float(20 - len(piece)) for piece in pieces]
    while len(tokens) < w.num_tokens():
        tokens.append(f"<extra{len(tokens)}>")
        types.append(4)
        scores.append(-100.0)
    return {
        "tokenizer.ggml.model": w.text("llama"),
        "tokenizer.ggml.tokens": w.array([w.text(t) for t in tokens]),
        "tokenizer.ggml.scores": w.array([w.f32(s) for s in scores]),
        "tokenizer.ggml.token_type": w.array([w.Typed(5, struct.pack("<i", n)) for n in types]),
        "tokenizer.ggml.add_space_prefix": w.Typed(7, bytes([prefix])),
    }


@pytest.mark.parametrize("prefix", [True, False])
def test_sentencepiece_texts_come_back(tmp_path: Path, prefix: bool) -> None:
    path = changed(tmp_path / "m.gguf", "llama", spm_metadata(prefix=prefix), [])
    import_gguf(path, tmp_path / "out")
    text = TextModel.load(tmp_path / "out")
    for sample in ("the cat", "thé 😀 the", "  the\n\tcat ", "日本"):
        assert text.decode(text.encode(sample)) == sample
    tokens = [text._codec.token(i) for i in text.encode("the cat")]
    assert tokens == ["▁the" if prefix else "the", "▁cat"]


def test_merges_go_by_score() -> None:
    merges = scored_merges(["a", "b", "c", "ab", "bc", "abc"], [1] * 6, [0, 0, 0, -1.0, -2.0, -3.0])
    assert merges == [["a", "b"], ["b", "c"], ["a", "bc"], ["ab", "c"]]


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", "tekken", "deepseek-v3", "gpt-2", "smollm"])
def test_byte_level_texts_come_back(tmp_path: Path, pre: str) -> None:
    path = changed(tmp_path / "m.gguf", "llama", {"tokenizer.ggml.pre": w.text(pre)}, [])
    import_gguf(path, tmp_path / "out")
    text = TextModel.load(tmp_path / "out")
    for sample in ("the 12345 thé", "don't\r\n\r\n  x", "日本の the", "a_b = c[1:]  # the\n"):
        assert text.decode(text.encode(sample)) == sample
