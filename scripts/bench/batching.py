#!/usr/bin/env python3
"""What many rows bring: decode of 8 and of 2 rows against mlx-lm's batch_generate, decode of 2 rows
against 1, prefill of 2 and 4 prompts at once against 1. Prints progress on stderr and one JSON
document on the last line.

Rounds run ABBA in one process over one loaded model, fresh prompts each, with a control of one side
against itself. The library's side counts the time inside its decode steps only, as it reports it;
ours is the wall time in which all rows run, and the share of it that is spent outside of steps.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile
import threading
from pathlib import Path

import mlx.core as mx
from mlx_lm import batch_generate

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from omlx.models.load import load
from scripts.bench.measure import interval, machine
from scripts.bench.overhead import DecodeClock, Side, fresh
from tests.fakes.shapes import random_8b


class NoTokenizer:
    """What batch_generate asks of a tokenizer: no token ends a row, and nobody reads the text."""

    eos_token_ids = ()

    def decode(self, tokens):
        """No text."""
        return ""


def library_decode(model, prompts, max_tokens):
    """Tokens per second that batch_generate reports, on a thread of its own."""
    result = []

    def run():
        answer = batch_generate(model, NoTokenizer(), prompts, max_tokens=max_tokens)
        result.append(answer.stats.generation_tps)
        mx.clear_streams()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return result[0]


def abba(name, a, b, args):
    """The ratio a / b of two measurements of speed, and that of b to itself; before them both run a
    few times, since a process finds the memory that it works in first."""
    ratios, control = [], []
    for _ in range(args.warm_ups):
        a(), b()
    for number in range(args.rounds):
        values = [a(), b(), b(), a()]
        ratios.append((values[0] * values[3] / (values[1] * values[2])) ** 0.5)
        control.append(values[1] / values[2])
        shown = ", ".join(f"{v:.1f}" for v in values)
        print(f"{name} round {number}: {shown} tok/s (ABBA)", file=sys.stderr)
    return {
        **interval(ratios),
        "control": interval(control),
        "a_tokens_per_s": round((values[0] + values[3]) / 2, 1),
        "b_tokens_per_s": round((values[1] + values[2]) / 2, 1),
    }


class Bench:
    """One loaded model and what is measured of it."""

    def __init__(self, loaded, args, folder):
        self.loaded, self.args, self.folder = loaded, args, folder
        self.rng = random.Random(11)

    def prompts(self, number, length):
        """Fresh random prompts."""
        return [fresh(self.rng, length, self.loaded.num_vocab) for _ in range(number)]

    def side(self, name):
        """A fresh engine, without a disk: what writing costs others is measured by hiccup.py."""
        cache_dir = str(self.folder / name)
        return Side(self.loaded, cache_dir=cache_dir, disk_bytes=0, max_active=8)

    def decode_vs_library(self, rows):
        """Ours with so many rows against batch_generate with as many."""
        side, most = self.side(f"d{rows}"), self.args.decode
        clock, shares = DecodeClock(side), []

        def ours():
            speed, share = clock(self.prompts(rows, 16), most)
            shares.append(share)
            return speed

        result = abba(
            f"decode {rows} rows, ours against the library",
            ours,
            lambda: library_decode(self.loaded.model, self.prompts(rows, 16), most),
            self.args,
        )
        side.engine.stop(60.0)
        share = round(statistics.median(shares), 4)
        return {"rows": rows, "our_share_of_engine_time": share, **result}

    def decode_vs_one(self, rows):
        """Ours with so many rows against ours with one."""
        side, most = self.side(f"o{rows}"), self.args.decode
        clock = DecodeClock(side)
        result = abba(
            f"decode {rows} rows against 1",
            lambda: clock(self.prompts(rows, 16), most)[0],
            lambda: clock(self.prompts(1, 16), most)[0],
            self.args,
        )
        side.engine.stop(60.0)
        return {"rows": rows, **result}

    def prefill_vs_one(self, number, length):
        """So many prompts at once against one after the other, of so many tokens each."""
        side = self.side(f"p{number}-{length}")

        def speed(groups):
            wall = sum(side.run(group, 1)[0] for group in groups)
            return number * length / wall

        result = abba(
            f"prefill of {number} prompts of {length} tokens at once",
            lambda: speed([self.prompts(number, length)]),
            lambda: speed([[prompt] for prompt in self.prompts(number, length)]),
            self.args,
        )
        side.engine.stop(60.0)
        return {"prompts": number, "tokens": length, **result}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="model directory; default: random 8B shape")
    parser.add_argument("--decode", type=int, default=64, help="tokens to decode")
    parser.add_argument("--rounds", type=int, default=8, help="ABBA rounds")
    parser.add_argument("--lengths", type=int, nargs="*", default=[128, 2048], help="of prompts")
    parser.add_argument("--warm-ups", type=int, default=6, help="runs of both sides before")
    parser.add_argument("--only", choices=("decode", "prefill"), help="one part")
    args = parser.parse_args()
    loaded = load(args.model) if args.model else random_8b()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(loaded, args, Path(folder))
        result = {
            "what": "batching",
            "model": args.model.name if args.model else "random-8b-bf16",
        }
        if args.only != "prefill":
            result["decode_vs_library"] = [bench.decode_vs_library(rows) for rows in (8, 2)]
            result["decode_vs_one"] = [bench.decode_vs_one(2)]
        if args.only != "decode":
            result["prefill_vs_one"] = [
                bench.prefill_vs_one(number, length) for length in args.lengths for number in (2, 4)
            ]
        result["machine"] = machine()
    print(json.dumps(result))


if __name__ == "__main__":
    try:
        main()
    finally:
        mx.clear_streams()
