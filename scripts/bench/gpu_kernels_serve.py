#!/usr/bin/env python3
"""On a CUDA machine: what kernels give a user of `omlx serve`, against plain mlx-lm.

usage: gpu_kernels_serve.py TOKENIZER_DIR --out FILE [--records FILE] [--layers N]
                            [--rounds N] [--total SECONDS] [--tiny]

One and eight streams of a random 8B shape in 4 bits, over HTTP: omlx with its kernels, omlx without
them, mlx_lm.server; and mlx-lm within a process of its own, without HTTP, whose rate is that of
decoding alone. TOKENIZER_DIR is a model directory whose tokenizer the model borrows. FILE of
--records has the verdicts on kernels (kernels.py --records writes it); what it lacks is built first
with `omlx kernel build`. Every side goes through a short round that is not kept, since the first to
need a kernel of mlx waits for its compiler. Each round begins with another side and is in FILE once
it is over; none begins that would not end within --total. --tiny makes the model small, to see on
any machine that it runs.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "bench")]

import gpu_compare  # noqa: E402

from omlx.bench.compare import compare, turned  # noqa: E402
from omlx.bench.machine import describe  # noqa: E402
from omlx.bench.sides import Model, OwnSide  # noqa: E402
from omlx.bench.spread import paired_ratio  # noqa: E402
from omlx.bench.step import quiet  # noqa: E402
from omlx.bench.workload import Words  # noqa: E402
from omlx.models.text import TextModel  # noqa: E402
from omlx.settings.places import kernels_path  # noqa: E402

STREAMS = (1, 8)
REPLY = 384
OURS, PLAIN, SERVER, LIBRARY = "omlx", "omlx without kernels", "mlx-lm", "mlx-lm in-process"
LIBRARY_CODE = """
import json, sys
from scripts.bench.gpu_kernels_serve import library_rates
print(json.dumps(library_rates(sys.argv[1], int(sys.argv[2]))))
import mlx.core as mx
mx.clear_streams()
"""


def say(text):
    print(text, file=sys.stderr, flush=True)


def library_rates(model, num_reply):
    """Tokens a second that mlx-lm generates in this process, by rows, after a run that only warms
    up: its generator of one sequence and that of a batch, of which the faster one counts."""
    import mlx.core as mx
    from mlx_lm.generate import BatchGenerator, generate_step
    from mlx_lm.utils import load_model

    loaded, _ = load_model(Path(model))

    def batch(rows, num):
        generator = BatchGenerator(loaded, completion_batch_size=rows, prefill_batch_size=rows)
        prompts = mx.random.randint(0, 40_000, (rows, 64), key=mx.random.key(rows)).tolist()
        with generator.stats() as stats:
            generator.insert(prompts, [num] * rows)
            while generator.next_generated():
                pass
        generator.close()
        return stats.generation_tps

    def single(num):
        prompt = mx.random.randint(0, 40_000, (64,), key=mx.random.key(1))
        tokens = generate_step(prompt, loaded, max_tokens=num)
        next(tokens)
        began = time.perf_counter()
        count = sum(1 for _ in tokens)
        return count / (time.perf_counter() - began)

    found = {}
    for rows in STREAMS:
        batch(rows, 16)
        found[rows] = {"batch": batch(rows, num_reply)}
    single(16)
    found[1]["single"] = single(num_reply)
    return found


class Verdicts:
    """The file of the verdicts on kernels, with all of this device in it."""

    def __init__(self, given, folder):
        home = folder / "verdicts"
        self.path = kernels_path(home)
        self.path.parent.mkdir(parents=True)
        if given and given.is_file():
            shutil.copy(given, self.path)
        command = [sys.executable, "-m", "omlx", "kernel", "build"]
        env = {**os.environ, "OMLX_HOME": str(home)}
        subprocess.run(command, cwd=ROOT, env=env, stdout=sys.stderr, check=True)
        if not self.path.exists():  # a CPU, for which there is nothing to build
            self.path.write_text('{"format": 1, "records": []}')
        if given:
            shutil.copy(self.path, given)


class Kept:
    """What the rounds gave, by streams and side, and the file that it is kept in."""

    def __init__(self, out, config, reply):
        self.out = out
        self.rates = {str(num): {} for num in STREAMS}
        self.ttfts = {str(num): {} for num in STREAMS}
        self.head = {
            "what": "streams of an 8B shape in 4 bits, with kernels and without",
            "device": gpu_compare.device(),
            "machine": dict(describe()),
            "layers": config["num_hidden_layers"],
            "reply": reply,
        }
        self.failures, self.kernels, self.rounds = [], [], 0

    def add(self, report):
        """The figures of one round over HTTP."""
        for one in report.measures:
            into = {"rate": self.rates, "ttft": self.ttfts}.get(one.name)
            if into is not None and one.case.get("of") == "streams":
                by_side = into[str(one.label.concurrency)]
                by_side.setdefault(one.side, []).extend(round(v, 4) for v in one.samples)
        self.failures += [check.reason for check in report.checks if check.is_passed is False]

    def add_library(self, rates):
        """Those of mlx-lm within a process."""
        for rows, found in rates.items():
            side = self.rates[rows].setdefault(LIBRARY, [])
            side.append(round(max(found.values()), 4))

    def write(self):
        """Put all that there is into the file."""
        content = {
            **self.head,
            "rounds": self.rounds,
            "kernels": self.kernels,
            "failures": self.failures,
            "tokens_per_s": self.rates,
            "ttft_s": self.ttfts,
            "ratios": {num: ratios(by_side) for num, by_side in self.rates.items()},
        }
        self.out.write_text(json.dumps(content, indent=1) + "\n")
        return content


def ratios(by_side):
    """Of omlx with kernels to every other side, and to the better one of mlx-lm's."""
    ours = by_side.get(OURS, [])
    found = {}
    for side, rates in by_side.items():
        if side != OURS and ours and len(rates) == len(ours):
            one = paired_ratio(ours, rates)
            found[side] = {"ratio": one.ratio, "low95": one.low95, "high95": one.high95}
    peers = [statistics.median(by_side[side]) for side in (SERVER, LIBRARY) if by_side.get(side)]
    if ours and peers:
        found["plain mlx-lm"] = {"ratio": statistics.median(ours) / max(peers)}
    return found


def sides_of(model, verdicts):
    """omlx with kernels and without, and mlx-lm's server."""
    own, peer = gpu_compare.sides_of(model, max(STREAMS), verdicts.path)
    own.name = OURS
    plain = OwnSide(model, {**own.settings, "kernels.enabled": False}, name=PLAIN)
    return [own, plain, peer]


def in_process(path, num_reply):
    """Rates by rows of mlx-lm in a process of its own."""
    command = [sys.executable, "-c", LIBRARY_CODE, str(path), str(num_reply)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def measure(args, folder):
    """Rounds of all sides, as many as the time allows; what is kept of them."""
    deadline = time.monotonic() + args.total
    verdicts = Verdicts(args.records, folder)
    path = gpu_compare.make_model(
        "kernels", folder, args.tokenizer, is_tiny=args.tiny, layers=args.layers
    )
    say(f"model and verdicts are made, {deadline - time.monotonic():.0f} s left")
    model = Model(path, path.name, 40960, folder)
    text = TextModel.load(path)
    words = Words(lambda t: len(text.encode(t)))
    reply = 8 if args.tiny else REPLY
    limit_s = max(60.0, deadline - time.monotonic())
    plan = gpu_compare.plan_of("kernels", limit_s=limit_s, is_tiny=args.tiny)
    plan = replace(plan, streams=STREAMS, stream_reply=reply)
    sides = sides_of(model, verdicts)

    def one_round(plan, idx, on_step):
        plan = replace(plan, seed=plan.seed + idx)
        in_turn = turned(sides, idx)
        return compare(in_turn, plan, words, num_rounds=1, model=path.name, on_step=on_step)

    kept = Kept(args.out, json.loads((path / "config.json").read_text()), reply)
    first = gpu_compare.first_plan_of(plan)
    kept.head["not_kept"] = [check.reason for check in one_round(first, 90, quiet).checks]
    say(f"round that is not kept is over, {deadline - time.monotonic():.0f} s left")
    longest = 0.0
    for idx in range(args.rounds):
        began = time.monotonic()
        if idx and began + longest > deadline:
            break
        kept.add(one_round(plan, idx, gpu_compare.say))
        kept.kernels = [*sides[0].in_use]
        kept.add_library(in_process(path, reply))
        kept.rounds = idx + 1
        kept.write()
        longest = max(longest, time.monotonic() - began)
        say(f"round {idx + 1}: {json.dumps(kept.rates)}")
    return kept.write()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--records", type=Path, help="the verdicts on kernels, read and written")
    parser.add_argument("--layers", type=int, default=0, help="fewer than 36")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--total", type=float, default=480.0)
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    if not all((args.tokenizer / name).is_file() for name in gpu_compare.TEXT_FILES):
        parser.error(f"{args.tokenizer} holds no {' and '.join(gpu_compare.TEXT_FILES)}")
    if args.rounds < 1:
        parser.error("--rounds takes 1 or more")
    with tempfile.TemporaryDirectory() as name:
        print(json.dumps(measure(args, Path(name))))


if __name__ == "__main__":
    main()
