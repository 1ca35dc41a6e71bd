"""What a llama model is called and shaped like in GGUF, for writing one.

Knows nothing about files; what the reader takes is in gguf_sizes, gguf_tensors, gguf_tokenizer.
"""

from dataclasses import dataclass

# What comes before the split of GPT-2, by the name that GGUF gives to the whole.
PRE_TOKENIZERS = {
    "smollm": [{"type": "Digits", "individual_digits": True}],
    "gpt-2": [],
    "default": [],
}
CONTROL, USER_DEFINED = 3, 4
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
