"""The pieces that a comparison is made of: each the work of one process, whose rows are a file."""

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from omlx.errors import ModelError
from omlx.models.quantize.plan import Goal
from omlx.models.quantize.run import Options, Quantization
from scripts.bench.quantizing import peers
from scripts.bench.quantizing.reference import Judge, dithered
from tests.models import demo_model

DITHERED_UP_TO = 5.0
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Job:
    """`kind`: "prepare", "ours" (at `bits`), "size" (ours of `name` bytes), "uniform", "recipe" (by
    its `name`) or "dynamic"."""

    kind: str
    seed: int
    is_dithered: bool
    bits: tuple[float, ...] = ()
    name: str = ""

    @property
    def label(self) -> str:
        """The stem of its file."""
        what = "-".join([self.kind, *([self.name] if self.name else []), *map(str, self.bits)])
        return f"{self.seed}{'d' if self.is_dithered else ''}-{what}"


def jobs_of(
    bits: list[float], spread: list[float], seeds: int, wanted: list[str]
) -> tuple[list[Job], list[Job]]:
    """What comes first, and what follows: all targets with seed 0, dithered or as they are, and
    those of `spread` with the other seeds, too. The longest jobs of what follows come first."""
    first: list[Job] = []
    then: list[Job] = []
    for seed, is_dithered in [*((seed, True) for seed in range(seeds)), (0, False)]:
        mine = [b for b in bits if (b <= DITHERED_UP_TO) is is_dithered]
        mine = [b for b in mine if not seed or b in spread]
        if mine:
            base = Job("prepare", seed, is_dithered)
            first.append(base)
            then += _jobs_of(base, mine, wanted)
    order = ("ours", "dynamic", "recipe", "uniform")
    return first, sorted(then, key=lambda job: order.index(job.kind))


def _jobs_of(base: Job, bits: list[float], wanted: list[str]) -> list[Job]:
    found = [replace(base, kind="ours", bits=(b,)) for b in bits]
    if "mixed" in wanted and base.is_dithered and not base.seed:
        found += [replace(base, kind="recipe", name=name) for name in peers.RECIPES]
    if "uniform" in wanted:
        found += [replace(base, kind="uniform", bits=(b,)) for b in bits if b in peers.UNIFORM]
    if "dynamic" in wanted:
        for levels in sorted({*peers.LEVELS.values()}):
            targets = tuple(b for b in bits if peers.LEVELS.get(b) == levels)
            found += [replace(base, kind="dynamic", bits=targets)] if targets else []
    return found


def again(row: Row) -> Job:
    """Ours with as many bytes as a peer's row says."""
    return Job("size", row["seed"], row["dithered"], name=str(int(row["bytes"])))


class Worker:
    """Does jobs in a folder that workers share."""

    def __init__(self, folder: Path, options: Mapping[str, Any]) -> None:
        self._folder = folder
        self._options = options

    def run(self, job: Job) -> list[Row]:
        """The rows of a job."""
        here = self._folder / f"{job.seed}{'d' if job.is_dithered else ''}"
        reference = here / "m" if job.is_dithered else demo_model()
        started = time.monotonic()
        if job.kind == "prepare":
            here.mkdir(exist_ok=True)
            shutil.rmtree(here / "new", ignore_errors=True)
            if job.is_dithered and not reference.exists():
                dithered(demo_model(), here / "new", job.seed).rename(reference)
            own = Judge(reference, here, self._options["tokens"]).record()
            self._ours(job, here, reference, "base", Goal(bits=8.0), plans_only=True)
            found: list[Row] = [{"side": "reference", "perplexity": own}]
        else:
            found = list(self._rows(job, here, reference))
        seconds = round(time.monotonic() - started, 1)
        shared = {"seed": job.seed, "dithered": job.is_dithered}
        return [{**shared, **row, "job_s": seconds} for row in found]

    def _rows(self, job: Job, here: Path, reference: Path) -> Iterator[Row]:
        judge = Judge(reference, here, self._options["tokens"])
        target = here / job.label
        shutil.rmtree(target, ignore_errors=True)
        if job.kind == "uniform":
            (bits,) = job.bits
            q_bits, group = peers.UNIFORM[bits]
            peers.converted(reference, target, q_bits=q_bits, q_group_size=group)
            yield _judged(judge, target, bits=bits, side=f"uniform {q_bits}/{group}")
        elif job.kind == "dynamic":
            levels = peers.LEVELS[job.bits[0]]
            for bits, path in peers.dynamic(reference, here, levels, list(job.bits)):
                name = f"dynamic_quant {levels[0]}-{levels[1]}"
                yield _judged(judge, path, bits=bits, side=name)
        elif job.kind == "recipe":
            peers.converted(reference, target, quant_predicate=job.name)
            yield _judged(judge, target, side=job.name)
        elif job.kind == "size":
            yield self._made(judge, job, here, reference, Goal(size_bytes=int(job.name)))
        else:
            (bits,) = job.bits
            yield {**self._made(judge, job, here, reference, Goal(bits=bits)), "bits": bits}

    def _made(self, judge: Judge, job: Job, here: Path, reference: Path, goal: Goal) -> Row:
        name = f"ours-{job.label}"
        try:
            self._ours(job, here, reference, name, goal, plans_only=False)
        except ModelError as error:  # what can't be reached is a row, too
            return {"side": "ours", "error": error.message}
        return _judged(judge, here / name, side="ours")

    def _ours(
        self, job: Job, here: Path, reference: Path, name: str, goal: Goal, *, plans_only: bool
    ) -> None:
        """Ours, with measurements that are made once for all sizes."""
        base, work = here / ".base.quantize", here / f".{name}.quantize"
        if name != "base":
            shutil.rmtree(work, ignore_errors=True)
            shutil.rmtree(here / name, ignore_errors=True)
            shutil.copytree(base, work, copy_function=os.link)  # files are never changed in place
        options = Options(
            reference, here / name, goal, tokens=self._options["calibration_tokens"],
            dtype="float16", plans_only=plans_only, seed=job.seed,
        )  # fmt: skip
        Quantization(options, lambda *_: None).run()


def _judged(judge: Judge, path: Path, **row: Any) -> Row:
    found = {**row, **judge.judged(path)}
    shutil.rmtree(path)
    return found


def to_text(job: Job) -> str:
    """A job as an argument."""
    return json.dumps(asdict(job))


def from_text(text: str) -> Job:
    """The job that `to_text` gave."""
    fields = json.loads(text)
    return Job(**{**fields, "bits": tuple(fields["bits"])})
