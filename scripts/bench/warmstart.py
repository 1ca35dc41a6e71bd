#!/usr/bin/env python3
"""The start of an engine against the disk: seconds to load the weights and to warm up, beside a raw
pread of the same files, each in a process of its own.

Ours is what an engine does between its imports and `ready`: load, fingerprint, probe, build, warm
up. Raw is a preadv of all weight files with eight threads into memory that nobody has touched. Both
are run with the files out of the page cache, as after a boot, and in it, as after an unload; the
result says whether they were. Pairs run ABBA with an A/A control of raw against raw. Prints
progress on stderr and one JSON document on the last line.
"""

import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from omlx.engine.blas import preload_library, with_preload

READERS = 8
PIECE = 16 << 20


def raw(paths):
    """Seconds to read all bytes of the files into fresh memory."""
    sizes = [path.stat().st_size for path in paths]
    pieces = []
    for path, size in zip(paths, sizes, strict=True):
        memory = memoryview(mmap.mmap(-1, size))
        pieces += [(path, memory[at : at + PIECE], at) for at in range(0, size, PIECE)]

    def read(piece):
        path, buffer, at = piece
        fd = os.open(path, os.O_RDONLY)
        try:
            done = 0
            while done < len(buffer):
                got = os.preadv(fd, [buffer[done:]], at + done)
                assert got, f"{path} is shorter than it was"
                done += got
        finally:
            os.close(fd)

    started = time.perf_counter()
    with ThreadPoolExecutor(READERS) as pool:
        list(pool.map(read, pieces))
    return {"seconds": time.perf_counter() - started}


def ours(folder, *, warm_up):
    """Seconds from the begin of a load to the moment at which an engine would be ready."""
    from omlx.engine.build import assemble
    from omlx.engine.config import EngineConfig

    with tempfile.TemporaryDirectory() as cache:
        config = EngineConfig(
            "bench", str(folder), cache_dir=cache, min_free_bytes=0, warm_up=warm_up
        )
        snapshots = []
        started = time.perf_counter()
        assembly = assemble(config, emit=lambda _: None, publish=snapshots.append)
        seconds = time.perf_counter() - started
        assembly.loop.turn(0.0)
        start = snapshots[-1].start
        assembly.close(1.0)
    figures = {"load_s": start.load_s, "warm_up_s": start.warm_up_s, "bytes": start.weight_bytes}
    return {"seconds": seconds, **figures}


def child(what, folder):
    """What one process does; its figures are the last line of its stdout."""
    if what == "raw":
        print(json.dumps(raw(weights(folder))))
        return
    import mlx.core as mx

    mx.eval(mx.zeros(1) + 1)  # the device is there
    print(json.dumps(ours(folder, warm_up=what == "ours")), flush=True)
    mx.clear_streams()


def weights(folder):
    """The weight files of a model."""
    return sorted(folder.glob("*.safetensors"))


def run(what, folder):
    """A process of its own; what it measured."""
    words = [sys.executable, __file__, "--child", what, "--model", str(folder)]
    env = with_preload(os.environ, preload_library("auto"))  # as an engine process has it
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def figures(folder, pairs, *, is_cached):
    """All pairs in one state of the page cache."""
    from omlx.bench.pagecache import cached_share
    from scripts.bench.measure import drop_pages, interval

    paths, shares = weights(folder), []

    def prepared(what):
        if is_cached:
            raw(paths)
        else:
            drop_pages(paths)
            shares.append(cached_share(paths) or 0.0)
            drop_pages(paths)
        return run(what, folder)

    ratios, loads, control, ours_s, raws_s = [], [], [], [], []
    for pair in range(pairs):
        first = prepared("ours")
        raws = [prepared("raw")["seconds"], prepared("raw")["seconds"]]
        last = prepared("ours")
        ours_s += [first, last]
        raws_s += raws
        both = (first, last)
        ratios.append(sum(one["seconds"] for one in both) / sum(raws))
        loads.append(sum(one["load_s"] for one in both) / sum(raws))
        control.append(raws[0] / raws[1])
        print(f"{'cached' if is_cached else 'dropped'} {pair}: {ratios[-1]:.2f}", file=sys.stderr)

    def spread(values):
        return {
            "median": round(statistics.median(values), 3),
            "least": round(min(values), 3),
            "most": round(max(values), 3),
        }

    parts = {
        name: spread([one[name] for one in ours_s]) for name in ("seconds", "load_s", "warm_up_s")
    }
    return {
        "start_vs_raw": interval(ratios),
        "load_vs_raw": interval(loads),
        "control_raw_raw": interval(control),
        "start_s": parts["seconds"],
        "load_s": parts["load_s"],
        "warm_up_s": parts["warm_up_s"],
        "raw_s": spread(raws_s),
        "most_in_page_cache_before": max(shares, default=None),
        "weight_bytes": ours_s[0]["bytes"],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--child")
    args = parser.parse_args()
    if args.child:
        child(args.child, args.model)
        return
    from scripts.bench.measure import machine, sync_files

    paths = weights(args.model)
    assert paths, f"no weights in {args.model}"
    sync_files(paths)
    result = {
        "what": "warm start",
        "model": args.model.name,
        "file_bytes": sum(path.stat().st_size for path in paths),
        "dropped": figures(args.model, args.pairs, is_cached=False),
        "cached": figures(args.model, args.pairs, is_cached=True),
        "machine": machine(),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
