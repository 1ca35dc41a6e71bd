"""The whole of a quantization: measure, plan, round, write; taken up again where it was broken off.

Knows nothing about terminals.
"""

import shutil
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import psutil

from omlx import __version__
from omlx.errors import ModelError
from omlx.models.config import read_json
from omlx.models.fingerprint import fingerprint
from omlx.models.load import mlx_lm_version
from omlx.models.quantize import result
from omlx.models.quantize.calibration import Calibration
from omlx.models.quantize.check import measured_kl
from omlx.models.quantize.errors import from_plain
from omlx.models.quantize.formats import BY_LABEL
from omlx.models.quantize.passes import Passes
from omlx.models.quantize.plan import KEPT, Goal, Matrix, Plan, Planner, role_of
from omlx.models.quantize.rounds import Rounds
from omlx.models.quantize.runs import Runs
from omlx.models.quantize.source import Facts, check_config, facts, without_mtp
from omlx.models.quantize.stream import LayeredModel
from omlx.models.quantize.work import Work
from omlx.models.task import OnProgress
from omlx.units import format_size

# What the stubs of mlx leave untyped.
_mx: Any = mx
_MAX_ROUNDS = 6
_MARGIN = 0.9  # of what the last round says would do


@dataclass(frozen=True, slots=True)
class Options:
    """What to make of which model; `dtype` None: the model's own, float16 where that is float32."""

    model: Path
    out: Path
    goal: Goal
    calibration: Path | None = None
    tokens: int = 8192
    dtype: str | None = None
    requantize: bool = False
    plans_only: bool = False
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Made:
    """The plan, its KL on the calibration text where it was made, and whether a run that was broken
    off was taken up."""

    plan: Plan
    measured_kl: float | None
    dtype: str
    num_values: int
    groups: tuple[tuple[str, str, float, float], ...]  # role and part, format, bytes, KL
    is_resumed: bool


class Quantization:
    """One run; for one thread."""

    def __init__(self, options: Options, progress: OnProgress) -> None:
        self._options = options
        self._progress = progress
        check_config(
            read_json(options.model / "config.json"), options.model, requantize=options.requantize
        )
        if options.out.exists():
            raise ModelError(
                f"{options.out} is already there",
                hint="Remove it, or choose another folder with -o.",
            )
        layered = LayeredModel(options.model)
        self._num_layers, self._prefix = len(layered), layered.prefix
        self._facts: Facts = facts(layered)
        _check_memory(options.model, self._facts.needed_bytes(layered.prefix))
        own = self._facts.dtype
        self.dtype = options.dtype or ("float16" if own == "float32" else own)
        self._calibration = Calibration.load(
            options.model, options.calibration, max_tokens=options.tokens
        )

    def run(self) -> Made:
        """Do it; what is done is kept for another try whenever this ends early."""
        options = self._options
        work = Work(options.out, self._identity())
        try:
            batches = [mx.array([ids]) for ids in self._calibration.sequences]
            runs = Runs(lambda: LayeredModel(options.model), batches, work)
            self._measure(Passes(runs))
            planner, parts = self._planner(work)
            plan, kl = planner.plan(options.goal), None
            if not options.plans_only:
                plan, kl = self._rounded(runs, planner, plan)
                self._write(work, plan, parts, kl)
                work.remove()
            groups = tuple(self._groups(plan, parts))
            return Made(
                plan, kl, self.dtype, self._facts.num_values, groups, is_resumed=work.is_resumed
            )
        finally:
            work.leave()

    def _rounded(self, runs: Runs, planner: Planner, plan: Plan) -> tuple[Plan, float]:
        """Round by the plan, and measure; where a quality is asked for, by another plan until it is
        reached: the estimate is one, and low where errors are large."""
        wanted = self._options.goal.kl
        limit = wanted
        for _ in range(_MAX_ROUNDS):
            self._check_room(plan, runs.work)
            self._round(runs, plan)
            kl = measured_kl(runs, plan.formats)
            if wanted is None or limit is None or kl <= wanted:
                return plan, kl
            limit = min(limit, plan.predicted_kl) * _MARGIN * wanted / kl
            plan = planner.plan(Goal(kl=limit))
        raise ModelError(
            f"--quality {wanted:g} was not reached: the last try, {plan.bits:.2f} bits a weight, "
            "was not near enough",
            hint="Ask for more bits with --bits, or give a longer --calibration.",
        )

    def _identity(self) -> Mapping[str, object]:
        """What decides the measurements: another goal takes them up again."""
        options = self._options
        return {
            "fingerprint": fingerprint(options.model, mlx_lm_version=mlx_lm_version()),
            "calibration": self._calibration.digest,
            "dtype": self.dtype,
            "seed": options.seed,
        }

    def _measure(self, passes: Passes) -> None:
        seed, total = self._options.seed, 2 * self._num_layers + 2
        done = [0]

        def part_done(stage: str) -> Callable[[], None]:
            def count() -> None:
                done[0] += 1
                self._progress(done[0], total, stage)

            return count

        passes.forward(part_done("run forward"))
        passes.tail(seed=seed, dtype=self.dtype)
        part_done("measure the head")()
        passes.backward(part_done("measure layers"), seed=seed, dtype=self.dtype)
        passes.head(seed=seed, dtype=self.dtype)
        part_done("measure embeddings")()

    def _planner(self, work: Work) -> tuple[Planner, list[Matrix]]:
        measured: dict[str, dict[str, tuple[float, float]]] = {}
        for stem in ("cost-tail.json", "cost-head.json"):
            for name, values in work.get_json(stem).items():
                measured[name] = _joined(measured.get(name, {}), values)
        for idx in range(self._num_layers):
            for name, values in work.get_json(f"cost-{idx:04d}.json").items():
                measured[f"{self._prefix}.{idx}.{name}"] = _joined({}, values)
        parts: list[Matrix] = []
        for name in sorted(self._facts.matrices):
            shape = self._facts.shapes[f"{name}.weight"]
            size = 1
            for length in shape:
                size *= length
            role = role_of(name, layer=self._layer_of(name), num_layers=self._num_layers)
            parts.append(Matrix(name, size, role, measured.get(name, {})))
        planner = Planner(
            parts,
            other_bytes=self._facts.other_bytes(self.dtype),
            num_values=self._facts.num_values,
            dtype=self.dtype,
        )
        return planner, parts

    def _layer_of(self, name: str) -> int | None:
        inside = name.removeprefix(f"{self._prefix}.")
        return int(inside.split(".")[0]) if inside != name else None

    def _check_room(self, plan: Plan, work: Work) -> None:
        needed = 2 * plan.nbytes  # the parts, and the shards made of them
        free = shutil.disk_usage(work.folder).free
        if free < needed:
            raise ModelError(
                f"there is no room for {self._options.out}: {format_size(needed)} are needed while "
                f"it is made, {format_size(free)} are free",
                hint="Free some, or choose another disk with -o.",
            )

    def _round(self, runs: Runs, plan: Plan) -> None:
        work, total = runs.work, self._num_layers + 1
        plan_id = {"formats": dict(plan.formats)}
        if not work.has("plan.json") or work.get_json("plan.json") != plan_id:
            for pattern in ("part-*.safetensors", "q-*.safetensors"):
                work.drop(*(path.name for path in work.folder.glob(pattern)))
            work.put_json("plan.json", plan_id)
        rounds = Rounds(runs, self._facts, formats=plan.formats, dtype=self.dtype)
        rounds.rest()
        self._progress(1, total, "round layers")
        layered = LayeredModel(self._options.model)
        for idx in range(self._num_layers):
            rounds.layer(layered, idx)
            self._progress(idx + 2, total, "round layers")

    def _write(self, work: Work, plan: Plan, parts: Sequence[Matrix], kl: float | None) -> None:
        options = self._options
        folder = work.path("result")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        files = sorted(work.folder.glob("part-*.safetensors"))
        result.write_shards(
            files, folder, progress=lambda done, total: self._progress(done, total, "write")
        )
        config, _ = without_mtp(read_json(options.model / "config.json"), self._facts.shapes)
        for key in ("quantization", "quantization_config"):
            config.pop(key, None)
        entry = result.quantization_entry(plan.formats)
        if entry:
            config |= {"quantization": entry, "quantization_config": entry}
        config["torch_dtype"] = self.dtype
        result.copy_others(options.model, folder)
        result.write_json(folder / "config.json", config)
        text = result.card(
            options.model.name,
            plan,
            kl=kl or 0.0,
            options={"dtype": self.dtype, "seed": options.seed, "omlx": __version__,
                     "calibration tokens": self._calibration.num_tokens},
            table=[
                f"| {what} | {label} | {nbytes / plan.nbytes:.1%} | {kl:.5f} |"
                for what, label, nbytes, kl in self._groups(plan, parts)
            ],
        )  # fmt: skip
        (folder / "README.md").write_text(text, "utf-8")
        options.out.parent.mkdir(parents=True, exist_ok=True)
        folder.rename(options.out)

    def _groups(self, plan: Plan, parts: Sequence[Matrix]) -> list[tuple[str, str, float, float]]:
        """What the plan says, by last name of the matrices and format."""
        sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
        for one in parts:
            label = plan.formats[one.name]
            nbytes = (
                one.num_values * {"float32": 4}.get(self.dtype, 2)
                if label == KEPT
                else BY_LABEL[label].nbytes(one.num_values, self.dtype)
            )
            entry = sums[one.name.rsplit(".", 1)[-1], label]
            entry[0] += nbytes
            entry[1] += one.costs[label][0] if label in one.costs else 0.0
        return [(name, label, *both) for (name, label), both in sorted(sums.items())]  # type: ignore[misc]


def _check_memory(path: Path, needed: int) -> None:
    total = psutil.virtual_memory().total
    if needed > total:
        raise ModelError(
            f"the largest layer of {path} needs about {format_size(needed)} of memory in float32,"
            f" and this machine has {format_size(total)}",
            hint="Quantize it on a larger machine: it would be killed half way here.",
        )


def _joined(
    before: Mapping[str, tuple[float, float]], values: Mapping[str, Sequence[float]]
) -> dict[str, tuple[float, float]]:
    """Costs of two uses of one matrix: nats add up, of the output errors the larger counts."""
    found: dict[str, tuple[float, float]] = {}
    for label, cost in from_plain(values).items():
        kl, relative = before.get(label, (0.0, 0.0))
        found[label] = (kl + cost.kl, max(relative, cost.relative))
    return found
