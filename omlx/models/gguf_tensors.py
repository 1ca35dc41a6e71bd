"""Which tensors a model in a GGUF file has, and under which names MLX wants them.

Knows nothing about how tensors are packed or written.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from omlx.errors import ModelError
from omlx.models.gguf_read import GgufFile, TensorInfo
from omlx.models.gguf_sizes import GEMMAS, Experts, Latent, Sizes

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Matrix:
    """One tensor of the new model: its name without suffix, its source, and what is done to it.

    `rotated_heads` is how many heads' rows are in llama.cpp's rotary order, 0 where rows are as
    they should be. `less` is subtracted from all values; `is_plain` ones are never quantized.
    """

    name: str
    source: TensorInfo
    rotated_heads: int = 0
    suffix: str = ".weight"
    less: float = 0.0
    shape: Shape = ()
    is_plain: bool = False


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A tensor that the file must have."""

    name: str
    shape: Shape
    rotated_heads: int = 0
    suffix: str = ".weight"
    less: float = 0.0
    new_shape: Shape = ()
    is_plain: bool = False


def matrices(gguf: GgufFile, sizes: Sizes) -> list[Matrix]:
    """Every tensor of the model, sorted by its new name; ModelError where any is odd."""
    if sizes.num_layers * 5 > len(gguf.tensors):
        raise ModelError(f"{gguf.path} lacks tensors: {sizes.num_layers} layers need more")
    expected = dict(_expected(sizes))
    extra = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}
    unknown = sorted(gguf.tensors.keys() - expected.keys() - extra)
    missing = sorted(expected.keys() - gguf.tensors.keys())
    if any(".attn_k_b." in name for name in unknown):
        raise ModelError(
            f"{gguf.path} has attn_k_b apart from attn_v_b, which can't be imported yet",
            hint="Take a file that was made before that, with attn_kv_b tensors.",
        )
    if unknown or missing:
        name, what = (unknown[0], "has the unknown") if unknown else (missing[0], "lacks the")
        raise ModelError(f"{gguf.path} {what} tensor {name!r}")
    found: list[Matrix] = []
    for name, wanted in expected.items():
        source = gguf.tensors[name]
        if source.shape != wanted.shape:
            raise ModelError(
                f"{gguf.path}: the tensor {name!r} has the shape {list(source.shape)},"
                f" not {list(wanted.shape)}"
            )
        found.append(
            Matrix(
                wanted.name,
                source,
                wanted.rotated_heads,
                wanted.suffix,
                wanted.less,
                wanted.new_shape,
                wanted.is_plain,
            )
        )
    return sorted(found, key=lambda matrix: matrix.name + matrix.suffix)


def _expected(sizes: Sizes) -> Iterator[tuple[str, _Wanted]]:
    """The name in the file and what it is to be, for each tensor."""
    less = 1.0 if sizes.family in GEMMAS else 0.0  # Gemma's norms are stored with 1 added
    width = sizes.width
    yield "token_embd.weight", _Wanted("model.embed_tokens", (sizes.num_vocab, width))
    yield "output_norm.weight", _Wanted("model.norm", (width,), less=less)
    if not sizes.is_tied:
        yield "output.weight", _Wanted("lm_head", (sizes.num_vocab, width))
    for idx in range(sizes.num_layers):
        for name, wanted in _layer(sizes, idx, less):
            yield (
                f"blk.{idx}.{name}",
                _Wanted(
                    f"model.layers.{idx}.{wanted.name}",
                    wanted.shape,
                    wanted.rotated_heads,
                    wanted.suffix,
                    wanted.less,
                    wanted.new_shape,
                    wanted.is_plain,
                ),
            )


def _layer(sizes: Sizes, idx: int, less: float) -> Iterator[tuple[str, _Wanted]]:
    yield "attn_norm.weight", _Wanted("input_layernorm", (sizes.width,), less=less)
    if sizes.family in GEMMAS:
        for name, new in (
            ("post_attention_norm", "post_attention_layernorm"),
            ("ffn_norm", "pre_feedforward_layernorm"),
            ("post_ffw_norm", "post_feedforward_layernorm"),
        ):
            yield f"{name}.weight", _Wanted(new, (sizes.width,), less=less)
    else:
        yield "ffn_norm.weight", _Wanted("post_attention_layernorm", (sizes.width,))
    if sizes.latent is not None:
        yield from _latent(sizes, sizes.latent)
    else:
        yield from _attention(sizes, less)
    experts = sizes.experts
    if experts is None or idx < experts.num_dense:
        yield from _dense(sizes)
    else:
        yield from _mixture(sizes, experts)


def _attention(sizes: Sizes, less: float) -> Iterator[tuple[str, _Wanted]]:
    width, head = sizes.width, sizes.head_size
    queries, keys = sizes.num_heads * head, sizes.num_kv_heads * head
    yield "attn_output.weight", _Wanted("self_attn.o_proj", (width, queries))
    if sizes.family == "phi3":
        yield "attn_qkv.weight", _Wanted("self_attn.qkv_proj", (queries + 2 * keys, width))
        return
    is_rotated = sizes.family == "llama"
    for name, rows, heads in (
        ("q", queries, sizes.num_heads if is_rotated else 0),
        ("k", keys, sizes.num_kv_heads if is_rotated else 0),
        ("v", keys, 0),
    ):
        new = f"self_attn.{name}_proj"
        yield f"attn_{name}.weight", _Wanted(new, (rows, width), heads)
        if sizes.family in ("qwen2", "qwen2moe"):
            yield f"attn_{name}.bias", _Wanted(new, (rows,), suffix=".bias")
    if sizes.family in ("qwen3", "qwen3moe", "gemma3"):
        for name in ("q", "k"):
            yield f"attn_{name}_norm.weight", _Wanted(f"self_attn.{name}_norm", (head,), less=less)


def _latent(sizes: Sizes, latent: Latent) -> Iterator[tuple[str, _Wanted]]:
    width, queries = sizes.width, sizes.num_heads * sizes.head_size
    content = sizes.head_size - latent.rope_size
    if latent.query_rank:
        rank = latent.query_rank
        yield "attn_q_a.weight", _Wanted("self_attn.q_a_proj", (rank, width))
        yield "attn_q_a_norm.weight", _Wanted("self_attn.q_a_layernorm", (rank,))
        yield "attn_q_b.weight", _Wanted("self_attn.q_b_proj", (queries, rank))
    else:
        yield "attn_q.weight", _Wanted("self_attn.q_proj", (queries, width))
    rows = latent.rank + latent.rope_size
    yield "attn_kv_a_mqa.weight", _Wanted("self_attn.kv_a_proj_with_mqa", (rows, width))
    yield "attn_kv_a_norm.weight", _Wanted("self_attn.kv_a_layernorm", (latent.rank,))
    rows = sizes.num_heads * (content + latent.value_size)
    # Split by mlx-lm when it loads the model, so never in its packing.
    yield "attn_kv_b.weight", _Wanted("self_attn.kv_b_proj", (rows, latent.rank), is_plain=True)
    columns = sizes.num_heads * latent.value_size
    yield "attn_output.weight", _Wanted("self_attn.o_proj", (width, columns))


def _dense(sizes: Sizes) -> Iterator[tuple[str, _Wanted]]:
    width, hidden = sizes.width, sizes.hidden
    if sizes.family == "phi3":
        yield "ffn_up.weight", _Wanted("mlp.gate_up_proj", (2 * hidden, width))
    else:
        yield "ffn_gate.weight", _Wanted("mlp.gate_proj", (hidden, width))
        yield "ffn_up.weight", _Wanted("mlp.up_proj", (hidden, width))
    yield "ffn_down.weight", _Wanted("mlp.down_proj", (width, hidden))


def _mixture(sizes: Sizes, experts: Experts) -> Iterator[tuple[str, _Wanted]]:
    width, count, hidden = sizes.width, experts.count, experts.hidden
    # Mixtral has the architecture "llama" here.
    mlp = "block_sparse_moe" if sizes.family == "llama" else "mlp"
    is_gate_plain = sizes.family == "deepseek2"
    yield "ffn_gate_inp.weight", _Wanted(f"{mlp}.gate", (count, width), is_plain=is_gate_plain)
    for name, rows, columns in (
        ("gate", hidden, width),
        ("up", hidden, width),
        ("down", width, hidden),
    ):
        new = f"{mlp}.switch_mlp.{name}_proj"
        yield f"ffn_{name}_exps.weight", _Wanted(new, (count, rows, columns))
    if experts.has_bias:
        bias = _Wanted(f"{mlp}.gate.e_score_correction_bias", (count,), suffix="", is_plain=True)
        yield "exp_probs_b.bias", bias
    shared = experts.shared_hidden
    if sizes.family == "qwen2moe":
        yield (
            "ffn_gate_inp_shexp.weight",
            _Wanted("mlp.shared_expert_gate", (width,), new_shape=(1, width)),
        )
    if sizes.family == "qwen2moe" or experts.num_shared:
        part = "shared_expert" if sizes.family == "qwen2moe" else "shared_experts"
        for name, rows, columns in (
            ("gate", shared, width),
            ("up", shared, width),
            ("down", width, shared),
        ):
            yield f"ffn_{name}_shexp.weight", _Wanted(f"mlp.{part}.{name}_proj", (rows, columns))
