"""Estimates, from a model's configuration alone, what its tokens take in memory.

Knows nothing about weights or machines; engines measure what really is.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from omlx.models.config import items, mapping, positive_int

_DTYPE_BYTES = {"float32": 4, "float64": 4}
_RECURRENT = ("linear_attention", "mamba", "mamba2", "recurrent", "conv", "short_conv")
_SLIDING = ("sliding_attention", "sliding_window", "local", "chunked_attention")


@dataclass(frozen=True, slots=True)
class State:
    """Bytes of a token in all layers that keep every token, and in those that keep a window."""

    token_bytes: int
    window_token_bytes: int = 0
    window: int = 0

    def bytes_of(self, num_tokens: int) -> int:
        """What so many tokens of one sequence take."""
        in_window = min(num_tokens, self.window) if self.window else 0
        return num_tokens * self.token_bytes + in_window * self.window_token_bytes

    def tokens_in(self, num_bytes: int) -> int | None:
        """How many tokens of one sequence so many bytes hold at most; None where any number."""
        if num_bytes <= 0:
            return 0
        if not self.token_bytes:
            return None if num_bytes >= self.window * self.window_token_bytes else 0
        per_early_token = self.token_bytes + self.window_token_bytes
        if num_bytes < self.window * per_early_token:
            return num_bytes // per_early_token
        return (num_bytes - self.window * self.window_token_bytes) // self.token_bytes


def state_of(config: Mapping[str, object], dtype: str | None) -> State | None:
    """The state of a model's tokens; None where its configuration doesn't say.

    What recurrent layers keep is small, and does not grow: it is not counted.
    """
    text = {**config, **mapping(config.get("text_config"))}
    layers = _first_int(text, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    per_layer = _layer_bytes(text, _DTYPE_BYTES.get(dtype or "", 2))
    if layers is None or per_layer is None:
        return None
    kinds = _layer_kinds(text, layers)
    window = _first_int(text, "sliding_window", "attention_chunk_size") or 0
    num_full = sum(kind == "full" for kind in kinds)
    num_sliding = sum(kind == "sliding" for kind in kinds)
    if not window:
        num_full, num_sliding = num_full + num_sliding, 0
    sliding_bytes = num_sliding * per_layer
    return State(num_full * per_layer, sliding_bytes, window if sliding_bytes else 0)


def _layer_bytes(text: Mapping[str, object], width: int) -> int | None:
    """What a token takes in one layer of attention."""
    rank = _first_int(text, "kv_lora_rank")
    if rank is not None:
        return (rank + (_first_int(text, "qk_rope_head_dim") or 0)) * width
    heads = _first_int(text, "num_attention_heads", "n_head", "n_heads")
    if heads is None:
        return 0 if _is_recurrent(text) else None
    kv_heads = _first_int(text, "num_key_value_heads", "num_kv_heads", "n_head_kv") or heads
    size = _first_int(text, "head_dim")
    if size is None:
        hidden = _first_int(text, "hidden_size", "n_embd", "dim")
        if hidden is None:
            return None
        size = hidden // heads
    return 2 * kv_heads * size * width


def _layer_kinds(text: Mapping[str, object], layers: int) -> list[str]:
    """What each layer keeps: "full", "sliding" or "none"."""
    named = items(text.get("layer_types")) or items(text.get("layers_block_type"))
    if named:
        return [_kind(name) for name in named[:layers]]
    full = items(text.get("full_attn_idxs")) or items(text.get("attn_layer_indices"))
    if full:
        return ["full" if index in full else "none" for index in range(layers)]
    interval = _first_int(text, "full_attention_interval")
    if interval is not None:
        return ["none" if (index + 1) % interval else "full" for index in range(layers)]
    pattern = _first_int(text, "sliding_window_pattern")
    if pattern is not None:
        return ["sliding" if (index + 1) % pattern else "full" for index in range(layers)]
    has_attention = not _is_recurrent(text)
    return ["full" if has_attention else "none"] * layers


def _is_recurrent(text: Mapping[str, object]) -> bool:
    return "state_size" in text or str(text.get("model_type", "")).startswith(("mamba", "rwkv"))


def _kind(name: object) -> str:
    if name in _RECURRENT:
        return "none"
    return "sliding" if name in _SLIDING else "full"


def _first_int(text: Mapping[str, object], *names: str) -> int | None:
    return next((found for name in names if (found := positive_int(text.get(name)))), None)
