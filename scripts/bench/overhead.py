#!/usr/bin/env python3
"""What the cache and the engine cost: cold prefill with the cache on against off, decode against a
bare BatchGenerator loop. Prints progress on stderr and one JSON document on the last line.

Pairs run ABBA in one process over one loaded model, with an A/A control. Besides the wall-clock
ratio it gives the share of the engine thread's time that is spent in our code, which is how a
ratio close to 1 is judged on a noisy CPU.
"""

import argparse
import json
import queue
import random
import statistics
import sys
import tempfile
import threading
import time
from dataclasses import replace
from itertools import count
from pathlib import Path

import mlx.core as mx
from mlx_lm.generate import BatchGenerator

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from omlx.engine.batch import Batch
from omlx.engine.build import assemble_loaded
from omlx.engine.config import EngineConfig
from omlx.engine.engine import LocalEngine
from omlx.engine.request import EngineRequest, Finished
from omlx.models.load import load
from scripts.bench.measure import interval, machine
from tests.fakes.shapes import random_8b

IDS = count()


class TimedBatch(Batch):
    """Counts the time inside a step: what the model and the library take."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.library_s = 0.0

    def step(self, *args, **kwargs):
        started = time.perf_counter()
        try:
            return super().step(*args, **kwargs)
        finally:
            self.library_s += time.perf_counter() - started


class Side:
    """One engine over the loaded model."""

    def __init__(self, loaded, **config):
        self.batches = []
        self.events = queue.SimpleQueue()
        # What writing costs others is measured by hiccup.py: nothing falls due here.
        base = EngineConfig("bench", "", min_free_bytes=0, write_delay_s=3600.0, drain_s=3600.0)

        def build(cfg, *, emit, publish):
            def make_batch(*args, **kwargs):
                self.batches.append(TimedBatch(*args, **kwargs))
                return self.batches[-1]

            return assemble_loaded(
                cfg, loaded, "11" * 32, emit=emit, publish=publish, make_batch=make_batch
            )

        self.engine = LocalEngine(replace(base, **config), build=build)
        self.engine.start(self.events.put)

    def run(self, prompts, max_tokens):
        """Run prompts side by side: (wall seconds, library seconds, stats of each)."""
        before = self.batches[-1].library_s if self.batches else 0.0
        started = time.perf_counter()
        ids = set()
        for prompt in prompts:
            request = EngineRequest(f"b{next(IDS)}", tuple(prompt), max_tokens)
            ids.add(request.id)
            self.engine.submit(request)
        stats = []
        while ids:
            for event in self.events.get():
                if isinstance(event, Finished):
                    ids.discard(event.request_id)
                    stats.append(event.stats)
        wall = time.perf_counter() - started
        return wall, self.batches[-1].library_s - before, stats


def bare_decode(model, prompts, max_tokens):
    """The library alone on a thread of its own: decode tokens per second while all rows run."""
    result = []

    def run():
        generator = BatchGenerator(model, prefill_batch_size=len(prompts))
        generator.insert(prompts, max_tokens=[max_tokens] * len(prompts))
        first, num, has_ended = None, 0, False
        while not has_ended:
            _, responses = generator.next()
            has_ended = any(r.finish_reason for r in responses)
            if first is None and len(responses) == len(prompts):
                first = time.perf_counter()
            elif first is not None:
                num += len(responses)
        result.append(num / (time.perf_counter() - first))
        generator.close()
        mx.clear_streams()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return result[0]


class DecodeClock:
    """Decode tokens per second of an engine, counted as in `bare_decode`."""

    def __init__(self, side):
        self.side = side

    def __call__(self, prompts, max_tokens):
        from omlx.engine.request import Token

        for prompt in prompts:
            # Rows start a step or two apart: all must live long enough to run side by side.
            self.side.engine.submit(EngineRequest(f"d{next(IDS)}", tuple(prompt), max_tokens))
        first, num, alive, result = None, 0, len(prompts), None
        before = 0.0
        while alive:
            events = self.side.events.get()
            now = time.perf_counter()
            tokens = [e for e in events if isinstance(e, Token)]
            alive -= sum(isinstance(e, Finished) for e in events)
            if first is None and len(tokens) == len(prompts):
                first, before = now, self.side.batches[-1].library_s
            elif result is None and first is not None:
                num += len(tokens)
                if alive < len(prompts):
                    wall = now - first
                    share = 1 - (self.side.batches[-1].library_s - before) / wall
                    result = num / wall, share
        assert result is not None, "the rows never ran side by side"
        return result


def fresh(rng, length, num_vocab):
    return [rng.randrange(3, num_vocab) for _ in range(length)]


def prefill_ratio(loaded, args, rng, cache_dir):
    """Cold prefill, cache on against off: tokens per second, on / off."""
    common = dict(prefill_chunk=args.chunk, max_active=8)
    on = Side(loaded, cache_dir=str(cache_dir), **common)
    off = Side(loaded, cache_enabled=False, **common)
    ours_share, ratios, control = [], [], []

    def once(side):
        wall, library, stats = side.run([fresh(rng, args.prompt, loaded.num_vocab)], 1)
        assert stats[0].cached_memory + stats[0].cached_disk == 0
        return stats[0].prefill_s, (wall - library) / wall

    for side in (on, off, on, off):  # warm both
        once(side)
    for pair in range(args.pairs):
        order = (on, off, off, on)
        times = [once(side) for side in order]
        on_s = times[0][0] + times[3][0]
        off_s = times[1][0] + times[2][0]
        ratios.append(off_s / on_s)
        control.append(times[1][0] / times[2][0])
        ours_share += [times[0][1], times[3][1]]
        print(f"prefill pair {pair}: on {on_s / 2:.3f} s, off {off_s / 2:.3f} s", file=sys.stderr)
    snapshot = on.engine.snapshot()
    on.engine.stop(60.0)
    off.engine.stop(60.0)
    return {
        **interval(ratios),
        "control_off_off": interval(control),
        "our_share_of_engine_time": round(statistics.median(ours_share), 4),
        "blocks_stored": snapshot.counters.blocks_stored if snapshot else None,
        "prompt_tokens": args.prompt,
        "off_tokens_per_s": round(args.prompt * 2 / off_s, 1),
    }


def decode_ratio(loaded, args, rng, cache_dir, rows):
    """Decode tokens per second through the engine against the library alone."""
    side = Side(loaded, cache_dir=str(cache_dir), prefill_chunk=args.chunk, max_active=rows)
    clock = DecodeClock(side)
    ratios, control, share = [], [], []

    def prompts():
        return [fresh(rng, 16, loaded.num_vocab) for _ in range(rows)]

    clock(prompts(), 8)
    bare_decode(loaded.model, prompts(), 8)
    for pair in range(args.pairs):
        bare_a = bare_decode(loaded.model, prompts(), args.decode)
        ours_a, share_a = clock(prompts(), args.decode)
        ours_b, share_b = clock(prompts(), args.decode)
        bare_b = bare_decode(loaded.model, prompts(), args.decode)
        ratios.append((ours_a * ours_b / (bare_a * bare_b)) ** 0.5)
        control.append(bare_a / bare_b)
        share += [share_a, share_b]
        print(f"decode pair {pair}: ours {ours_a:.1f}, bare {bare_a:.1f} tok/s", file=sys.stderr)
    side.engine.stop(60.0)
    return {
        **interval(ratios),
        "control_bare_bare": interval(control),
        "our_share_of_engine_time": round(statistics.median(share), 4),
        "rows": rows,
        "bare_tokens_per_s": round(bare_b, 1),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="model directory; default: random 8B shape")
    parser.add_argument("--prompt", type=int, default=1024, help="prompt tokens")
    parser.add_argument("--decode", type=int, default=64, help="tokens to decode")
    parser.add_argument("--chunk", type=int, default=None, help="prefill chunk")
    parser.add_argument("--pairs", type=int, default=10, help="ABBA pairs")
    parser.add_argument("--rows", type=int, nargs="*", default=[1, 8])
    args = parser.parse_args()
    loaded = load(args.model) if args.model else random_8b()
    rng = random.Random(7)
    with tempfile.TemporaryDirectory() as directory:
        result = {
            "what": "overhead",
            "machine": machine(),
            "model": args.model.name if args.model else "random-8b-bf16",
            "prefill_cache_on_vs_off": prefill_ratio(loaded, args, rng, Path(directory) / "a"),
            "decode_vs_bare": [
                decode_ratio(loaded, args, rng, Path(directory) / f"d{rows}", rows)
                for rows in args.rows
            ],
        }
    print(json.dumps(result))


if __name__ == "__main__":
    try:
        main()
    finally:
        mx.clear_streams()
