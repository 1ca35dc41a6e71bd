"""Granite with sliding windows and attention sinks (model_type granite_swa, Granite "swash").

Knows nothing about loading.

Origin: written from the definition in transformers 5.24 (models/granite_swa, Apache-2.0, IBM) on
mlx-lm's building blocks. Remove when mlx-lm has models/granite_swa.py: a test says so.
"""

# What mlx's stubs and mlx-lm leave untyped.
# pyright: basic

from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.base import (
    BaseModelArgs,
    create_attention_mask,
    scaled_dot_product_attention,
)
from mlx_lm.models.cache import KVCache, RotatingKVCache
from mlx_lm.models.granite import MLP
from mlx_lm.models.rope_utils import initialize_rope

_FULL = "full_attention"
_SLIDING = "sliding_attention"
_DEFAULT_THETA = 10_000.0


@dataclass
class ModelArgs(BaseModelArgs):
    """What config.json says; a theta of 0 in `layer_rope_theta` is a layer without positions."""

    model_type: str
    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    num_attention_heads: int
    vocab_size: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    rms_norm_eps: float = 1e-5
    logits_scaling: float = 1.0
    attention_multiplier: float = 1.0
    embedding_multiplier: float = 1.0
    residual_multiplier: float = 1.0
    max_position_embeddings: int = 8192
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = True
    sliding_window: int = 128
    layer_types: list[str] = field(default_factory=list)
    layer_rope_theta: list[float] = field(default_factory=list)
    rope_theta: float | None = None
    rope_parameters: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        """Fill in what a configuration may leave out."""
        layers = range(self.num_hidden_layers)
        self.num_key_value_heads = self.num_key_value_heads or self.num_attention_heads
        self.head_dim = self.head_dim or self.hidden_size // self.num_attention_heads
        self.layer_types = self.layer_types or [_SLIDING if i % 4 else _FULL for i in layers]
        theta = self.rope_theta or (self.rope_parameters or {}).get("rope_theta", _DEFAULT_THETA)
        self.layer_rope_theta = self.layer_rope_theta or [theta for _ in layers]
        unknown = set(self.layer_types) - {_FULL, _SLIDING}
        if unknown:
            raise ValueError(f"layer_types has {unknown.pop()!r}, which granite_swa does not know")


class Attention(nn.Module):
    """Attention over everything or a window, with a learned sink for each head."""

    def __init__(self, args: ModelArgs, layer_idx: int) -> None:
        super().__init__()
        assert args.head_dim is not None and args.num_key_value_heads is not None
        size, hidden = args.head_dim, args.hidden_size
        heads, kv_heads = args.num_attention_heads, args.num_key_value_heads
        self.num_heads, self.num_kv_heads = heads, kv_heads
        self.scale = args.attention_multiplier
        self.q_proj = nn.Linear(hidden, heads * size, bias=args.attention_bias)
        self.k_proj = nn.Linear(hidden, kv_heads * size, bias=args.attention_bias)
        self.v_proj = nn.Linear(hidden, kv_heads * size, bias=args.attention_bias)
        self.o_proj = nn.Linear(heads * size, hidden, bias=args.attention_bias)
        self.sinks = mx.zeros((heads,))
        theta = args.layer_rope_theta[layer_idx]
        scaling = {k: v for k, v in (args.rope_parameters or {}).items() if k != "rope_theta"}
        self.rope = (
            initialize_rope(size, theta, False, scaling or None, args.max_position_embeddings)
            if theta
            else None
        )

    def __call__(self, x: mx.array, mask: Any, cache: Any = None) -> mx.array:
        """The layer's output; the cache takes the new keys and values (mutates it)."""
        batch, length, _ = x.shape

        def split(values: mx.array, heads: int) -> mx.array:
            return values.reshape(batch, length, heads, -1).transpose(0, 2, 1, 3)

        queries = split(self.q_proj(x), self.num_heads)
        keys = split(self.k_proj(x), self.num_kv_heads)
        values = split(self.v_proj(x), self.num_kv_heads)
        if self.rope is not None:
            offset = cache.offset if cache is not None else 0
            queries, keys = self.rope(queries, offset=offset), self.rope(keys, offset=offset)
        if cache is not None:
            keys, values = cache.update_and_fetch(keys, values)
        out = scaled_dot_product_attention(
            queries,
            keys,
            values,
            cache,
            self.scale,
            mask,
            sinks=self.sinks.astype(queries.dtype),
        )
        return self.o_proj(out.transpose(0, 2, 1, 3).reshape(batch, length, -1))


class Layer(nn.Module):
    """Attention and a gated MLP, both scaled where they are added."""

    def __init__(self, args: ModelArgs, layer_idx: int) -> None:
        super().__init__()
        self.self_attn = Attention(args, layer_idx)
        self.mlp = MLP(args)  # pyright: ignore[reportArgumentType]
        self.input_layernorm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)
        self.residual_multiplier = args.residual_multiplier

    def __call__(self, x: mx.array, mask: Any, cache: Any = None) -> mx.array:
        """The hidden states after this layer."""
        x = x + self.self_attn(self.input_layernorm(x), mask, cache) * self.residual_multiplier
        return x + self.mlp(self.post_attention_layernorm(x)) * self.residual_multiplier


class Trunk(nn.Module):
    """Embeddings, layers and the last norm."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.args = args
        self.embed_tokens = nn.Embedding(args.vocab_size, args.hidden_size)
        self.layers = [Layer(args, index) for index in range(args.num_hidden_layers)]
        self.norm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)

    def __call__(self, inputs: mx.array, cache: list[Any] | None = None) -> mx.array:
        """The last hidden states of token ids."""
        x = self.embed_tokens(inputs) * self.args.embedding_multiplier
        caches = cache or [None] * len(self.layers)
        masks: dict[str, Any] = {}
        for kind, one in zip(self.args.layer_types, caches, strict=True):
            if kind not in masks:
                window = self.args.sliding_window if kind == _SLIDING else None
                masks[kind] = create_attention_mask(x, one, window_size=window)
        for layer, kind, one in zip(self.layers, self.args.layer_types, caches, strict=True):
            x = layer(x, masks[kind], one)
        return self.norm(x)


class Model(nn.Module):
    """The whole model, as mlx-lm runs it."""

    def __init__(self, args: ModelArgs) -> None:
        super().__init__()
        self.args = args
        self.model_type = args.model_type
        self.model = Trunk(args)
        if not args.tie_word_embeddings:
            self.lm_head = nn.Linear(args.hidden_size, args.vocab_size, bias=False)

    def __call__(self, inputs: mx.array, cache: list[Any] | None = None) -> mx.array:
        """Logits of token ids."""
        out = self.model(inputs, cache)
        if self.args.tie_word_embeddings:
            out = self.model.embed_tokens.as_linear(out)
        else:
            out = self.lm_head(out)
        return out / self.args.logits_scaling

    @property
    def layers(self) -> list[Layer]:
        """The layers, each with a cache."""
        return self.model.layers

    def make_cache(self) -> list[Any]:
        """An empty cache for each layer."""
        return [
            KVCache() if kind == _FULL else RotatingKVCache(max_size=self.args.sliding_window)
            for kind in self.args.layer_types
        ]

    def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """The weights that this model has (mutates)."""
        if self.args.tie_word_embeddings:
            weights.pop("lm_head.weight", None)
        return weights
