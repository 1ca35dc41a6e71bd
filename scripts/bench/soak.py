#!/usr/bin/env python3
"""A soak: real servers under mixed traffic, with budgets far too small, killed again and again.

Three servers share one cache directory and one home. Clients of both dialects converse, fork,
repeat, burst and leave; every answer is compared with a plain run's. Meanwhile commands prune,
verify and inspect the cache, and files are removed and damaged by hand. Every so often one or two
of the servers, or one of their engines, are killed with SIGKILL and started again on the same
directory and port; the third is left alone, so that what it gathers in a long life shows. Prints
progress on stderr and one JSON document on the last line, which says what was wrong.
"""

import argparse
import json
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from omlx.units import parse_size
from scripts.bench.measure import machine
from scripts.bench.soaking.hands import Hands
from scripts.bench.soaking.models import KINDS, write_models
from scripts.bench.soaking.reference import ReferenceProcess
from scripts.bench.soaking.servers import Server
from scripts.bench.soaking.traffic import Book, Client, Tally
from scripts.bench.soaking.watch import Watch, hold
from tests.live import run_omlx

MODELS_OF = {"first": ["kv", "state"], "second": ["kv", "window"], "steady": sorted(KINDS)}
STEADY = "steady"
SETTINGS = {
    "--block-size": "16",
    "--prefill-chunk": "64",
    "--max-concurrent-requests": "4",
    "--cache-min-free": "0",
    "--drain-timeout": "5s",
    "--log-level": "info",
}
KILLS = {"server": 4, "all": 4, "engine": 3, "stop": 1}
PROGRESS_S = 10.0
CONTROLS = 20
ORPHANS_S = 30.0
EARLY_SHARE = 0.2  # of the kills that hit the next life as well, while it starts


class Soak:
    """The servers, what works on them, and what is known at the end."""

    def __init__(self, folder, args, models_of=MODELS_OF):
        self.args = args
        self.models_of = models_of
        names = sorted({name for names in models_of.values() for name in names})
        self.rng = random.Random(args.seed)
        self.home, self.models = folder / "home", folder / "models"
        self.cache = self.home / "cache"
        self.max_bytes = int(parse_size(args.max_size))
        write_models(self.models, names)
        self.reference = ReferenceProcess(self.models)
        self.book = Book(self.models, names, self.reference)
        self.tally = Tally()
        self.kills = Counter()
        self.started = time.monotonic()
        self.servers = [self._server(folder, name) for name in models_of]
        self.watch = Watch(self.cache, self.max_bytes, self.servers)
        self.hands = Hands(
            self.cache, self.home, self.models, max_bytes=self.max_bytes, seed=args.seed + 1
        )
        self.clients = [
            Client(i, args.seed, servers=self.servers, book=self.book, tally=self.tally)
            for i in range(args.clients)
        ]

    def _server(self, folder, name):
        """A server with a folder of links to its models."""
        own = folder / name
        own.mkdir()
        for model in self.models_of[name]:
            (own / model).symlink_to(self.models / model)
        args = [text for pair in SETTINGS.items() for text in pair]
        args += ["--model-dir", str(own), "--cache-max-size", str(self.max_bytes)]
        return Server(name, self.models_of[name], args, self.home, random.Random(self.rng.random()))

    def run(self):
        """All of it."""
        is_over = threading.Event()
        try:
            self._start_all()
            self.started = time.monotonic()
            for one in (self.watch, self.hands, *self.clients):
                one.start()
            threading.Thread(target=self._report, args=(is_over,), daemon=True).start()
            self._kill_until(self.started + self.args.minutes * 60)
            for client in self.clients:
                client.stop()
            for client in self.clients:
                client.join()
            self.hands.stop()
            self._end()
        finally:
            is_over.set()
            self._leave_nothing()

    def _leave_nothing(self):
        """End every thread and process, whatever has happened."""
        for server in self.servers:
            if server.is_alive:
                server.kill("all")
        for one in (*self.clients, self.hands, self.watch):
            one.stop()

    def _kill_until(self, deadline):
        while True:
            pause_s = self.args.kill_every * self.rng.uniform(0.8, 1.2)
            left_s = deadline - time.monotonic()
            if left_s < pause_s:
                time.sleep(max(0.0, left_s))
                return
            time.sleep(pause_s)
            mortal = [server for server in self.servers if server.name != STEADY]
            for server in self.rng.choice([mortal, *([server] for server in mortal)]):
                self._kill(server)

    def _kill(self, server):
        how = self.rng.choices(list(KILLS), list(KILLS.values()))[0]
        self._say(f"{server.name}: {how}")
        self.kills[how] += 1
        server.kill(how)
        if self.rng.random() < EARLY_SHARE:
            server.start(wait=False)
            time.sleep(self.rng.uniform(0, 4))
            self.kills["while starting"] += 1
            server.kill(self.rng.choice(["server", "all"]))
        server.start()

    def _start_all(self):
        for server in self.servers:
            server.start(wait=False)
        for server in self.servers:
            server.wait_models()

    def _end(self):
        """Stop, start and stop once more, so that what killed processes left is found."""
        for server in self.servers:
            server.kill("stop")
        self._start_all()
        for server in self.servers:
            server.kill("stop")
            server.join()
        deadline = time.monotonic() + ORPHANS_S
        while any(server.orphans for server in self.servers) and time.monotonic() < deadline:
            time.sleep(0.2)
            for server in self.servers:
                server.check_orphans()

    def _report(self, is_over):
        while not is_over.wait(PROGRESS_S):
            counts, held = self.tally.counts, self.watch.held[-1:]
            share = counts["cached_tokens"] / max(1, counts["prompt_tokens"])
            self._say(
                f"{counts['compared']} answers, {counts['wrong']} wrong, "
                f"{counts['errors']} errors, "
                f"{counts['broken_by_a_kill']} broken, {share:.0%} cached, "
                f"{self.reference.num_known} references, held {held}, "
                f"{sum(self.hands.done.values())} deeds by hand"
            )

    def _say(self, text):
        print(f"{time.monotonic() - self.started:6.0f} s  {text}", file=sys.stderr, flush=True)

    def result(self) -> dict[str, Any]:
        """The figures, and what was wrong."""
        verified = run_omlx("cache", "verify", "--repair", "--json", home=self.home)
        left = hold(self.cache)
        lives = [life for server in self.servers for life in server.lives]
        problems = [*self.hands.problems, *(p for server in self.servers for p in server.problems)]
        problems += [f"a client failed: {c.failure!r}" for c in self.clients if c.failure]
        growth = self.watch.growth(self.args.warm_up)
        held = self.watch.held
        return {
            "what": "soak",
            "machine": machine(),
            "seed": self.args.seed,
            "minutes": self.args.minutes,
            "kill_every_s": self.args.kill_every,
            "kills": dict(self.kills),
            "lives": len(lives),
            "answers": dict(sorted(self.tally.counts.items())),
            "references": {"prompts": self.reference.num_known, "cut_at_ties": self.book.num_ties},
            "control": self.book.control(CONTROLS, self.rng),
            "wrong": self.tally.wrong,
            "errors": self.tally.errors,
            "problems": problems,
            "cache": _totals(lives),
            "commands": dict(self.hands.done),
            "files_touched_by_hand": self.hands.num_files,
            "directory": {
                "budget_bytes": self.max_bytes,
                "samples": len(held),
                "not_still": self.watch.unstill,
                "processes": self.watch.most_processes,
                "largest_file": max(one.largest for one in held),
                "max_bytes": max(one.num_bytes for one in held),
                "median_bytes": statistics.median(one.num_bytes for one in held),
                "max_files": max(one.num_files for one in held),
                "num_over": len(self.watch.over),
                "over": self.watch.over[:10],
                "bytes_left": left.num_bytes,
                "temps_left": left.num_temps,
                "temps_in_state": len(list((self.home / "state").glob(".tmp-*"))),
                "verify_after": verified.returncode,
            },
            "memory": {**_across(growth), "lives": growth},
        }


def _totals(lives):
    """Counters of all engines of all lives, as last seen."""
    total = Counter()
    for life in lives:
        for counters in life.counters.values():
            for name, value in counters.items():
                if isinstance(value, dict):
                    total.update({f"{name} {key}": number for key, number in value.items()})
                else:
                    total[name] += value
    return dict(total)


def _across(rows):
    """Growth within lives and from the first lives to the last, by process, in bytes."""
    found = {}
    for name in sorted({row["process"] for row in rows}):
        own = [row for row in rows if row["process"] == name and row["server"] != STEADY]
        if not own:
            continue
        third = max(1, len(own) // 3)
        within = [row["rss_last"] - row["rss_first"] for row in own]
        found[name] = {
            "lives": len(own),
            "rss_median": round(statistics.median(row["rss_last"] for row in own)),
            "within_median": round(statistics.median(within)),
            "within_max": max(within),
            "over_lives": round(
                statistics.median(row["rss_last"] for row in own[-third:])
                - statistics.median(row["rss_last"] for row in own[:third])
            ),
            "fds_within_max": max(row["fds_last"] - row["fds_first"] for row in own),
            "fds_max": max(row["fds_max"] for row in own),
        }
    steady = {row["process"]: row for row in rows if (row["server"], row["life"]) == (STEADY, 0)}
    return {"by_process": found, "steady": steady}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=20)
    parser.add_argument("--kill-every", type=float, default=120, help="seconds")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--max-size", default="4MB", help="budget of the disk tier")
    parser.add_argument("--warm-up", type=float, default=30, help="seconds of each life")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # by an exception, so that all ends
    with tempfile.TemporaryDirectory(prefix="omlx-soak-") as name:
        soak = Soak(Path(name), args)
        try:
            soak.run()
            result = soak.result()
        finally:
            soak.reference.close()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
