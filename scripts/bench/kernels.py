#!/usr/bin/env python3
"""On a GPU: kernels against float64 and plain mlx, a model's decode and logits with and without.

usage: kernels.py [--out FILE] [--layers N] [--parts verify,time,decode,logits] [--budget SECONDS]
                  [--records FILE]

Prints JSON on stdout (and to FILE), progress on stderr. Each kernel is verified over its whole
table, in processes side by side, since most of the time is compiling. Times are ratios to plain
mlx and to what the memory's bandwidth allows (--bandwidth, bytes a second; an H200 has 4.8e12).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "bench")]

import kernel_models  # noqa: E402
import measure  # noqa: E402
import mlx.core as mx  # noqa: E402

from omlx.custom_kernels.backend import this_backend  # noqa: E402
from omlx.custom_kernels.build import record_of  # noqa: E402
from omlx.custom_kernels.names import NAMES  # noqa: E402
from omlx.custom_kernels.op import arrays_of  # noqa: E402
from omlx.custom_kernels.records import write_record  # noqa: E402
from omlx.custom_kernels.registry import digest, operation, operations  # noqa: E402
from omlx.custom_kernels.timing import COLD_BYTES, chain, time_op  # noqa: E402
from omlx.custom_kernels.verify import Verification, verify  # noqa: E402

PARTS = ("verify", "time", "decode", "logits")
# The order in which kernels are timed, should the time not do for all.
FIRST = ("qmm_small", "gemm_small", "norm_gate_up", "norm_qkv", "qk_rope", "flat_rows")
SHARD = 24  # cases a process
CALLS = 48  # of a chain whose device time is taken
ROUNDS = 4


def say(text):
    print(text, file=sys.stderr, flush=True)


def verified_shard(name, first):
    """What came of a part of a table, as JSON on stdout; in a process of its own."""
    op = operation(name)
    found = verify(replace(op, cases=op.cases[first : first + SHARD]), this_backend())
    print(json.dumps({"errors": found.errors, "cases": found.num_cases, "reason": found.reason}))


def verified(limit_s):
    """Every kernel over its table: errors by type, number of cases, why it failed."""
    backend = this_backend()
    ops = [op for op in operations() if digest(op, backend) is not None]
    running = []
    for op in ops:
        for first in range(0, len(op.cases), SHARD):
            command = [sys.executable, __file__, "--shard", op.name, str(first)]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            running.append((op.name, process))
    found = {op.name: {"errors": {}, "cases": 0, "of": len(op.cases), "reason": ""} for op in ops}
    deadline = time.monotonic() + limit_s
    for name, process in running:
        into = found[name]
        try:
            out = process.communicate(timeout=max(1.0, deadline - time.monotonic()))[0]
        except subprocess.TimeoutExpired:
            process.kill()
            out = process.communicate()[0]
        if process.returncode != 0:
            into["reason"] = into["reason"] or f"its process ended with {process.returncode}"
            continue
        part = json.loads(out.splitlines()[-1])
        into["cases"] += part["cases"]
        into["reason"] = into["reason"] or part["reason"]
        for dtype, error in part["errors"].items():
            into["errors"][dtype] = max(into["errors"].get(dtype, 0.0), error)
    return found


def device_s(function, calls, busy):
    """Seconds of the GPU alone for one call: the host works ahead while `busy` holds the GPU."""

    def once(some):
        mx.synchronize()
        began = time.perf_counter()
        mx.async_eval(busy @ busy, (busy @ busy).sum())
        mx.eval(chain(function, some))
        return time.perf_counter() - began

    half = len(calls) // 2
    for some in (calls, calls[:half]):  # compiles, and fills what is kept by shape
        once(some)
    whole = min(once(calls) for _ in range(ROUNDS))
    part = min(once(calls[:half]) for _ in range(ROUNDS))
    return max(whole - part, 1e-9) / (len(calls) - half)


def timed(name, bandwidth, busy):
    """A kernel's shape classes: microseconds of kernel and reference, with the host and without."""
    op, backend = operation(name), this_backend()
    function = op.bind(backend)
    with_host = {one.case: one for one in time_op(op, backend)}
    rows = []
    for case, wall in with_host.items():
        num = max(3, min(CALLS, COLD_BYTES // max(1, case.weight_bytes)))
        calls = [op.inputs(case) for _ in range(num)]
        mx.eval(arrays_of(calls))
        calls = (calls * CALLS)[:CALLS]
        kernel, plain = (device_s(one, calls, busy) for one in (function, op.reference))
        bound = case.weight_bytes / bandwidth
        rows.append(
            {
                "case": case.label,
                "class": case.shape_class,
                "rows": case.rows,
                "bits": case.bits,
                "outs": list(case.outs),
                "num_in": case.num_in,
                "kernel_us": round(1e6 * kernel, 2),
                "mlx_us": round(1e6 * plain, 2),
                "speedup": round(plain / kernel, 3),
                "of_bound": round(bound / kernel, 3),
                "mlx_of_bound": round(bound / plain, 3),
                "host_kernel_us": round(1e6 * wall.kernel_s, 2),
                "host_mlx_us": round(1e6 * wall.reference_s, 2),
                "host_speedup": round(wall.speedup, 3),
            }
        )
    return rows


def keep(path, found, times):
    """Verdicts as omlx kernel build keeps them, so that models are served as for a user."""
    backend = this_backend()
    for name, rows in times.items():
        checked = found.get(name, {"reason": "", "cases": 0, "errors": {}})
        op = operation(name)
        verification = Verification(checked["errors"], checked["cases"], checked["reason"])
        speedups = {row["class"]: row["host_speedup"] for row in rows}
        content = digest(op, backend)
        write_record(path, record_of(op, backend, content, verification, speedups))


def measured(args):
    """All parts that are asked for, as far as the time allows."""
    began = time.monotonic()
    result = {"what": "kernels", "parts": {}, "seconds": {}}
    parts = result["parts"]

    def left():
        return args.budget - (time.monotonic() - began)

    def part(name, work):
        if name not in args.parts or left() < 5:
            return
        started = time.monotonic()
        parts[name] = work()
        result["seconds"][name] = round(time.monotonic() - started, 1)
        say(f"{name}: {result['seconds'][name]} s, {left():.0f} s left")
        write(args, result)

    part("verify", lambda: verified(left()))
    busy = mx.random.normal((8192, 8192)).astype(mx.bfloat16)
    names = [op.name for op in operations() if digest(op, this_backend()) is not None]

    def times():
        found = parts["time"] = {}
        for name in sorted(names, key=FIRST.index):
            if left() < 30:
                say(f"{name} is not timed: {left():.0f} s left")
                break
            found[name] = timed(name, args.bandwidth, busy)
            write(args, result)
        return found

    part("time", times)
    with tempfile.TemporaryDirectory() as folder:
        records = Path(args.records or Path(folder) / "kernels.json")
        keep(records, parts.get("verify", {}), parts.get("time", {}))
        part("logits", lambda: kernel_models.logits(records, Path(folder)))
        part("decode", lambda: kernel_models.decode(records, args.layers, left, say))
    result["machine"] = measure.machine()
    return result


def write(args, result):
    """What there is so far: a time limit must not take it away."""
    if args.out:
        result["machine"] = measure.machine()
        Path(args.out).write_text(json.dumps(result, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out")
    parser.add_argument("--records", help="where the verdicts are kept")
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS))
    parser.add_argument("--budget", type=float, default=230.0)
    parser.add_argument("--bandwidth", type=float, default=4.8e12)
    parser.add_argument("--shard", nargs=2, metavar=("KERNEL", "FIRST"))
    args = parser.parse_args()
    if args.shard:
        assert args.shard[0] in NAMES
        verified_shard(args.shard[0], int(args.shard[1]))
    else:
        result = measured(args)
        write(args, result)
        print(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)  # mlx can abort at exit with lazy arrays of ended streams


if __name__ == "__main__":
    main()
