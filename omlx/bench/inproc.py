"""A model in a process of its own without a server: what the engine alone does.

Run as `python -m omlx.bench.inproc PLAN OUT`: each line that it adds to OUT is one JSON object.
Knows nothing about HTTP or text; prompts are random token ids.
"""

import json
import os
import queue
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from omlx.bench.failure import BenchError
from omlx.bench.process import Program, python_path
from omlx.bench.workload import token_ids
from omlx.engine.blas import preload_library, with_preload

_LINE_S = 3600.0
_LOAD_S = 1800.0
_WARM_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Job:
    """One request: a prompt of so many tokens, and so many to decode after the first."""

    num_tokens: int
    num_decode: int
    round_idx: int


@dataclass(frozen=True, slots=True)
class Timed:
    """What became of it: seconds to the first token, and from there to the last.

    `prefill_s` is the part of `ttft_s` in which the prompt was computed.
    """

    num_tokens: int
    num_decoded: int
    round_idx: int
    ttft_s: float
    prefill_s: float
    decode_s: float
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What the process does: with a model in a folder, these jobs, one after the other."""

    folder: str
    num_vocab: int
    seed: int
    jobs: tuple[Job, ...]
    max_active: int = 8


@contextmanager
def running(plan: Plan) -> Generator[Iterator[Timed]]:
    """The results of a plan as they come, from a process that is gone afterwards; BenchError."""
    with tempfile.TemporaryDirectory(prefix="omlx-bench-") as name:
        folder = Path(name)
        path, out = folder / "plan.json", folder / "out.jsonl"
        path.write_text(json.dumps(asdict(plan)))
        out.touch()
        program = Program(
            [sys.executable, "-m", "omlx.bench.inproc", str(path), str(out)],
            name="the process of the engine",
            env=child_environment(),
            cwd=folder,
        )
        with program:
            yield map(_timed, lines(program, out, len(plan.jobs)))


def _timed(line: dict[str, float]) -> Timed:
    whole = {"num_tokens", "num_decoded", "round_idx", "cached_tokens"}
    figures: dict[str, Any] = {k: int(v) if k in whole else v for k, v in line.items()}
    return Timed(**figures)


def lines(program: Program, out: Path, number: int) -> Iterator[dict[str, float]]:
    """So many JSON lines that a program adds to a file, as they come; BenchError if it ends."""
    done = 0
    while done < number:
        program.wait_until(lambda n=done: out.read_bytes().count(b"\n") > n, timeout_s=_LINE_S)
        for line in out.read_bytes().splitlines()[done:]:
            yield cast(dict[str, float], json.loads(line))
            done += 1


def child_environment() -> dict[str, str]:
    """The environment of a process that computes, as an engine has it; no setting gets in."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("OMLX_")}
    return with_preload(python_path(kept), preload_library("auto"))


def main(arguments: Sequence[str]) -> int:
    """What the process does; the exit code."""
    raw = json.loads(Path(arguments[0]).read_text())
    jobs = tuple(Job(**job) for job in raw.pop("jobs"))
    plan = Plan(**raw, jobs=jobs)
    with (
        tempfile.TemporaryDirectory(prefix="omlx-bench-") as store,
        Path(arguments[1]).open("a") as out,
    ):
        engine = _Engine(plan, store)
        try:
            engine.time(Job(_WARM_TOKENS, 2, -1))  # the first request is not counted
            for job in plan.jobs:
                out.write(json.dumps(asdict(engine.time(job))) + "\n")
                out.flush()
        finally:
            engine.stop()
    return 0


class _Engine:
    """One engine with an empty store; its events come with the time at which they did."""

    def __init__(self, plan: Plan, store: str) -> None:
        from omlx.engine.config import EngineConfig
        from omlx.engine.engine import LocalEngine
        from omlx.engine.request import EngineState, Event

        self._plan = plan
        self._events: queue.SimpleQueue[tuple[float, Sequence[Event]]] = queue.SimpleQueue()
        config = EngineConfig(
            Path(plan.folder).name, plan.folder, cache_dir=store, max_active=plan.max_active
        )
        self._engine = LocalEngine(config)
        self._engine.start(lambda events: self._events.put((time.monotonic(), events)))
        deadline = time.monotonic() + _LOAD_S
        while self._engine.state() is not EngineState.READY:
            if self._engine.state() is EngineState.FAILED or time.monotonic() > deadline:
                raise BenchError(f"the model does not load: {self._engine.error() or 'too slow'}")
            time.sleep(0.02)

    def time(self, job: Job) -> Timed:
        """Run one request and time it."""
        from omlx.engine.request import EngineRequest, Failed, Finished, RequestStats, Token

        name = f"{job.num_tokens}-{job.round_idx}"
        seed = f"{self._plan.seed} inproc {name}"
        tokens = token_ids(job.num_tokens, seed=seed, num_vocab=self._plan.num_vocab)
        began = time.monotonic()
        self._engine.submit(EngineRequest(name, tuple(tokens), job.num_decode + 1))
        times: list[float] = []
        stats: RequestStats | None = None
        while stats is None:
            now, events = self._events.get(timeout=_LINE_S)
            for event in events:
                if isinstance(event, Token):
                    times.append(now)
                elif isinstance(event, Failed):
                    raise BenchError(f"a request of {job.num_tokens} tokens: {event.message}")
                elif isinstance(event, Finished):
                    stats = event.stats
        return Timed(
            num_tokens=job.num_tokens,
            num_decoded=len(times) - 1,
            round_idx=job.round_idx,
            ttft_s=times[0] - began,
            prefill_s=stats.prefill_s,
            decode_s=times[-1] - times[0],
            cached_tokens=stats.cached_memory + stats.cached_disk,
        )

    def stop(self) -> None:
        """End it; nothing more is written."""
        self._engine.stop(0.0)


if __name__ == "__main__":
    from omlx.errors import OmlxError

    try:
        code = main(sys.argv[1:])
    except OmlxError as error:
        print(f"error: {error.message}", file=sys.stderr)
        code = 1
    sys.exit(code)
