"""The sizes of a model in a GGUF file, checked against each other, by family.

Knows nothing about tensors' values or how they are packed.
"""

from dataclasses import dataclass

from omlx.errors import ModelError
from omlx.models.gguf_read import GgufFile

FAMILIES = (
    "llama", "qwen2", "qwen2moe", "qwen3", "qwen3moe", "gemma2", "gemma3", "phi3", "deepseek2",
)  # fmt: skip
GEMMAS = ("gemma2", "gemma3")
_MAX_HEAD_SIZE = 1024


@dataclass(frozen=True, slots=True)
class Latent:
    """Sizes of multi-head latent attention; `query_rank` 0 where queries have none."""

    query_rank: int
    rank: int
    rope_size: int
    value_size: int


@dataclass(frozen=True, slots=True)
class Experts:
    """Sizes of a mixture of experts; `num_dense` layers come before the first of them."""

    count: int
    used: int
    hidden: int
    num_shared: int
    shared_hidden: int
    num_dense: int
    has_bias: bool


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of one model."""

    family: str
    num_layers: int
    width: int
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    rope_size: int
    num_vocab: int
    is_tied: bool
    experts: Experts | None = None
    latent: Latent | None = None


def read_sizes(gguf: GgufFile) -> Sizes:
    """The model's sizes; ModelError where its family is not known, or they contradict."""
    family = gguf.text("general.architecture")
    if family not in FAMILIES:
        raise ModelError(
            f"{gguf.path} has the architecture {family!r}, which can't be imported yet",
            hint=f"GGUF files of these can be: {', '.join(FAMILIES)}.",
        )
    width = gguf.integer(f"{family}.embedding_length")
    num_heads = gguf.integer(f"{family}.attention.head_count")
    default = width // num_heads if num_heads else 0
    latent = _latent(gguf) if family == "deepseek2" else None
    rope = gguf.integer(f"{family}.rope.dimension_count", default=default)
    head = gguf.integer(
        f"{family}.attention.key_length", default=rope if family == "llama" else default
    )
    is_free = latent is not None or family in ("phi3", *GEMMAS) or _rope_is_implied(gguf, family)
    sizes = Sizes(
        family=family,
        num_layers=gguf.integer(f"{family}.block_count"),
        width=width,
        hidden=gguf.integer(f"{family}.feed_forward_length"),
        num_heads=num_heads,
        num_kv_heads=gguf.integer(f"{family}.attention.head_count_kv", default=num_heads),
        head_size=head,
        rope_size=rope,
        num_vocab=gguf.integer(
            f"{family}.vocab_size", default=len(gguf.texts("tokenizer.ggml.tokens"))
        ),
        is_tied="output.weight" not in gguf.tensors,
        experts=_experts(gguf, family),
        latent=latent,
    )
    counts = (sizes.num_layers, width, num_heads, sizes.num_kv_heads, head, rope, sizes.num_vocab)
    is_sane = all(counts) and head <= _MAX_HEAD_SIZE and head % 2 == 0 and rope <= head
    if not is_sane or (rope != head and not is_free):
        raise ModelError(f"{gguf.path} has sizes that make no {family} model")
    return sizes


def _rope_is_implied(gguf: GgufFile, family: str) -> bool:
    return f"{family}.rope.dimension_count" not in gguf.metadata


def _experts(gguf: GgufFile, family: str) -> Experts | None:
    count = gguf.integer(f"{family}.expert_count", default=0)
    if not count:
        return None
    hidden = gguf.integer(f"{family}.feed_forward_length")
    own = gguf.integer(f"{family}.expert_feed_forward_length", default=hidden)
    num_shared = gguf.integer(f"{family}.expert_shared_count", default=0)
    shared = gguf.integer(
        f"{family}.expert_shared_feed_forward_length",
        default=hidden if family == "qwen2moe" else own * num_shared,
    )
    found = Experts(
        count=count,
        used=gguf.integer(f"{family}.expert_used_count"),
        hidden=own,
        num_shared=num_shared,
        shared_hidden=shared,
        num_dense=gguf.integer(f"{family}.leading_dense_block_count", default=0),
        has_bias=any(name.endswith(".exp_probs_b.bias") for name in gguf.tensors),
    )
    if not 0 < found.used <= count or not own:
        raise ModelError(f"{gguf.path} has sizes that make no {family} model with experts")
    return found


def _latent(gguf: GgufFile) -> Latent:
    return Latent(
        query_rank=gguf.integer("deepseek2.attention.q_lora_rank", default=0),
        rank=gguf.integer("deepseek2.attention.kv_lora_rank"),
        rope_size=gguf.integer("deepseek2.rope.dimension_count"),
        value_size=gguf.integer("deepseek2.attention.value_length"),
    )
