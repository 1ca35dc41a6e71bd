"""Transformer blocks of known classes whose decode step runs in fused kernels.

A block keeps its class's own way for every other call. Knows nothing of which kernels are verified.
"""

# What mlx's stubs and mlx-lm leave untyped.
# pyright: basic

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import llama, qwen3
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.cache import BatchKVCache, KVCache
from mlx_lm.models.rope_utils import Llama3RoPE

from omlx.custom_kernels.fused import Packed
from omlx.custom_kernels.op import MAX_ROWS, Case

KERNELS = ("norm_qkv", "qk_rope", "qmm_small", "norm_gate_up")
_BLOCKS: dict[Any, Any] = {
    llama.TransformerBlock: llama.MLP,
    qwen3.TransformerBlock: qwen3.MLP,
}
_mx: Any = mx
_nn: Any = nn
_attend: Any = scaled_dot_product_attention
_NAMES = {mx.bfloat16: "bfloat16", mx.float16: "float16"}


def dtype_name(dtype: mx.Dtype) -> str:
    """What a case calls a type; empty for those that no kernel knows."""
    return _NAMES.get(dtype, "")


def packed(layer: Any) -> Packed | None:
    """A quantized layer's weights, where they have the one form that the kernels know."""
    if type(layer) is not _nn.QuantizedLinear or "bias" in layer or layer.mode != "affine":
        return None
    return Packed(layer.weight, layer.scales, layer.biases, layer.bits, layer.group_size)


def frequencies(rope: Any, size: int) -> mx.array | None:
    """Radians a position [size / 2], where the whole head is turned by halves."""
    if type(rope) is _nn.RoPE:
        if rope.dims != size or rope.traditional:
            return None
        steps = mx.arange(0, size, 2, dtype=mx.float32) / size
        return rope.scale * mx.power(mx.array(rope.base, dtype=mx.float32), -steps)
    if type(rope) is Llama3RoPE:
        known: Any = rope
        if known.dims != size or known.traditional:
            return None
        return 1.0 / known._freqs.astype(mx.float32)
    return None


@dataclass(frozen=True, slots=True)
class Parts:
    """What the fused kernels take of one block: q, k, v, o, gate, up, down and all around them."""

    qkv: tuple[Packed, ...]
    out: Packed
    gate: Packed
    up: Packed
    down: Packed
    norms: tuple[mx.array, mx.array] | None
    before: mx.array
    after: mx.array
    eps: mx.array
    frequency: mx.array
    heads: tuple[int, int, int]
    scale: float

    def cases(self, rows: int) -> dict[str, list[Case]]:
        """The calls of each kernel in a step of so many rows."""
        dtype = dtype_name(self.before.dtype)

        def matmul(*weights: Packed, has_residual: bool = False) -> Case:
            first = weights[0]
            outs = tuple(one.num_out for one in weights)
            return Case(
                dtype, rows, first.num_in, outs, first.bits, first.group,
                has_residual=has_residual,
            )  # fmt: skip

        return {
            "norm_qkv": [matmul(*self.qkv)],
            "qk_rope": [Case(dtype, rows, heads=self.heads, has_norms=self.norms is not None)],
            "qmm_small": [matmul(one, has_residual=True) for one in (self.out, self.down)],
            "norm_gate_up": [matmul(self.gate, self.up)],
        }


def parts_of(block: Any) -> Parts | None:
    """What the kernels need of a block; None where it is of no known class, or has other weights
    than they take."""
    if _BLOCKS.get(type(block)) is None or type(block.mlp) is not _BLOCKS[type(block)]:
        return None
    attention, mlp = block.self_attn, block.mlp
    qkv = [packed(one) for one in (attention.q_proj, attention.k_proj, attention.v_proj)]
    out, down = packed(attention.o_proj), packed(mlp.down_proj)
    gate, up = packed(mlp.gate_proj), packed(mlp.up_proj)
    size = attention.q_proj.weight.shape[0] // attention.n_heads
    frequency = frequencies(attention.rope, size)
    whole = [one for one in qkv if one is not None]
    if out is None or down is None or gate is None or up is None or frequency is None:
        return None
    if len(whole) != len(qkv) or not _are_alike(whole) or not _are_alike([gate, up]):
        return None
    before, after = block.input_layernorm, block.post_attention_layernorm
    norms = [attention.q_norm, attention.k_norm] if "q_norm" in attention else []
    ours = [*whole, out, gate, up, down]
    dtypes = {one.scales.dtype for one in ours} | {one.weight.dtype for one in norms}
    if {before.weight.dtype, after.weight.dtype} != dtypes or len(dtypes) != 1:
        return None
    if any(one.eps != before.eps for one in (after, *norms)):
        return None  # the kernels get one
    eps = mx.array([before.eps], dtype=mx.float32)
    mx.eval(eps, frequency)
    return Parts(
        qkv=tuple(whole),
        out=out,
        gate=gate,
        up=up,
        down=down,
        norms=(norms[0].weight, norms[1].weight) if norms else None,
        before=before.weight,
        after=after.weight,
        eps=eps,
        frequency=frequency,
        heads=(attention.n_heads, attention.n_kv_heads, size),
        scale=attention.scale,
    )


def _are_alike(weights: Sequence[Packed]) -> bool:
    return len({(one.bits, one.group, one.scales.dtype) for one in weights}) == 1


class DecodeStep:
    """One token a row through a block; `kernels` are functions by name, `rows` the numbers of rows
    that they serve."""

    def __init__(self, parts: Parts, kernels: Callable[[str], Any], rows: frozenset[int]) -> None:
        self._parts = parts
        self._norm_qkv, self._qk_rope, self._project, self._norm_gate_up = map(kernels, KERNELS)
        # Traced once for each shape: the host's time for an operation is as long as the device's.
        self._before: Any = _mx.compile(self._enter)
        self._after: Any = _mx.compile(self._leave)
        self._rows = rows
        self._dtype = parts.before.dtype

    def serves(self, x: mx.array, cache: Any) -> bool:
        """Whether this is a call for it: one token in each of a few rows, and a plain cache."""
        is_few = x.shape[1] == 1 and x.shape[0] in self._rows and x.dtype == self._dtype
        return is_few and type(cache) in (KVCache, BatchKVCache)

    def __call__(self, x: mx.array, mask: Any, cache: Any) -> mx.array:
        """x [B, 1, H] through the block."""
        offset = cache.offset
        if isinstance(offset, int):
            offset = mx.array([offset] * x.shape[0])
        q, k, v = self._before(x, offset)
        k, v = cache.update_and_fetch(k, v)
        found = _attend(q, k, v, cache=cache, scale=self._parts.scale, mask=mask)
        return self._after(found.reshape(*x.shape[:-1], -1), x)

    def _enter(self, x: mx.array, offset: mx.array) -> list[mx.array]:
        parts = self._parts
        qkv = self._norm_qkv(x, parts.before, parts.eps, parts.qkv)
        place = (offset.astype(mx.int32), parts.frequency)
        return self._qk_rope(qkv, parts.norms, parts.eps, place, parts.heads)

    def _leave(self, found: mx.array, x: mx.array) -> mx.array:
        parts = self._parts
        h = self._project(found, parts.out, x)
        inner = self._norm_gate_up(h, parts.after, parts.eps, parts.gate, parts.up)
        return self._project(inner, parts.down, h)


class FusedBlock(_nn.Module):
    """A block whose decode step is fused; its parameters are those of the block, by name."""

    def __init__(self, block: Any, step: DecodeStep) -> None:
        super().__init__()
        for name, value in block.items():
            self[name] = value
        for name, value in vars(block).items():  # what is no parameter, such as use_sliding
            if name not in vars(self):
                setattr(self, name, value)
        self.own_way = block.__call__
        self.step = step

    def __call__(self, x: Any, mask: Any = None, cache: Any = None) -> Any:
        """x [B, L, H] through the block."""
        if self.step.serves(x, cache):
            return self.step(x, mask, cache)
        return self.own_way(x, mask, cache)


def rows_served(parts: Parts, is_worth: Callable[[str, Case], bool]) -> frozenset[int]:
    """The numbers of rows at which all kernels of a block are worth their call."""
    return frozenset(
        rows
        for rows in range(1, MAX_ROWS + 1)
        if all([is_worth(name, c) for name, cases in parts.cases(rows).items() for c in cases])
    )
