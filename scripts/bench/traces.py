#!/usr/bin/env python3
"""Replay real coding-agent traces through the prefix cache: uncached tokens a turn, bytes written.

The cache is the real one (look-up, memory tier, write-behind, block store) over a file system in
memory; the state of a token is a checksum of its prefix, and every hit is compared with it, so a
wrong hit ends the run. Each id of a trace is 64 random tokens. The tokens of a prompt after its
last whole id begin as the next prompt goes on, where that one has the same ids up to there. Replies
are random tokens that no later prompt holds; the traces don't say how long they took, so they are
there at once, and at given rates where that matters. Prints progress on stderr and one JSON
document on the last line; `--out` keeps it with a table.
"""

import argparse
import json
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from omlx.cache.block import Chain
from omlx.storage.layout import parse_block_name
from scripts.bench.measure import ROOT, machine
from tests.fakes.blocks import MANY
from tests.fakes.cache import Rig
from tests.fakes.fs import MemoryFileSystem

ID_TOKENS = 64
NUM_VOCAB = 50_000
SIZES = [64, 128, 256, 512, 1024, 2048, 4096]
RESTART_EVERY = 5
STEP_S = 1e-3  # the clock moves at least so much, or rounding could stop it


@dataclass
class Turn:
    """One request: what it sends and gets, and how much of it any earlier one had."""

    at: float
    prompt: np.ndarray
    reply: np.ndarray
    shared: int
    gap_s: float


@dataclass(frozen=True)
class Case:
    """How a conversation is replayed; `rate` is decode tokens per second, 0 for at once."""

    has_tail: bool = True
    restarts: bool = False
    rate: float = 0.0
    memory_bytes: int = MANY


@dataclass
class Figures:
    """What replays of conversations gave; lists have one number a turn after the first."""

    uncached: list[int] = field(default_factory=list)
    whole: list[int] = field(default_factory=list)
    ideal: list[int] = field(default_factory=list)
    max_excess: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    from_disk: int = 0
    unique_tokens: int = 0
    written_tokens: int = 0
    kept_tokens: int = 0

    def summary(self):
        return {
            **spread(self.uncached),
            "max_excess": self.max_excess,
            "hit_rate": round(self.cached_tokens / self.prompt_tokens, 4),
            "disk_share_of_hits": round(self.from_disk / self.cached_tokens, 3),
            "written_per_unique": round(self.written_tokens / self.unique_tokens, 4),
            "kept_per_unique": round(self.kept_tokens / self.unique_tokens, 4),
        }


CASES = {
    "replies at 50 tokens/s": Case(rate=50.0),
    "replies at 20 tokens/s": Case(rate=20.0),
    "a restart every 5 turns": Case(restarts=True),
    "memory tier 0": Case(memory_bytes=0),
}


def spread(values):
    return {"mean": round(statistics.fmean(values), 1), "median": statistics.median(values)}


class CountingFileSystem(MemoryFileSystem):
    """A file system that is never full and counts the tokens of the blocks that appear."""

    written_tokens = 0

    def rename(self, source: Path, target: Path) -> None:
        super().rename(source, target)
        name = parse_block_name(target.name)
        self.written_tokens += name.count if name else 0

    def used_bytes(self) -> int:
        return 0


def common(a, b):
    n = min(len(a), len(b))
    differs = a[:n] != b[:n]
    return int(differs.argmax()) if differs.any() else n


def load_turns(path: Path, seed: int) -> list[Turn]:
    """The requests of one trace as tokens."""
    trace = json.loads(path.read_text())
    assert trace["block_size"] == ID_TOKENS
    requests = trace["requests"]
    ids = [[i for a, b in r["blocks"] for i in range(a, b + 1)] for r in requests]
    rng = np.random.default_rng([seed, int(path.stem.rpartition("-")[2])])
    table = rng.integers(0, NUM_VOCAB, (max(map(max, ids)) + 1, ID_TOKENS), dtype=np.uint32)
    turns: list[Turn] = []
    for i, request in enumerate(requests):
        own = ids[i]
        num_rest = request["in"] - ID_TOKENS * len(own)
        following = ids[i + 1] if i + 1 < len(ids) else []
        if len(following) > len(own) and following[: len(own)] == own:
            rest = table[following[len(own)]][:num_rest]
        else:
            rest = rng.integers(0, NUM_VOCAB, num_rest, dtype=np.uint32)
        prompt = np.concatenate([table[own].ravel(), rest])
        reply = rng.integers(0, NUM_VOCAB, request["out"], dtype=np.uint32)
        shared = max((common(prompt, turn.prompt) for turn in turns), default=0)
        gap_s = requests[i + 1]["t"] - request["t"] if i + 1 < len(requests) else float("inf")
        turns.append(Turn(request["t"], prompt, reply, shared, gap_s))
    return turns


class Replay(Rig):
    """One conversation through one cache; its I/O jobs run at once, its clock is the trace's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.started = self.clock.now
        self.fs = CountingFileSystem(self.clock)
        self.start()

    def pass_until(self, at: float) -> None:
        """Let the time of the trace pass, writing what is due on the way."""
        end = self.started + at
        while True:
            wait_s = self.prefix.tick()
            self.settle()
            if wait_s is None or self.clock.now + max(wait_s, STEP_S) > end:
                break
            self.clock.now += max(wait_s, STEP_S)
        self.clock.now = max(self.clock.now, end)

    def decode(self, chain: Chain, turn: Turn, case: Case) -> None:
        """Keep the reply block by block as it grows, and at its end the tail."""
        whole = np.concatenate([turn.prompt, turn.reply])
        first, size = len(turn.prompt), self.block_size
        seconds = min(len(turn.reply) / case.rate, turn.gap_s - STEP_S) if case.rate else 0.0
        for end in range(first + -first % size, len(whole) + 1, size):
            self.pass_until(turn.at + seconds * (end - first) / len(turn.reply))
            self.keep(chain, whole[:end], has_tail=False)
        self.pass_until(turn.at + seconds)
        self.prefix.release(chain)
        self.keep(chain, whole, has_tail=case.has_tail)

    def run(self, turns: list[Turn], figures: Figures, case: Case) -> None:
        """Send all turns and count."""
        for i, turn in enumerate(turns):
            self.pass_until(turn.at)
            if case.restarts and i and i % RESTART_EVERY == 0:
                self.restart()
            hit = self.look_up(turn.prompt)
            num_whole = len(hit.chain.names) * self.block_size
            self.keep(hit.chain, turn.prompt[:-1], has_tail=case.has_tail, is_held=True)
            self.decode(hit.chain, turn, case)
            length = len(turn.prompt)
            if i:
                figures.uncached.append(length - hit.num_tokens)
                figures.whole.append(length - num_whole)
                figures.ideal.append(length - turn.shared)
            figures.max_excess = max(figures.max_excess, turn.shared - hit.num_tokens)
            figures.prompt_tokens += length
            figures.cached_tokens += hit.num_tokens
            figures.from_disk += hit.from_disk
            figures.unique_tokens += length - turn.shared + len(turn.reply)
        self.pass_until(turns[-1].at + 3600.0)
        figures.written_tokens += self.fs.written_tokens
        figures.kept_tokens += sum(self.on_disk())


def replay(conversations: list[list[Turn]], size: int, name: str, case: Case) -> Figures:
    """All conversations, each through a cache of its own."""
    figures, started = Figures(), time.perf_counter()
    for turns in conversations:
        Replay(block_size=size, memory_bytes=case.memory_bytes).run(turns, figures, case)
    seconds = time.perf_counter() - started
    print(f"block {size}, {name}: {figures.summary()}, {seconds:.1f} s", file=sys.stderr)
    return figures


def measure(args):
    paths = sorted(args.traces.glob("agent-*.json"))
    conversations = [load_turns(path, args.seed) for path in paths]
    rows, first = [], None
    for size in args.sizes:
        figures = replay(conversations, size, "tails", Case())
        without = replay(conversations, size, "no tails", Case(has_tail=False))
        first = first or figures
        rows.append(
            {
                "block_size": size,
                "tails": figures.summary(),
                "no_tails": without.summary(),
                "whole_blocks": spread(figures.whole),
            }
        )
    return {
        "what": "traces",
        "machine": machine(),
        "traces": len(paths),
        "turns": sum(len(turns) - 1 for turns in conversations),
        "seed": args.seed,
        "write_delay_s": Rig.delay_s,
        "unique_tokens": first.unique_tokens,
        "ideal": spread(first.ideal),
        "sizes": rows,
        "cases_256": {
            name: replay(conversations, 256, name, case).summary() for name, case in CASES.items()
        },
    }


def table(result):
    """The figures for people."""
    ideal = result["ideal"]
    lines = [
        "# Traces of coding agents through the prefix cache",
        "",
        f"Made by `scripts/bench/traces.py`: {result['traces']} conversations of kv-cache-tester, "
        f"{result['turns']} turns after the first. Uncached tokens a turn, mean / median; the "
        f"ideal, the longest common prefix with any earlier request, is {ideal['mean']:,.0f} / "
        f"{ideal['median']:,.0f}. *Whole blocks* is what a cache without cuts and tails would "
        "leave. *Excess* is the most tokens that any turn computed beyond the ideal. *Written* is "
        "bytes of state written over unique bytes (replies included), with a write delay of "
        f"{result['write_delay_s']:g} s by the traces' clock, a reply being there at once.",
        "",
        "| block | tails | hit rate | excess | written | no tails | hit rate | excess | written "
        "| whole blocks |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in result["sizes"]:
        cells = [f"{row['block_size']}"]
        for kind in ("tails", "no_tails"):
            f = row[kind]
            cells += [
                f"{f['mean']:,.0f} / {f['median']:,.0f}",
                f"{f['hit_rate']:.4f}",
                f"{f['max_excess']:,}",
                f"{f['written_per_unique']:.3f}",
            ]
        whole = row["whole_blocks"]
        cells.append(f"{whole['mean']:,.0f} / {whole['median']:,.0f}")
        lines.append("| " + " | ".join(cells) + " |")
    lines += [
        "",
        "Blocks of 256 with tails, other cases:",
        "",
        "| case | uncached | hit rate | excess | hits from disk | written |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, f in result["cases_256"].items():
        lines.append(
            f"| {name} | {f['mean']:,.0f} / {f['median']:,.0f} "
            f"| {f['hit_rate']:.4f} | {f['max_excess']} | {f['disk_share_of_hits']:.0%} "
            f"| {f['written_per_unique']:.3f} |"
        )
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=Path, default=ROOT / "tests" / "data" / "traces")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="block sizes")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--out", type=Path, help="folder for traces.json and traces.md")
    args = parser.parse_args()
    result = measure(args)
    if args.out:
        (args.out / "traces.json").write_text(json.dumps(result, indent=1) + "\n")
        (args.out / "traces.md").write_text(table(result))
    print(json.dumps(result))


if __name__ == "__main__":
    main()
