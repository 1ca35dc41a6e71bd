"""Decode of a random 4-bit model in an 8B shape with fused blocks and without; JSON lines."""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_map
from mlx_lm.models import qwen3
from mlx_lm.models.cache import make_prompt_cache

from omlx.custom_kernels.backend import this_backend
from omlx.custom_kernels.fused import Fused
from omlx.models.fused import fused_block


def say(**values):
    print(json.dumps(values), flush=True)


def main():
    layers = int(sys.argv[1])
    config = dict(model_type="qwen3", hidden_size=4096, num_hidden_layers=layers, intermediate_size=12288,
        num_attention_heads=32, num_key_value_heads=8, head_dim=128, rms_norm_eps=1e-6, rope_theta=1e6,
        vocab_size=49152, max_position_embeddings=40960, tie_word_embeddings=False)
    mx.random.seed(0)
    model = qwen3.Model(qwen3.ModelArgs.from_dict(config))
    def scaled(v):
        if v.ndim != 2:
            return v.astype(mx.bfloat16)
        return (mx.random.normal(v.shape, dtype=mx.bfloat16) * (1.0 / v.shape[-1] ** 0.5)).astype(mx.bfloat16)
    model.update(tree_map(scaled, model.parameters()))
    nn.quantize(model, group_size=64, bits=4)
    mx.eval(model.parameters())
    plain = list(model.model.layers)
    fused = Fused(this_backend())
    quick = [fused_block(b, fused) for b in plain]
    for rows in (1, 8, 2, 4):
        logits = {}
        for name, blocks in (("plain", plain), ("fused", quick)):
            model.model.layers = blocks
            cache = make_prompt_cache(model)
            prompt = mx.random.randint(0, 49152, (rows, 256), key=mx.random.key(1))
            mx.eval(model(prompt, cache=cache))
            token = prompt[:, -1:]
            out = model(token, cache=cache)
            mx.eval(out)
            logits[name] = out.astype(mx.float32)
            for _ in range(2):
                began = time.perf_counter()
                y = token
                for _ in range(48):
                    y = mx.argmax(model(y, cache=cache)[:, -1:], axis=-1)
                    mx.async_eval(y)
                mx.eval(y)
                took = (time.perf_counter() - began) / 48
            began = time.perf_counter()
            for _ in range(10):
                y = mx.argmax(model(y, cache=cache)[:, -1:], axis=-1)
            build = (time.perf_counter() - began) / 10
            mx.eval(y)
            say(rows=rows, what=name, ms=round(took * 1e3, 2), tps=round(rows / took, 1), build_ms=round(build * 1e3, 2))
        a, b = logits["plain"], logits["fused"]
        diff = mx.abs(a - b)
        say(rows=rows, worst=diff.max().item(), rms=mx.sqrt((diff * diff).mean()).item(), scale=mx.sqrt((a * a).mean()).item())


main()
