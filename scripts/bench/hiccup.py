#!/usr/bin/env python3
"""What a running decode feels of the disk: gaps between tokens, and the lag of an event loop in the
same process, while gigabytes are written to the store and while they are read back.

Four streams decode without end through an engine whose model computes little and keeps as much
state a token as an 8B one; they repeat the same requests, so that they leave nothing to write. They
begin together, and gaps count while all four decode: what a prompt does to them is no matter of the
disk. How long the first token of such a short prompt takes is told apart.
Windows without I/O alternate with windows in which another sequence of the same cache is written
(its blocks are in memory before) or read (a look-up of a sequence that is only on disk, its pages
dropped). In a fourth kind of window another process reads the same files at the same rate into one
small buffer: what that costs the streams is the machine's part. Gaps are pooled over all windows of
a kind; the interval of the ratio comes from resampling rounds. Prints progress on stderr and one
JSON document on the last line.
"""

import argparse
import asyncio
import json
import queue
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from concurrent.futures import Future
from contextlib import suppress
from itertools import count
from pathlib import Path

import mlx.core as mx
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from omlx.cache.block import Chain
from omlx.cache.hashing import token_array
from omlx.engine.build import assemble_loaded
from omlx.engine.config import EngineConfig
from omlx.engine.engine import LocalEngine
from omlx.engine.request import EngineRequest, Failed, Finished, Token
from scripts.bench.measure import drop_pages, machine, percentile, sync_files
from scripts.bench.wide import BLOCK, IDENTITY, equal_caches, wide_model

LAYERS, DTYPE = 18, mx.float32  # 147,456 bytes a token, 37.7 MB a block
BLOCK_BYTES = BLOCK * LAYERS * 2 * 8 * 128 * 4
STREAMS = 4
PROMPT, REPLY = 16, 48
SLACK_BYTES = 256 << 20  # of the memory tier, for what the streams themselves leave there
POLL_S = 0.02
LOOP_SLEEP_S = 0.005
FOREIGN = """
import os, sys, time
paths, bytes_per_s = sys.stdin.read().split("\\n"), float(sys.argv[1])
buffer, started, done = bytearray(1 << 20), time.perf_counter(), 0
for path in paths:
    fd, at = os.open(path, os.O_RDONLY), 0
    while got := os.preadv(fd, [buffer], at):
        at, done = at + got, done + got
        time.sleep(max(0.0, started + done / bytes_per_s - time.perf_counter()))
    os.close(fd)
print(done)
"""
TIMEOUT_S = 300.0


class Streams:
    """Four streams that never end, and the times of their tokens."""

    def __init__(self, folder, memory_bytes, disk_bytes):
        self.loaded = wide_model(LAYERS, DTYPE)
        self.gaps = []  # (end of the gap, seconds)
        self.firsts = []  # (time of a first token, seconds since its request was submitted)
        self._last = {}
        self._ids = count()
        rng = random.Random(5)
        self._prompts = [
            tuple(rng.randrange(3, 500) for _ in range(PROMPT)) for _ in range(STREAMS)
        ]
        self._is_over = False
        self._events = queue.SimpleQueue()
        self._made = queue.SimpleQueue()
        config = EngineConfig(
            "bench",
            "",
            cache_dir=str(folder),
            min_free_bytes=0,
            memory_bytes=memory_bytes,
            disk_bytes=disk_bytes,
            write_delay_s=3600.0,
            drain_s=1e6,
        )
        self.engine = LocalEngine(config, build=self._build)
        self.engine.start(lambda events: self._events.put((time.perf_counter(), events)))
        self.assembly = self._made.get(timeout=60)
        self._feeder = threading.Thread(target=self._feed, daemon=True)
        self._feeder.start()

    def _build(self, config, *, emit, publish):
        assembly = assemble_loaded(config, self.loaded, IDENTITY, emit=emit, publish=publish)
        self._made.put(assembly)
        return assembly

    def _submit(self):
        """All four; when that was."""
        for stream in range(STREAMS):
            request = EngineRequest(f"{next(self._ids)}", self._prompts[stream], REPLY)
            self.engine.submit(request)
        return time.perf_counter()

    def _feed(self):
        submitted, num_left, all_since = self._submit(), STREAMS, None
        while not self._is_over:
            at, events = self._events.get()
            for event in events:
                if isinstance(event, Token):
                    last = self._last.get(event.request_id)
                    self._last[event.request_id] = at
                    if last is None:
                        self.firsts.append((at, at - submitted))
                        all_since = at if len(self._last) == STREAMS else None
                    elif all_since is not None and last >= all_since:
                        self.gaps.append((at, at - last))
                elif isinstance(event, (Finished, Failed)):
                    assert isinstance(event, Finished), event
                    num_left, all_since = num_left - 1, None
                    if not num_left:
                        self._last.clear()
                        submitted, num_left = self._submit(), STREAMS

    def stop(self):
        self._is_over = True
        self._feeder.join()
        assert self.engine.stop(60.0) == 0

    def call(self, job):
        """Run a job on the engine thread and wait for what it gives."""
        answer = Future()

        def run():
            try:
                answer.set_result(job())
            except Exception as error:  # the caller's thread has to hear of it
                answer.set_exception(error)

        self.assembly.inbox.post(run)
        return answer.result(TIMEOUT_S)


class LoopLag:
    """How late an event loop on a thread of this process wakes up."""

    def __init__(self):
        self.lags = []  # (time, seconds)
        threading.Thread(target=lambda: asyncio.run(self._run()), daemon=True).start()

    async def _run(self):
        while True:
            due = time.perf_counter() + LOOP_SLEEP_S
            await asyncio.sleep(LOOP_SLEEP_S)
            now = time.perf_counter()
            self.lags.append((now, now - due))


class Bench:
    """The windows: each moves one sequence of blocks, or nothing."""

    def __init__(self, folder, num_blocks):
        self.folder = folder
        self.num_bytes = num_blocks * BLOCK_BYTES
        self.streams = Streams(folder, self.num_bytes + SLACK_BYTES, 4 * self.num_bytes)
        self.lag = LoopLag()
        self.num_blocks = num_blocks
        self.caches = equal_caches(LAYERS, num_blocks * BLOCK, DTYPE)
        self.chains = []
        self.moved = []  # (kind, bytes, seconds)
        self.windows = []  # (round, kind, start, end)
        self.written_before = 0

    def prepare(self):
        """A sequence whose blocks are in memory and dirty; those of the last one leave memory."""
        rng = np.random.default_rng(100 + len(self.chains))
        tokens = rng.integers(0, 500, self.num_blocks * BLOCK, dtype=np.uint32)
        chain = Chain(token_array(tokens))
        prefix = self.streams.assembly.prefix
        self.written_before = self.streams.assembly.disk.counters().bytes_written
        for _ in range(self.num_blocks):
            self.streams.call(lambda: prefix.store(chain, self.caches, BLOCK))
        self.chains.append(chain)

    def write(self):
        """Have the last sequence written, as one that was aborted is."""
        assembly = self.streams.assembly
        started = assembly.disk.counters().bytes_written
        deadline = time.perf_counter() + TIMEOUT_S
        while (
            now := assembly.disk.counters().bytes_written
        ) < self.num_bytes + self.written_before:
            assert time.perf_counter() < deadline, assembly.disk.counters()
            assembly.inbox.post(lambda: assembly.prefix.hurry(self.chains[-1]))
            time.sleep(POLL_S)
        return now - started

    def read(self):
        """Look up the sequence before the last: it is on disk only."""
        tokens = self.chains[-2].tokens
        found = queue.SimpleQueue()
        prefix = self.streams.assembly.prefix
        longer = np.append(tokens, tokens[:1])
        self.streams.assembly.inbox.post(
            lambda: prefix.look_up(longer, lambda hit: found.put(hit.from_disk))
        )
        while found.empty():
            time.sleep(POLL_S)
        num_bytes = found.get() * BLOCK_BYTES // BLOCK
        assert num_bytes >= self.num_bytes - SLACK_BYTES - BLOCK_BYTES, num_bytes
        return num_bytes

    def read_elsewhere(self):
        """Have another process read the files that were written last, as fast as `read` did."""
        kind, num_bytes, seconds = self.moved[-1]
        assert kind == "read"
        files = sorted(self.folder.rglob("*.safetensors"), key=lambda p: p.stat().st_mtime)
        chosen = files[-(num_bytes // BLOCK_BYTES) :]
        done = subprocess.run(
            [sys.executable, "-c", FOREIGN, str(num_bytes / seconds)],
            input="\n".join(map(str, chosen)),
            capture_output=True,
            text=True,
            check=True,
        )
        return int(done.stdout)

    def settle(self):
        """Nothing is dirty in the page cache, and nothing of the store in it."""
        for path in self.folder.rglob("*.safetensors"):
            with suppress(FileNotFoundError):  # older sequences are evicted
                sync_files([path])
                drop_pages([path])
        time.sleep(0.5)

    def window(self, round_idx, kind, seconds=0.0):
        """Run one window; how long it took."""
        self.settle()
        started, moved = time.perf_counter(), 0
        if kind == "write":
            moved = self.write()
        elif kind == "read":
            moved = self.read()
        elif kind == "foreign":
            moved = self.read_elsewhere()
        while time.perf_counter() - started < seconds:
            time.sleep(POLL_S)
        ended = time.perf_counter()
        self.windows.append((round_idx, kind, started, ended))
        self.moved.append((kind, moved, ended - started))
        print(
            f"round {round_idx} {kind}: {moved / 1e9:.2f} GB in {ended - started:.1f} s",
            file=sys.stderr,
        )
        return ended - started

    def run(self, rounds):
        self.prepare()
        self.window(-1, "write")
        for i in range(rounds):
            self.prepare()
            quiet_first = i % 2 == 0
            if quiet_first:
                self.window(i, "quiet", self.last_s("write"))
            wrote_s = self.window(i, "write")
            if not quiet_first:
                self.window(i, "quiet", wrote_s)
                self.window(i, "quiet", self.last_s("read"))
            read_s = self.window(i, "read")
            self.window(i, "foreign")
            if quiet_first:
                self.window(i, "quiet", read_s)

    def last_s(self, kind):
        spans = [end - start for _, k, start, end in self.windows if k == kind]
        return spans[-1] if spans else 5.0


def samples(series, windows, kind):
    """The values of a series in all windows of a kind, by round."""
    series = list(series)
    times = [at for at, _ in series]
    found = {}
    for round_idx, k, start, end in windows:
        if k == kind and round_idx >= 0:
            part = series[bisect_left(times, start) : bisect_left(times, end)]
            found.setdefault(round_idx, []).extend(seconds for _, seconds in part)
    return found


def figures(by_round):
    values = [v for part in by_round.values() for v in part]
    return {
        "num": len(values),
        "p50_ms": round(percentile(values, 0.5) * 1e3, 2),
        "p99_ms": round(percentile(values, 0.99) * 1e3, 2),
        "max_ms": round(max(values) * 1e3, 2),
    }


def ratio(busy, quiet, share, draws=1000):
    """Ratio of pooled percentiles, and its 95 % interval by resampling rounds."""
    rng = random.Random(3)
    rounds = sorted(busy)

    def of(chosen):
        return percentile([v for i in chosen for v in busy[i]], share) / percentile(
            [v for i in chosen for v in quiet[i]], share
        )

    drawn = sorted(of(rng.choices(rounds, k=len(rounds))) for _ in range(draws))
    return {
        "ratio": round(of(rounds), 3),
        "low95": round(drawn[int(0.025 * draws)], 3),
        "high95": round(drawn[int(0.975 * draws)], 3),
        "rounds": len(rounds),
    }


def summary(bench):
    gaps, lags, firsts = bench.streams.gaps, bench.lag.lags, bench.streams.firsts
    result = {}
    quiet = samples(gaps, bench.windows, "quiet")
    quiet_lag = samples(lags, bench.windows, "quiet")
    result["quiet"] = {
        "gaps": figures(quiet),
        "loop_lag": figures(quiet_lag),
        "first_token": figures(samples(firsts, bench.windows, "quiet")),
    }
    for kind in ("write", "read", "foreign"):
        busy, busy_lag = samples(gaps, bench.windows, kind), samples(lags, bench.windows, kind)
        moved = [(b, s) for k, b, s in bench.moved if k == kind]
        result[kind] = {
            "gaps": figures(busy),
            "loop_lag": figures(busy_lag),
            "first_token": figures(samples(firsts, bench.windows, kind)),
            "gap_p50": ratio(busy, quiet, 0.5),
            "gap_p99": ratio(busy, quiet, 0.99),
            "loop_lag_p99": ratio(busy_lag, quiet_lag, 0.99),
            "bytes_each": round(statistics.fmean(b for b, _ in moved)),
            "gb_per_s": round(sum(b for b, _ in moved) / sum(s for _, s in moved) / 1e9, 3),
        }
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bytes", type=int, default=2 * 10**9, help="moved in each window")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--dir", type=Path, help="where to write (default: the temporary folder)")
    args = parser.parse_args()
    num_blocks = -(-(args.bytes + SLACK_BYTES) // BLOCK_BYTES)  # so much may stay in memory
    with tempfile.TemporaryDirectory(dir=args.dir) as name:
        need = 5 * num_blocks * BLOCK_BYTES
        assert shutil.disk_usage(name).free > need, f"{need} bytes of disk are needed"
        bench = Bench(Path(name), num_blocks)
        try:
            bench.run(args.rounds)
        finally:
            bench.streams.stop()
        found = summary(bench)
    result = {
        "what": "hiccup",
        "machine": machine(),
        "streams": STREAMS,
        "bytes": bench.num_bytes,
        "block_bytes": BLOCK_BYTES,
        **found,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    try:
        main()
    finally:
        mx.clear_streams()
