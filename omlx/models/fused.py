"""Transformer blocks of known classes whose decode step runs in fused kernels.

A block keeps its class's own way for every other call. Knows nothing of which kernels are verified.
"""

from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models import llama, qwen3
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.cache import BatchKVCache, KVCache
from mlx_lm.models.rope_utils import Llama3RoPE

from omlx.custom_kernels.fused import MAX_ROWS, Fused, Packed

_nn: Any = nn


def packed(layer: Any) -> Packed | None:
    """A quantized layer's weights where the kernels take them."""
    if type(layer) is not nn.QuantizedLinear or "bias" in layer or layer.mode != "affine":
        return None
    if layer.bits not in (4, 8) or layer.scales.dtype not in (mx.bfloat16, mx.float16):
        return None
    return Packed(layer.weight, layer.scales, layer.biases, layer.bits, layer.group_size)


def frequencies(rope: Any, size: int) -> mx.array | None:
    """Radians a position [size / 2], where the whole head is turned by halves."""
    if rope.dims != size or rope.traditional:
        return None
    if type(rope) is nn.RoPE:
        steps = mx.arange(0, size, 2, dtype=mx.float32) / size
        return rope.scale * mx.power(mx.array(rope.base, dtype=mx.float32), -steps)
    if type(rope) is Llama3RoPE:
        return 1.0 / rope._freqs.astype(mx.float32)
    return None


class DecodeStep:
    """What the fused kernels need of one block, gathered once."""

    def __init__(self, block: Any, fused: Fused) -> None:
        attention, mlp = block.self_attn, block.mlp
        self.fused = fused
        self.qkv = [packed(p) for p in (attention.q_proj, attention.k_proj, attention.v_proj)]
        self.out, self.down = packed(attention.o_proj), packed(mlp.down_proj)
        self.gate, self.up = packed(mlp.gate_proj), packed(mlp.up_proj)
        size = self.qkv[0].num_out // attention.n_heads
        self.heads = (attention.n_heads, attention.n_kv_heads, size)
        self.norms = (
            (attention.q_norm.weight, attention.k_norm.weight) if "q_norm" in attention else None
        )
        self.scale = attention.scale
        self.before, self.after = block.input_layernorm, block.post_attention_layernorm
        self.eps = mx.array([self.before.eps], dtype=mx.float32)
        self.frequency = frequencies(attention.rope, size)
        mx.eval(self.eps, self.frequency)

    def __call__(self, x: mx.array, mask: Any, cache: Any) -> mx.array:
        fused = self.fused
        offset = cache.offset
        if isinstance(offset, int):
            offset = mx.array([offset] * x.shape[0])
        qkv = fused.norm_qkv(x, self.before.weight, self.eps, self.qkv)
        place = (offset.astype(mx.int32), self.frequency)
        q, k, v = fused.qk_rope(qkv, self.norms, self.eps, place, self.heads)
        k, v = cache.update_and_fetch(k, v)
        found = scaled_dot_product_attention(q, k, v, cache=cache, scale=self.scale, mask=mask)
        found = found.reshape(*x.shape[:-1], -1)
        h = fused.project(found, self.out, residual=x)
        inner = fused.norm_gate_up(h, self.after.weight, self.eps, self.gate, self.up)
        return fused.project(inner, self.down, residual=h)


def fused_block(block: Any, fused: Fused) -> Any:
    """`block` with its decode step fused; its parameters are the same arrays under the same names."""
    parent = type(block)
    assert parent in (llama.TransformerBlock, qwen3.TransformerBlock)
    step = DecodeStep(block, fused)

    class FusedBlock(parent):
        def __call__(self, x: Any, mask: Any = None, cache: Any = None) -> Any:
            few = x.shape[1] == 1 and x.shape[0] <= MAX_ROWS
            if few and type(cache) in (KVCache, BatchKVCache):
                return step(x, mask, cache)
            return parent.__call__(self, x, mask, cache)

    made = FusedBlock.__new__(FusedBlock)
    nn.Module.__init__(made)
    for name, value in block.items():
        made[name] = value
    for name, value in vars(block).items():
        if name not in ("_no_grad", "_training"):
            object.__setattr__(made, name, value)
    return made
