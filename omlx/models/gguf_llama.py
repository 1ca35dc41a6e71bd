"""What a llama GGUF means: names and shapes of tensors, configuration, tokenizer.

Knows nothing about how tensors are packed or written.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from omlx.errors import ModelError
from omlx.models.gguf_read import GgufFile, TensorInfo

PRE_TOKENIZERS = {
    "smollm": [{"type": "Digits", "individual_digits": True}],
    "gpt-2": [],
    "default": [],
}
CONTROL, USER_DEFINED = 3, 4
_MAX_HEAD_SIZE = 1024
NAMED_TOKENS = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}


@dataclass(frozen=True, slots=True)
class Llama:
    """The sizes of a llama model, checked against each other and the file."""

    num_layers: int
    width: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    num_vocab: int
    is_tied: bool


@dataclass(frozen=True, slots=True)
class Matrix:
    """One tensor of the new model: its name without ".weight", its source, its rotated heads."""

    name: str
    source: TensorInfo
    # Heads whose rows are in llama.cpp's rotary order; 0 where rows are as they should be.
    rotated_heads: int = 0


def read_llama(gguf: GgufFile) -> Llama:
    """The model's sizes; ModelError where it is another architecture, or contradicts itself."""
    kind = gguf.text("general.architecture")
    if kind != "llama":
        raise ModelError(
            f"{gguf.path} has the architecture {kind!r}, which can't be imported yet",
            hint="Only GGUF files of the llama architecture can be imported.",
        )
    _refuse_scaled_rope(gguf)
    width = gguf.integer("llama.embedding_length")
    num_heads = gguf.integer("llama.attention.head_count")
    default = width // num_heads if num_heads else 0
    rope = gguf.integer("llama.rope.dimension_count", default=default)
    model = Llama(
        num_layers=gguf.integer("llama.block_count"),
        width=width,
        hidden=gguf.integer("llama.feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=gguf.integer("llama.attention.head_count_kv", default=num_heads),
        head_size=gguf.integer("llama.attention.key_length", default=rope),
        num_vocab=gguf.integer(
            "llama.vocab_size", default=len(gguf.texts("tokenizer.ggml.tokens"))
        ),
        is_tied="output.weight" not in gguf.tensors,
    )
    counts = (model.num_layers, width, num_heads, model.num_kv_heads, model.head_size)
    is_sane = all(counts) and model.head_size <= _MAX_HEAD_SIZE and model.head_size % 2 == 0
    if not is_sane or rope != model.head_size:
        raise ModelError(f"{gguf.path} has sizes that make no llama model")
    if gguf.integer("llama.expert_count", default=0):
        raise ModelError(f"{gguf.path} has experts, which can't be imported yet")
    return model


def _refuse_scaled_rope(gguf: GgufFile) -> None:
    scaling = gguf.metadata.get("llama.rope.scaling.type", "none")
    if scaling != "none" or "rope_freqs.weight" in gguf.tensors:
        what = scaling if scaling != "none" else "rope_freqs"
        raise ModelError(f"{gguf.path} scales its rope ({what}), which can't be imported yet")


def matrices(gguf: GgufFile, model: Llama) -> list[Matrix]:
    """Every tensor of the model, sorted by its new name; ModelError where any is odd."""
    if model.num_layers * 9 > len(gguf.tensors):
        raise ModelError(f"{gguf.path} lacks tensors: {model.num_layers} layers need more")
    expected = tensors_of(model)
    unknown = sorted(gguf.tensors.keys() - expected.keys())
    missing = sorted(expected.keys() - gguf.tensors.keys())
    if unknown or missing:
        name, what = (unknown[0], "has the unknown") if unknown else (missing[0], "lacks the")
        raise ModelError(f"{gguf.path} {what} tensor {name!r}")
    found: list[Matrix] = []
    for name, (new_name, shape, rotated_heads) in expected.items():
        source = gguf.tensors[name]
        if source.shape != shape:
            raise ModelError(
                f"{gguf.path}: the tensor {name!r} has the shape {list(source.shape)},"
                f" not {list(shape)}"
            )
        found.append(Matrix(new_name, source, rotated_heads))
    return sorted(found, key=lambda matrix: matrix.name)


def tensors_of(model: Llama) -> dict[str, tuple[str, tuple[int, ...], int]]:
    """By its name in GGUF: the new name, shape and rotated heads of each tensor of a model."""
    width, hidden = model.width, model.hidden
    queries = model.num_heads * model.head_size
    keys = model.num_kv_heads * model.head_size
    top = {
        "token_embd": ("model.embed_tokens", (model.num_vocab, width), 0),
        "output_norm": ("model.norm", (width,), 0),
    }
    if not model.is_tied:
        top["output"] = ("lm_head", (model.num_vocab, width), 0)
    layer = {
        "attn_norm": ("input_layernorm", (width,), 0),
        "attn_q": ("self_attn.q_proj", (queries, width), model.num_heads),
        "attn_k": ("self_attn.k_proj", (keys, width), model.num_kv_heads),
        "attn_v": ("self_attn.v_proj", (keys, width), 0),
        "attn_output": ("self_attn.o_proj", (width, queries), 0),
        "ffn_norm": ("post_attention_layernorm", (width,), 0),
        "ffn_gate": ("mlp.gate_proj", (hidden, width), 0),
        "ffn_up": ("mlp.up_proj", (hidden, width), 0),
        "ffn_down": ("mlp.down_proj", (width, hidden), 0),
    }
    expected: dict[str, tuple[str, tuple[int, ...], int]] = {
        f"{name}.weight": entry for name, entry in top.items()
    }
    for index in range(model.num_layers):
        for name, (part, shape, heads) in layer.items():
            new_name = f"model.layers.{index}.{part}"
            expected[f"blk.{index}.{name}.weight"] = (new_name, shape, heads)
    return expected


def config(gguf: GgufFile, model: Llama, *, dtype: str) -> dict[str, object]:
    """The new config.json, without quantization."""
    epsilon = gguf.number("llama.attention.layer_norm_rms_epsilon")
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": model.width,
        "intermediate_size": model.hidden,
        "num_hidden_layers": model.num_layers,
        "num_attention_heads": model.num_heads,
        "num_key_value_heads": model.num_kv_heads,
        "head_dim": model.head_size,
        "max_position_embeddings": gguf.integer("llama.context_length"),
        # The file has it as float32, whose nearest decimal is not what anyone wrote.
        "rms_norm_eps": float(f"{epsilon:.6g}"),
        "rope_theta": gguf.number("llama.rope.freq_base", default=10_000.0),
        "rope_scaling": None,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "vocab_size": model.num_vocab,
        "tie_word_embeddings": model.is_tied,
        **generation_config(gguf),
        "torch_dtype": dtype,
    }


def generation_config(gguf: GgufFile) -> dict[str, object]:
    """The new generation_config.json: ids of the start, end and padding tokens."""
    ids = _token_ids(gguf)
    return {f"{name}_token_id": ids[name] for name in ("bos", "eos", "pad") if name in ids}


def _token_ids(gguf: GgufFile) -> dict[str, int]:
    num_tokens = len(gguf.texts("tokenizer.ggml.tokens"))
    found: dict[str, int] = {}
    for name, theirs in NAMED_TOKENS.items():
        key = f"tokenizer.ggml.{theirs}_token_id"
        if key in gguf.metadata:
            found[name] = gguf.integer(key)
            if found[name] >= num_tokens:
                raise ModelError(f"{gguf.path}: {key} is {found[name]}, past the last token")
    return found


def tokenizer(gguf: GgufFile) -> tuple[dict[str, object], dict[str, object]]:
    """The new tokenizer.json and tokenizer_config.json."""
    kind = gguf.text("tokenizer.ggml.model")
    pre = gguf.metadata.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        raise ModelError(
            f"{gguf.path} has the tokenizer {kind!r} of kind {pre!r}, which can't be imported yet",
            hint=f"Known kinds of the tokenizer 'gpt2': {', '.join(sorted(PRE_TOKENIZERS))}.",
        )
    tokens = gguf.texts("tokenizer.ggml.tokens")
    types = gguf.integers("tokenizer.ggml.token_type")
    vocab = {token: token_id for token_id, token in enumerate(tokens)}
    if len(vocab) != len(tokens) or len(types) != len(tokens):
        raise ModelError(f"{gguf.path} repeats a token, or leaves one without its type")
    added = [
        _added_token(token_id, token, is_special=kind == CONTROL)
        for token_id, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (CONTROL, USER_DEFINED)
    ]
    byte_level = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True
    }  # fmt: skip
    steps = [*PRE_TOKENIZERS[pre], byte_level]
    new: dict[str, object] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": _bpe(gguf, vocab),
    }
    special = [tokens[token_id] for token_id, kind in enumerate(types) if kind == CONTROL]
    return new, _tokenizer_config(gguf, tokens, special)


def _added_token(token_id: int, token: str, *, is_special: bool) -> dict[str, object]:
    return {
        "id": token_id,
        "content": token,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": is_special,
    }


def _bpe(gguf: GgufFile, vocab: Mapping[str, int]) -> dict[str, object]:
    merges = [merge.split(" ") for merge in gguf.texts("tokenizer.ggml.merges")]
    for pair in merges:
        if len(pair) != 2 or not {pair[0], pair[1], pair[0] + pair[1]} <= vocab.keys():
            raise ModelError(f"{gguf.path} has a merge of unknown tokens: {' '.join(pair)!r}")
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
        "vocab": vocab,
        "merges": merges,
    }


def _tokenizer_config(gguf: GgufFile, tokens: list[str], special: list[str]) -> dict[str, object]:
    named = {f"{name}_token": tokens[token_id] for name, token_id in _token_ids(gguf).items()}
    return {
        # This class takes tokenizer.json as it is; GPT2Tokenizer would not.
        "tokenizer_class": "PreTrainedTokenizerFast",
        **named,
        "add_bos_token": False,
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": gguf.integer("llama.context_length"),
        "extra_special_tokens": special,
    }
