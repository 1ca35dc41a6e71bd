"""Several servers under the same work: rounds in turns, a fresh process each, ratios with spread.

Knows nothing about where the servers come from or how a report is shown.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

from omlx.bench.course import Course, Plan, Sample, make_prompts
from omlx.bench.machine import describe
from omlx.bench.result import Check, Label, Measure, Ratio, Report, Value
from omlx.bench.sides import Side
from omlx.bench.spread import paired_ratio
from omlx.bench.step import OnStep, Step, quiet
from omlx.bench.workload import Words

KIND = "compare"

# One figure: its name, unit, label and case.
_Key = tuple[str, str, Label, tuple[tuple[str, Value], ...]]


@dataclass
class _Kept:
    """What the rounds of all sides gave; `values` by figure, side and round."""

    values: dict[_Key, dict[str, dict[int, float]]] = field(
        default_factory=dict[_Key, dict[str, dict[int, float]]]
    )
    failures: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    notes: dict[str, None] = field(default_factory=dict[str, None])

    def add(self, side: str, round_idx: int, samples: Sequence[Sample]) -> None:
        """Keep the samples of a side's round (mutates)."""
        for sample in samples:
            key = (sample.name, sample.unit, sample.label, tuple(sample.case.items()))
            by_side = self.values.setdefault(key, {})
            by_side.setdefault(side, {})[round_idx] = sample.value


def compare(
    sides: Sequence[Side],
    plan: Plan,
    words: Words,
    *,
    num_rounds: int,
    model: str,
    is_over: Callable[[], bool] = lambda: False,
    on_step: OnStep = quiet,
) -> Report:
    """Measure all sides in `num_rounds` rounds; ratios are to the first one.

    Each round begins with another side, and no two servers that are started here run at once. A
    side that fails loses the rest of its round, which the report says. No further round begins
    once `is_over`.
    """
    kept = _Kept()
    total = num_rounds * len(sides)
    done = 0
    for round_idx in range(num_rounds):
        if round_idx and is_over():
            kept.notes[f"{round_idx} of {num_rounds} rounds: the time was over"] = None
            break
        prompts = make_prompts(plan, words, round_idx)
        for side in turned(sides, round_idx):
            where = f"round {round_idx + 1}, {side.name}"
            said = partial(_say, on_step, where, done, total)
            course = Course(side, plan, prompts, said)
            course.run()
            done += 1
            kept.add(side.name, round_idx, course.samples)
            kept.notes.update(dict.fromkeys(course.notes))
            kept.failures.setdefault(side.name, []).extend(
                f"round {round_idx + 1}, {failure}" for failure in course.failures
            )
    on_step(Step("done", total, total))
    return Report(
        kind=KIND,
        seed=plan.seed,
        model=model,
        machine=describe(),
        options=_options(plan, num_rounds),
        sides={side.name: side.facts() for side in sides},
        measures=tuple(_measures(kept, sides)),
        ratios=tuple(_ratios(kept, sides)),
        checks=tuple(_checks(kept, sides)),
        notes=tuple(kept.notes),
    )


def _say(on_step: OnStep, where: str, done: int, total: int, what: str) -> None:
    on_step(Step(f"{where}: {what}", done, total))


def turned(sides: Sequence[Side], round_idx: int) -> list[Side]:
    """The order of a round: each begins with the next side, and every second one goes back."""
    first = round_idx % len(sides)
    order = [*sides[first:], *sides[:first]]
    return order if round_idx % 2 == 0 else [order[0], *order[:0:-1]]


def _options(plan: Plan, num_rounds: int) -> Mapping[str, object]:
    options = asdict(plan)
    options["traces"] = [trace.name for trace in plan.traces]
    del options["seed"]
    return {"rounds": num_rounds, **options}


def _measures(kept: _Kept, sides: Sequence[Side]) -> list[Measure]:
    return [
        Measure(name, unit, tuple(by_round.values()), label, side.name, dict(case))
        for (name, unit, label, case), by_side in kept.values.items()
        for side in sides
        if (by_round := by_side.get(side.name))
    ]


def _ratios(kept: _Kept, sides: Sequence[Side]) -> list[Ratio]:
    """Above 1 the first side is ahead: times and bytes of others by its own, its rates by theirs.

    Only rounds count in which both have the figure. Tokens are no ratios: none may be 0.
    """
    base = sides[0].name
    found: list[Ratio] = []
    for (name, unit, label, case), by_side in kept.values.items():
        if unit == "tokens" or base not in by_side:
            continue
        for other in (side.name for side in sides[1:] if side.name in by_side):
            both = [idx for idx in by_side[base] if idx in by_side[other]]
            if not both:
                continue
            a, b = (base, other) if unit == "tokens/s" else (other, base)
            interval = paired_ratio(
                [by_side[a][idx] for idx in both], [by_side[b][idx] for idx in both]
            )
            found.append(Ratio(name, a, b, label, interval, dict(case)))
    return found


def _checks(kept: _Kept, sides: Sequence[Side]) -> list[Check]:
    """Whether each side went through all of its rounds."""
    found: list[Check] = []
    for side in sides:
        failures = kept.failures.get(side.name, [])
        reason = "; ".join(failures) if failures else "all rounds without a fault"
        found.append(
            Check(f"{side.name} answers", not failures, reason, {"failures": len(failures)})
        )
    return found
