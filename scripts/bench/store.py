#!/usr/bin/env python3
"""The disk tier against the disk: restore bandwidth beside raw preads of the same files, the rate
of storing, and the time to index 100,000 blocks beside a bare scan.

A restore is a look-up through the prefix cache with an empty memory tier: find, allocate, read by
the tier's threads, verify every checksum, arrays in hand. The raw side preads the same files with
as many threads. Both are compared twice: with memory that the process has used before, as in an
engine whose tier is full, and with memory that the system has to find anew, as after a start.
Files leave the page cache before each run; the result says if they did. Pairs run ABBA with an A/A
control. Prints progress on stderr and one JSON document on the last line.
"""

import argparse
import json
import mmap
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import mlx.core as mx
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from omlx.bench.pagecache import cached_share
from omlx.cache.block import Chain
from omlx.cache.hashing import token_array
from omlx.storage.fs import RealFileSystem
from omlx.storage.layout import BlockHash, BlockKey, block_path
from scripts.bench.measure import drop_pages, interval, machine, sync_files
from scripts.bench.wide import BLOCK, OpenCache, random_caches, wide_model
from tests.fakes.blocks import MANY, ROOT, Shelf

READERS = 8
CHUNK = 4 * BLOCK
KINDS = {"37.7 MB": 36, "4.2 MB": 4}
CHAIN_BLOCKS = 250


def fill(loaded, folder, caches, tokens):
    """Store all blocks of a sequence: seconds to cut them, seconds to write them."""
    cache, chain = OpenCache(loaded, folder), Chain(tokens)
    started = time.perf_counter()
    for _ in range(len(tokens) // CHUNK):
        cache.prefix.store(chain, caches, CHUNK)
    mx.synchronize()
    packed = time.perf_counter()
    assert cache.prefix.flush(600.0)
    written = time.perf_counter()
    cache.close()
    return packed - started, written - packed


def check(loaded, folder, caches, tokens, memory_bytes):
    """What comes back is what was stored."""
    cache = OpenCache(loaded, folder, memory_bytes=memory_bytes)
    hit, _ = cache.look_up(np.append(tokens, tokens[:1]))
    assert hit.from_disk == len(tokens), hit.from_disk
    for stored, found in zip(caches, cache.prefix.restore(hit), strict=True):
        for a, b in ((stored.keys, found.keys), (stored.values, found.values)):
            same = mx.array_equal(a.view(mx.uint16), b[:, :, : len(tokens)].view(mx.uint16))
            assert same.item()
    cache.close()


def ours(loaded, folder, tokens, paths, memory_bytes, *, is_fresh=False):
    """Seconds of one restore from disk, and those of joining what was found into layer caches."""
    cache = OpenCache(loaded, folder, memory_bytes=memory_bytes)
    drop_pages(paths)
    if is_fresh:
        mx.clear_cache()
    hit, seconds = cache.look_up(tokens)
    assert hit.from_disk == len(tokens) - 1
    started = time.perf_counter()
    caches = cache.prefix.restore(hit)
    mx.eval([(c.keys, c.values) for c in caches])
    joined = time.perf_counter() - started
    del caches
    mx.clear_cache()  # so that what is kept for reuse are the blocks' buffers
    cache.close()
    return seconds, joined


def raw(paths, buffers):
    """Seconds to pread all files with as many threads, page cache dropped."""

    def read(path, buffer):
        fd = os.open(path, os.O_RDONLY)
        try:
            done = 0
            while got := os.preadv(fd, [buffer[done:]], done):
                done += got
        finally:
            os.close(fd)

    with ThreadPoolExecutor(READERS) as pool:
        drop_pages(paths)
        started = time.perf_counter()
        list(pool.map(read, paths, buffers))
        return time.perf_counter() - started


def fresh_memory(buffers):
    """Memory of the same sizes that nobody has touched, in pages of the usual size."""
    maps = [mmap.mmap(-1, len(b)) for b in buffers]
    return [memoryview(m)[: len(b)] for m, b in zip(maps, buffers, strict=True)]


def restore_figures(name, num_layers, args, folder):
    """Everything about blocks of one size."""
    loaded = wide_model(num_layers)
    num_tokens = args.bytes // (num_layers * 4096 * CHUNK) * CHUNK
    rng = np.random.default_rng(num_layers)
    tokens = token_array(rng.integers(0, 50_000, num_tokens, dtype=np.uint32))
    num_bytes = num_tokens * num_layers * 4096
    need = 2 * num_bytes
    assert shutil.disk_usage(folder).free > need, f"{need} bytes of disk are needed"
    caches = random_caches(num_layers, num_tokens, CHUNK)
    pack_s, write_s = fill(loaded, folder, caches, tokens)
    check(loaded, folder, caches, tokens, args.memory)
    del caches
    paths = sorted(folder.rglob("*.safetensors"))
    assert sum(p.stat().st_size for p in paths) >= num_bytes
    sync_files(paths)
    drop_pages(paths)
    left = cached_share(paths)
    buffers = [memoryview(bytearray(p.stat().st_size + 1)) for p in paths]
    tokens = np.append(tokens, tokens[:1])
    restore = partial(ours, loaded, folder, tokens, paths, args.memory)
    raw(paths, buffers)  # warm both
    restore()
    ratios, control, ours_s, raw_s, joins = [], [], [], [], []
    fresh_ratios, fresh_ours_s, fresh_raw_s = [], [], []
    for pair in range(args.pairs):
        first = restore()
        raws = [raw(paths, buffers), raw(paths, buffers)]
        last = restore()
        ratios.append(sum(raws) / (first[0] + last[0]))
        control.append(raws[0] / raws[1])
        ours_s += [first[0], last[0]]
        raw_s += raws
        joins += [first[1], last[1]]
        fresh = [restore(is_fresh=True)[0]]
        fresh += [raw(paths, fresh_memory(buffers)), raw(paths, fresh_memory(buffers))]
        fresh += [restore(is_fresh=True)[0]]
        fresh_ours_s += [fresh[0], fresh[3]]
        fresh_raw_s += fresh[1:3]
        fresh_ratios.append(sum(fresh[1:3]) / (fresh[0] + fresh[3]))
        print(
            f"{name} pair {pair}: ours {first[0]:.2f} {last[0]:.2f} s, raw {raws[0]:.2f} "
            f"{raws[1]:.2f}; fresh memory {[round(t, 2) for t in fresh]}",
            file=sys.stderr,
        )

    def rate(seconds):
        return round(num_bytes / statistics.median(seconds) / 1e9, 3)

    return {
        "block": name,
        "blocks": len(paths),
        "bytes": num_bytes,
        "page_cache_left": left,
        "restore_vs_raw": interval(ratios),
        "control_raw_raw": interval(control),
        "restore_gb_per_s": rate(ours_s),
        "raw_gb_per_s": rate(raw_s),
        "fresh_restore_vs_raw": interval(fresh_ratios),
        "fresh_restore_gb_per_s": rate(fresh_ours_s),
        "fresh_raw_gb_per_s": rate(fresh_raw_s),
        "join_gb_per_s": rate(joins),
        "pack_gb_per_s": rate([pack_s]),
        "store_gb_per_s": rate([write_s]),
    }


def make_names(folder, num_blocks):
    """Block files of no content but the right size, in chains."""
    source = random.Random(1)
    parent = BlockHash(ROOT)
    for i in range(num_blocks):
        if i % CHAIN_BLOCKS == 0:
            parent = BlockHash(ROOT)
        key = BlockKey(parent, BlockHash(source.randbytes(32)), BLOCK)
        path = block_path(folder, ROOT, key)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
        os.ftruncate(fd, 37_754_880)
        os.close(fd)
        parent = key.name


def bare_scan(folder):
    """Seconds to see every name and size below a directory, and how many there are."""
    started, found = time.perf_counter(), 0
    waiting = [str(folder)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    found += entry.stat(follow_symlinks=False).st_size > 0
    return time.perf_counter() - started, found


def index(folder):
    """Seconds until a store has indexed a directory, and how many blocks it found."""
    shelf = Shelf(RealFileSystem(), directory=folder, max_bytes=MANY * 8)
    started = time.perf_counter()
    found = shelf.store.index().num_blocks
    return time.perf_counter() - started, found


def index_figures(args, folder):
    make_names(folder, args.index)
    bares, indexes = [], []
    for pair in range(args.pairs + 1):
        times = [side(folder) for side in (bare_scan, index, index, bare_scan)]
        assert {found for _, found in times} == {args.index}
        if pair:  # the first warms the directories
            bares += [times[0][0], times[3][0]]
            indexes += [times[1][0], times[2][0]]
        print(f"index pair {pair}: {[round(t, 2) for t, _ in times]} s", file=sys.stderr)
    extra = [a - b for a, b in zip(indexes, bares, strict=True)]
    return {
        "blocks": args.index,
        "bare_scan_s": round(statistics.median(bares), 3),
        "index_s": round(statistics.median(indexes), 3),
        "extra_s": round(statistics.median(extra), 3),
        "extra_max_s": round(max(extra), 3),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=10**9, help="of state, for each block size")
    parser.add_argument("--pairs", type=int, default=6, help="ABBA pairs")
    parser.add_argument("--index", type=int, default=100_000, help="blocks to index")
    parser.add_argument("--memory", type=int, default=1 << 40, help="bytes of the memory tier")
    parser.add_argument("--dir", type=Path, help="where to write (default: the temporary folder)")
    args = parser.parse_args()
    kinds = []
    for name, num_layers in KINDS.items():
        with tempfile.TemporaryDirectory(dir=args.dir) as folder:
            kinds.append(restore_figures(name, num_layers, args, Path(folder)))
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        indexed = index_figures(args, Path(folder))
    result = {"what": "store", "machine": machine(), "restore": kinds, "index": indexed}
    print(json.dumps(result))


if __name__ == "__main__":
    try:
        main()
    finally:
        mx.clear_streams()
