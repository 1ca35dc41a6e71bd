"""Shapes of blocks of the quantized product, tried on a CUDA machine: JSON lines."""
# ruff: noqa
import json, sys, time
sys.path.insert(0, ".")
import mlx.core as mx
from omlx.custom_kernels.source import read_source
SRC = read_source("cuda", "qmm_small")
GEMM = read_source("cuda", "gemm_small")
K = {}
def say(**v): print(json.dumps(v), flush=True)
def qmm(x, w, scales, biases, *, bits, group, c):
    tiles, wn, wk, st = c
    n, k = w.shape[0], x.shape[-1]; rows = x.size // k
    sub = min(group, 64); wpl = sub // 4 * bits // 32; gps = 1024 // bits // group
    stride = {1: 144, 2: 160, 4: 192}[wpl]
    vec = (k // group) % gps == 0
    part = 16 * stride + (64 * gps if vec and gps > 1 else 0)
    mt = (rows + 7) // 8
    shared = max(wn * wk * st * tiles * part, wk * 16 * tiles * wn * (8 * mt + 1) * 4)
    key = shared
    if key not in K:
        K[key] = mx.fast.cuda_kernel(name=f"t_{SRC.digest[:10]}_{shared}", input_names=["x","w","scales","biases","r"], output_names=["y"], header=SRC.header, source=SRC.body, shared_memory=shared)
    t = dict(T=x.dtype, BITS=bits, GROUP=group, TILES=tiles, MT=mt, WN=wn, WK=wk, STAGES=st, VECTOR=vec, RESIDUAL=False)
    th = 32 * wn * wk
    return K[key](inputs=[x,w,scales,biases,x], template=list(t.items()), grid=(-(-n // (16*tiles*wn)) * th, 1, 1), threadgroup=(th,1,1), output_shapes=[(*x.shape[:-1], n)], output_dtypes=[x.dtype])[0]
def seconds(step, x, reps):
    step = mx.compile(step)
    mx.eval(step(x)); best = []
    for _ in range(3):
        mx.synchronize(); b = time.perf_counter(); y = x
        for _ in range(reps):
            y = step(y); mx.async_eval(y)
        mx.eval(y); best.append((time.perf_counter() - b) / reps)
    return min(best)
def errors():
    for dtype, bits, group, rows, c in ((mx.bfloat16,4,64,3,(1,1,4,4)), (mx.bfloat16,4,64,9,(1,1,4,4)), (mx.float16,8,32,8,(1,2,4,4)), (mx.bfloat16,8,128,1,(1,2,2,4)), (mx.float16,4,128,16,(2,2,2,3)), (mx.bfloat16,4,32,5,(2,2,2,3))):
        for n, k in ((512, 1024), (72, 640)):
            w = mx.random.normal((n, k)).astype(dtype); q = mx.quantize(w, group_size=group, bits=bits)
            x = (mx.random.normal((rows, 1, k)) + 0.5).astype(dtype)
            got = qmm(x, *q, bits=bits, group=group, c=c)
            full = mx.dequantize(q[0], q[1].astype(mx.float32), q[2].astype(mx.float32), group_size=group, bits=bits)
            with mx.stream(mx.cpu):
                exact = x.astype(mx.float64).reshape(rows, k) @ full.astype(mx.float64).T
                s = mx.sqrt((exact*exact).mean()).item()
                err = mx.abs(got.astype(mx.float64).reshape(rows, n) - exact).max().item() / s
            say(case=[str(dtype), bits, group, rows, n, k], err=round(err, 5), ok=err < (0.02 if dtype == mx.bfloat16 else 0.003))
def main():
    deadline = time.monotonic() + float(sys.argv[1])
    mx.random.seed(0); h, i, layers = 4096, 12288, 12
    def weights(n, k): return (mx.random.normal((n, k), dtype=mx.bfloat16) * (1.0 / k**0.5)).astype(mx.bfloat16)
    flat = [m for _ in range(layers) for m in (mx.quantize(weights(i, h), 64, 4), mx.quantize(weights(h, i), 64, 4))]
    mx.eval(flat)
    bound = 28.3e6 / 4.8e12 * 1e6
    def chain(fn, mats):
        def step(x):
            for m in mats: x = fn(x, m)
            return x
        return step
    def both(rows, c):
        x = mx.random.normal((rows, 1, h)).astype(mx.bfloat16)
        f = lambda x, m: qmm(x, *m, bits=4, group=64, c=c)
        try: us = seconds(chain(f, flat), x, 10) / len(flat) * 1e6
        except Exception as e: say(rows=rows, c=c, failed=str(e)[:80]); return
        up = None
        if rows == 1:
            up = seconds(chain(lambda x, m: f(x, m)[..., :h], flat[::2]), x, 10) / layers * 1e6
        say(rows=rows, c=c, us=round(us, 1), bound=round(bound / us, 3), up=up and round(up, 1))
    configs = [(1,1,4,4),(1,2,4,4),(1,1,8,3),(1,1,8,4),(2,1,4,3),(1,4,2,4),(2,2,2,3),(2,2,4,3),(1,4,4,3),(1,1,4,6),(4,1,4,2)]
    for c in configs:
        for rows in (1, 8):
            if time.monotonic() < deadline: both(rows, c)
    for c in configs[:6]:
        if time.monotonic() < deadline - 5: both(16, c)
    errors()
main()
