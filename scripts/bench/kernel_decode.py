"""A random model in an 8B shape, decoded plain, fused, and fused and traced: JSON lines."""
# ruff: noqa
import json, sys, time
sys.path.insert(0, ".")
import mlx.core as mx, mlx.nn as nn
from mlx.utils import tree_map
from mlx_lm.models import qwen3
from mlx_lm.models.base import scaled_dot_product_attention
from mlx_lm.models.cache import make_prompt_cache
from omlx.custom_kernels.backend import this_backend
from omlx.custom_kernels.fused import Fused
from omlx.models.fused import DecodeStep, FusedBlock, parts_of
def say(**v): print(json.dumps(v), flush=True)
layers = int(sys.argv[1]); deadline = time.monotonic() + float(sys.argv[2])
config = dict(model_type="qwen3", hidden_size=4096, num_hidden_layers=layers, intermediate_size=12288, num_attention_heads=32, num_key_value_heads=8, head_dim=128, rms_norm_eps=1e-6, rope_theta=1e6, vocab_size=49152, max_position_embeddings=40960, tie_word_embeddings=False)
mx.random.seed(0)
model = qwen3.Model(qwen3.ModelArgs.from_dict(config))
def scaled(v):
    if v.ndim != 2: return v.astype(mx.bfloat16)
    return (mx.random.normal(v.shape, dtype=mx.bfloat16) * (1.0 / v.shape[-1] ** 0.5)).astype(mx.bfloat16)
model.update(tree_map(scaled, model.parameters()))
nn.quantize(model, group_size=64, bits=4)
mx.eval(model.parameters()); say(made=1)
fused = Fused(this_backend())
kernels = {"norm_qkv": fused.norm_qkv, "qk_rope": fused.qk_rope, "qmm_small": fused.project, "norm_gate_up": fused.norm_gate_up}
class Compiled:
    def __init__(self, parts):
        self.p = p = parts
        def before(x, offset):
            qkv = fused.norm_qkv(x, p.before, p.eps, p.qkv)
            return fused.qk_rope(qkv, p.norms, p.eps, (offset, p.frequency), p.heads)
        def after(found, x):
            h = fused.project(found, p.out, x)
            return fused.project(fused.norm_gate_up(h, p.after, p.eps, p.gate, p.up), p.down, h)
        self.a, self.b = mx.compile(before), mx.compile(after)
    def serves(self, x, cache): return x.shape[1] == 1
    def __call__(self, x, mask, cache):
        o = cache.offset
        if isinstance(o, int): o = mx.array([o] * x.shape[0])
        q, k, v = self.a(x, o)
        k, v = cache.update_and_fetch(k, v)
        f = scaled_dot_product_attention(q, k, v, cache=cache, scale=self.p.scale, mask=mask)
        return self.b(f.reshape(*x.shape[:-1], -1), x)
plain = list(model.model.layers)
rows_ok = frozenset(range(1, 17))
quick = [FusedBlock(b, DecodeStep(parts_of(b), lambda n: kernels[n], rows_ok)) for b in plain]
comp = [FusedBlock(b, Compiled(parts_of(b))) for b in plain]
from omlx.custom_kernels.fused import Packed
class Head(nn.Module):
    def __init__(self, l):
        super().__init__(); self._w = Packed(l.weight, l.scales, l.biases, l.bits, l.group_size)
    def __call__(self, x): return fused.project(x, self._w)
old_head = model.lm_head; new_head = Head(old_head)
for rows in (1, 8, 2, 4):
    logits = {}
    for name, blocks in (("plain", plain), ("fused", quick), ("compiled", comp)):
        if time.monotonic() > deadline: break
        model.model.layers = blocks; model.lm_head = old_head if name == "plain" else new_head
        cache = make_prompt_cache(model)
        token = mx.random.randint(0, 49152, (rows, 1), key=mx.random.key(1))
        y = token; outs = []
        for i in range(4):
            out = model((token + i) % 49152, cache=cache); mx.eval(out)
        logits[name] = out.astype(mx.float32)
        took = 9
        for _ in range(2):
            b = time.perf_counter(); y = token
            for _ in range(32):
                y = mx.argmax(model(y, cache=cache)[:, -1:], axis=-1); mx.async_eval(y)
            mx.eval(y); took = min(took, (time.perf_counter() - b) / 32)
        b = time.perf_counter()
        for _ in range(5): y = mx.argmax(model(y, cache=cache)[:, -1:], axis=-1)
        build = (time.perf_counter() - b) / 5; mx.eval(y)
        say(rows=rows, what=name, layers=layers, ms=round(took * 1e3, 2), tps=round(rows / took, 1), build_ms=round(build * 1e3, 2))
    for name in ("fused", "compiled"):
        if name in logits:
            d = mx.abs(logits["plain"] - logits[name]); s = mx.sqrt((logits["plain"] ** 2).mean()).item()
            say(rows=rows, what=name, worst=d.max().item() / s, rms=mx.sqrt((d * d).mean()).item() / s)
