#!/usr/bin/env python3
"""What quantization costs: KL, perplexity and top-1 agreement on held-out text, by size, ours
against mlx_lm.convert (uniform, mixed recipes) and its dynamic_quant at the same number of bytes.
Prints progress on stderr and one JSON document on the last line.

The package's weights lie on a grid of four bits, which is no question for a quantizer: up to five
bits the reference is dithered by up to half a step of that grid, seeded; above, as it is.
Ours is compared at the peer's bytes or fewer: where it loses with fewer, it is made again.

Each piece of the work is a process with one thread, `--jobs` at a time; `--work DIR` keeps what
they found, and another run with the same options goes on from there.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from omlx.bench.machine import describe  # noqa: E402
from scripts.bench.quantizing.jobs import (  # noqa: E402
    Job,
    Row,
    Worker,
    again,
    from_text,
    jobs_of,
    to_text,
)

_ONE_THREAD = {name: "1" for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")}
_SAME = 0.003  # sizes that differ by less are the same


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Course:
    """All jobs of a run, several at a time, each in a process of its own."""

    def __init__(self, folder: Path, args: argparse.Namespace) -> None:
        self._folder = folder
        self._options = {"tokens": args.tokens, "calibration_tokens": args.calibration_tokens}
        self._jobs = args.jobs

    def rows(self, jobs: list[Job]) -> list[Row]:
        """The rows of jobs, in their order."""
        with ThreadPoolExecutor(self._jobs) as pool:
            return [row for found in pool.map(self._done, jobs) for row in found]

    def _done(self, job: Job) -> list[Row]:
        kept = self._folder / f"rows-{job.label}.json"
        if not kept.exists():
            self._run(job, kept)
        rows: list[Row] = json.loads(kept.read_text())
        for row in rows:
            say(f"{job.label}: {shown(row)}")
        return rows

    def _run(self, job: Job, kept: Path) -> None:
        fresh = kept.with_suffix(".new")
        command = [sys.executable, str(Path(__file__).resolve()), "--job", to_text(job)]
        command += ["--work", str(self._folder), "--rows", str(fresh)]
        command += ["--options", json.dumps(self._options)]
        log = kept.with_suffix(".log")
        with log.open("wb") as out:
            done = subprocess.run(
                command, cwd=ROOT, env={**os.environ, **_ONE_THREAD}, stdout=out, stderr=out,
                check=False,
            )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"{job.label} failed:\n{log.read_text()[-3000:]}")
        fresh.rename(kept)


def shown(row: Row) -> str:
    if "error" in row:
        return f"{row['side']}: {row['error']}"
    if "kl" not in row:
        return f"{row['side']}, {row['job_s']} s"
    return f"{row['side']}: KL {row['kl']:.4f} at {row['bytes'] / 1e6:.2f} MB, {row['job_s']} s"


def pairs(rows: list[Row]) -> list[dict[str, Any]]:
    """Each peer with ours of at most its bytes, the largest there is."""
    found: list[dict[str, Any]] = []
    ours = [row for row in rows if row["side"] == "ours" and "kl" in row]
    for row in rows:
        if "kl" not in row or row["side"] == "ours":
            continue
        mine = [
            own for own in ours
            if all(own[key] == row[key] for key in ("seed", "dithered"))
            and own["bytes"] <= row["bytes"]
        ]  # fmt: skip
        own = max(mine, key=lambda one: one["bytes"])
        keys = ("kl", "kl_error", "perplexity", "top1", "bytes")
        found.append({
            "seed": row["seed"], "dithered": row["dithered"], "bits": row.get("bits"),
            "peer": row["side"], "theirs": {key: row[key] for key in keys},
            "ours": {key: own[key] for key in keys}, "ratio": own["kl"] / row["kl"],
            "fewer_bytes": 1 - own["bytes"] / row["bytes"],
        })  # fmt: skip
    return found


def unequal(rows: list[Row]) -> list[Job]:
    """Ours once more where it lost to a peer with fewer bytes, with as many."""
    return [
        again({**pair, "bytes": pair["theirs"]["bytes"]})
        for pair in pairs(rows)
        if pair["ratio"] >= 1 and pair["fewer_bytes"] > _SAME
    ]


def run_job(args: argparse.Namespace) -> None:
    import mlx.core as mx

    rows = Worker(Path(args.work), json.loads(args.options)).run(from_text(args.job))
    Path(args.rows).write_text(json.dumps(rows))
    mx.clear_streams()


def whole(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    started = time.monotonic()
    bits = [float(one) for one in args.bits.split(",")]
    course = Course(folder, args)
    spread = [float(one) for one in args.spread.split(",")]
    first, then = jobs_of(bits, spread, args.seeds, args.peers.split(","))
    rows = course.rows(first)
    rows += course.rows(then)
    rows += course.rows(unequal(rows))
    names = ("bits", "spread", "seeds", "tokens", "peers", "calibration_tokens", "jobs")
    return {
        "machine": describe(),
        "options": {name: getattr(args, name) for name in names},
        "model": "SmolLM2-135M-Instruct",
        "seconds": round(time.monotonic() - started),
        "pairs": pairs(rows),
        "rows": rows,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bits", default="2,2.5,3,3.5,4,4.5,5,6,8")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--spread", default="3,4,5", help="The targets of seeds after the first.")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--peers", default="uniform,mixed,dynamic")
    parser.add_argument("--calibration-tokens", type=int, default=4096)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--work", help="A folder to keep what was found in.")
    for name in ("--job", "--rows", "--options"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        run_job(args)
        return
    if args.work:
        Path(args.work).mkdir(parents=True, exist_ok=True)
        document = whole(Path(args.work), args)
    else:
        with tempfile.TemporaryDirectory(prefix="omlx-quantize-") as name:
            document = whole(Path(name), args)
    print(json.dumps(document))


if __name__ == "__main__":
    main()
