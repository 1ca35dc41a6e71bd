"""Try shapes of blocks for the matrix kernels on a CUDA machine; prints JSON lines."""

import itertools
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import mlx.core as mx

from omlx.custom_kernels.launch import Grid, Kernel
from omlx.custom_kernels.source import read_source

QMM = Kernel("cuda", read_source("cuda", "qmm_small"), ["x", "w", "scales", "biases", "r"])
GEMM = Kernel("cuda", read_source("cuda", "gemm_small"), ["x", "w"])


def qmm(x, w, scales, biases, *, bits, group, tiles, warps, nsub):
    n, k = w.shape[0], x.shape[-1]
    rows = x.size // k
    sub = min(group, 64)
    gps = nsub * sub // group
    template = {
        "T": x.dtype, "BITS": bits, "GROUP": group, "TILES": tiles, "MT": (rows + 7) // 8,
        "WARPS": warps, "NSUB": nsub, "VECTOR": (k // group) % gps == 0, "RESIDUAL": False,
    }  # fmt: skip
    grid = Grid(-(-n // (16 * tiles)), 32 * warps)
    return QMM.prepare(template=template, grid=grid, shapes=[(*x.shape[:-1], n)],
                       dtypes=[x.dtype])([x, w, scales, biases, x])[0]  # fmt: skip


def gemm(x, w, *, tiles, warps, steps):
    n, k = w.shape
    rows = x.size // k
    template = {"T": x.dtype, "TILES": tiles, "MT": (rows + 7) // 8, "WARPS": warps, "STEPS": steps}
    grid = Grid(-(-n // (16 * tiles)), 32 * warps)
    return GEMM.prepare(template=template, grid=grid, shapes=[(*x.shape[:-1], n)],
                        dtypes=[x.dtype])([x, w])[0]  # fmt: skip


def seconds(step, x, reps):
    y = step(x)
    mx.eval(y)
    best = []
    for _ in range(3):
        mx.synchronize()
        began = time.perf_counter()
        y = x
        for _ in range(reps):
            y = step(y)
            mx.async_eval(y)
        mx.eval(y)
        best.append((time.perf_counter() - began) / reps)
    return min(best)


def say(**values):
    print(json.dumps(values), flush=True)


def errors():
    """Against float64 on the CPU."""
    cases = [(mx.bfloat16, 4, 64, 3), (mx.bfloat16, 4, 64, 9), (mx.float16, 8, 32, 8), (mx.bfloat16, 8, 128, 1), (mx.float16, 4, 128, 16)]
    for dtype, bits, group, rows in cases:
        for n, k, tiles, warps, nsub in ((512, 1024, 2, 8, 4), (72, 640, 2, 8, 4)):
            mx.random.seed(1)
            w = mx.random.normal((n, k)).astype(dtype)
            q = mx.quantize(w, group_size=group, bits=bits)
            x = (mx.random.normal((rows, 1, k)) + 0.5).astype(dtype)
            got = qmm(x, *q, bits=bits, group=group, tiles=tiles, warps=warps, nsub=nsub)
            ref = mx.quantized_matmul(x, *q, transpose=True, group_size=group, bits=bits)
            full = mx.dequantize(q[0], q[1].astype(mx.float32), q[2].astype(mx.float32),
                                 group_size=group, bits=bits)
            with mx.stream(mx.cpu):
                exact = x.astype(mx.float64).reshape(rows, k) @ full.astype(mx.float64).T
                mx.eval(exact, got, ref)
                scale = mx.sqrt((exact * exact).mean()).item()
                err = [mx.abs(y.astype(mx.float64).reshape(rows, n) - exact).max().item() / scale
                       for y in (got, ref)]
            say(case=[str(dtype), bits, group, rows, n, k], err=err)
            if err[0] > 0.02 or err[0] != err[0]:
                say(bad=[str(dtype), bits, group, rows, n, k], err=err)
    say(errors="last", err=err)
    for dtype, rows in ((mx.bfloat16, 2), (mx.float16, 9)):
        for n, k, tiles, warps, steps in ((512, 1024, 2, 8, 4), (72, 640, 2, 8, 4)):
            w = (mx.random.normal((n, k)) / k**0.5).astype(dtype)
            x = mx.random.normal((rows, 1, k)).astype(dtype)
            got = gemm(x, w, tiles=tiles, warps=warps, steps=steps)
            with mx.stream(mx.cpu):
                exact = x.astype(mx.float64).reshape(rows, k) @ w.astype(mx.float64).T
                err = mx.abs(got.astype(mx.float64).reshape(rows, n) - exact).max().item()
            if err > 0.03:
                say(bad=[str(dtype), rows, n, k], err=err)
    say(errors="gemm last", err=err)


def main():
    deadline = time.monotonic() + float(sys.argv[1])
    errors()
    h, i, layers = 4096, 12288, 12
    mx.random.seed(0)

    def weights(n, k):
        return (mx.random.normal((n, k), dtype=mx.bfloat16) * (1.0 / k**0.5)).astype(mx.bfloat16)

    pairs = [[mx.quantize(weights(i, h), 64, 4), mx.quantize(weights(h, i), 64, 4)] for _ in range(layers)]
    mx.eval(pairs)
    squares = [mx.quantize(weights(h, h), 64, 4) for _ in range(24)]
    mx.eval(squares)
    bound = 28.3e6 / 4.8e12 * 1e6

    def chain(fn, mats):
        def step(x):
            for m in mats:
                x = fn(x, m)
            return x
        return step

    flat = [m for p in pairs for m in p]
    for rows in (1, 2, 4, 8, 16):
        x = mx.random.normal((rows, 1, h)).astype(mx.bfloat16)
        native = lambda x, m: mx.quantized_matmul(x, *m, transpose=True, group_size=64, bits=4)
        us = seconds(chain(native, flat), x, 5) / len(flat) * 1e6
        say(rows=rows, what="mlx", us=round(us, 1), bound=round(bound / us, 3))
        us = seconds(chain(native, flat), x.reshape(1, rows, h), 5) / len(flat) * 1e6
        say(rows=rows, what="mlx flat", us=round(us, 1), bound=round(bound / us, 3))
    configs = [(1, 8, 4), (1, 8, 2), (1, 4, 4), (1, 16, 4), (2, 8, 4), (2, 8, 2), (2, 4, 4), (4, 8, 4), (4, 4, 2), (2, 16, 4)]
    for rows in (1, 8, 16, 4):
        if rows == 16: configs = [(1, 8, 4), (2, 8, 2), (1, 8, 2), (2, 8, 4)]
        x = mx.random.normal((rows, 1, h)).astype(mx.bfloat16)
        for tiles, warps, nsub in configs:
            if time.monotonic() > deadline:
                return
            if warps * 16 * tiles * (8 * ((rows + 7) // 8) + 1) * 4 > 48_000:
                continue
            c = dict(bits=4, group=64, tiles=tiles, warps=warps, nsub=nsub)
            up = seconds(chain(lambda x, m: qmm(x, *m, **c), flat), x, 5) / len(flat) * 1e6
            sq = seconds(chain(lambda x, m: qmm(x, *m, **c), squares), x, 5) / len(squares) * 1e6
            say(rows=rows, tiles=tiles, warps=warps, nsub=nsub, us=round(up, 1), bound=round(bound / up, 3), square=round(sq, 1))
    del pairs, flat, squares
    mats = [w for _ in range(6) for w in (weights(i, h), weights(h, i))]
    mx.eval(mats)
    bound = 100.7e6 / 4.8e12 * 1e6
    for rows in (1, 2, 4, 8, 16):
        x = mx.random.normal((rows, 1, h)).astype(mx.bfloat16)
        us = seconds(chain(lambda x, m: x @ m.T, mats), x, 5) / len(mats) * 1e6
        say(rows=rows, what="mlx bf16", us=round(us, 1), bound=round(bound / us, 3))
        us = seconds(chain(lambda x, m: x @ m.T, mats), x.reshape(rows, h), 5) / len(mats) * 1e6
        say(rows=rows, what="mlx bf16 flat", us=round(us, 1), bound=round(bound / us, 3))
        for tiles, warps, steps in ((1, 8, 4), (2, 8, 4), (1, 8, 2), (2, 8, 2), (1, 4, 4)):
            if time.monotonic() > deadline or (rows in (4,)):
                continue
            us = seconds(chain(lambda x, m: gemm(x, m, tiles=tiles, warps=warps, steps=steps), mats), x, 5) / len(mats) * 1e6
            say(rows=rows, gemm=[tiles, warps, steps], us=round(us, 1), bound=round(bound / us, 3))


main()
