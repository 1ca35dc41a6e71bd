"""How good a model's predictions are: on texts, against a reference, and on a user's own questions.

Knows nothing about mlx: each model runs in a process of its own, one after the other, so that two
never share memory; the reference's logits wait in a file meanwhile.
"""

import importlib.util
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from omlx.bench.failure import BenchError
from omlx.bench.items import Items
from omlx.bench.machine import describe
from omlx.bench.result import Case, Label, Measure, Process, Report, Start, Value
from omlx.bench.sandbox import Outcome, Ran, run_program
from omlx.bench.step import OnStep, Step, quiet
from omlx.engine.task import run_task

HELD_OUT = ("prose", "code", "languages", "tools")
MODEL, REFERENCE = "model", "reference"
_STEPS = 8
_LABEL = Label(Process.COLD, Start.MISS)
_UNITS = {
    "loss": "nats/token",
    "perplexity": "perplexity",
    "kl": "nats/token",
    "kl_p99": "nats/token",
    "kl_max": "nats/token",
    "reverse_kl": "nats/token",
    "top1": "share",
}


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure: folders of models, text files by name, and questions.

    `tokens` is of all texts together, `context` how many a model sees at once.
    """

    model: Path
    model_id: str
    reference: Path | None = None
    reference_id: str = ""
    texts: Sequence[tuple[str, Path]] = ()
    tokens: int = 8192
    context: int = 512
    items: Items = field(default_factory=lambda: Items((), ()))
    allow_code: bool = False
    seed: int = 0
    blas: str = "auto"


def held_out_texts() -> list[tuple[str, Path]]:
    """The texts of our own: English prose, code, other languages, tool calls."""
    folder = Path(str(files("omlx.bench") / "heldout"))
    return [(name, folder / f"{name}.txt") for name in HELD_OUT]


def named_texts(paths: Sequence[Path]) -> list[tuple[str, Path]]:
    """Files with what the result calls them: their names, numbered where two have the same."""
    names: list[str] = []
    for path in paths:
        number = sum(name.split(" #")[0] == path.name for name in names) + 1
        names.append(path.name if number == 1 else f"{path.name} #{number}")
    return list(zip(names, paths, strict=True))


def check(options: Options) -> None:
    """BenchError where something is missing that the run would need at its end."""
    if options.items.codes and not options.allow_code:
        raise BenchError(
            f"--tasks holds {len(options.items.codes)} code items, which run what a model writes",
            hint="Give --allow-code if that is fine here: it runs as you, within limits.",
        )
    if (options.items.choices or options.items.codes) and not importlib.util.find_spec("lm_eval"):
        raise BenchError(
            "--tasks needs lm-eval, which is not installed",
            hint="Install it with: pip install 'omlx[eval]'",
        )


def accuracy(options: Options, on_step: OnStep = quiet) -> Report:
    """Measure it; ModelError, BenchError."""
    check(options)
    texts = options.texts or held_out_texts()
    sides: dict[str, Mapping[str, object]] = {}
    measures: list[Measure] = []
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="omlx-accuracy-") as folder:
        logits = Path(folder) / "logits"
        spec = {"texts": [[name, str(path)] for name, path in texts],
                "tokens": options.tokens, "context": options.context}  # fmt: skip
        if options.reference is not None:
            found = _measured(
                {**spec, "model": str(options.reference), "record": str(logits)},
                REFERENCE, options, on_step,
            )  # fmt: skip
            sides[REFERENCE] = _facts(options.reference_id, found)
            measures += _measures(found, REFERENCE)
        against = str(logits) if options.reference is not None else None
        found = _measured(
            {**spec, "model": str(options.model), "against": against}, MODEL, options, on_step
        )
        sides[MODEL] = _facts(options.model_id, found)
        measures += _measures(found, MODEL)
    if found["float32"]:
        notes.append("computed in float32: packed weights were expanded, with the values they have")
    if options.reference is not None:
        notes.append("kl is KL(reference || model) in nats, the mean over predicted tokens")
    if options.items.choices or options.items.codes:
        asked = _ask(options, on_step)
        measures += asked.measures
        notes += asked.notes
        sides[MODEL] = {**sides[MODEL], "items": asked.items}
    return Report(
        kind="accuracy",
        seed=options.seed,
        model=options.model_id,
        machine=describe(),
        options={
            "reference": options.reference_id,
            "texts": [name for name, _ in texts],
            "tokens": options.tokens,
            "context": options.context,
        },
        sides=sides,
        measures=tuple(measures),
        notes=tuple(notes),
    )


def _measured(
    spec: Mapping[str, object], stage: str, options: Options, on_step: OnStep
) -> dict[str, Any]:
    return run_task(
        "omlx.models.measure",
        {**spec, "stage": stage},
        blas=options.blas,
        progress=_few(on_step),
    )


def _few(on_step: OnStep) -> Callable[[int, int, str], None]:
    """Passes on only what moves a bar: a line a step is printed where there is no terminal."""
    last = [("", -1)]

    def progress(done: int, total: int, what: str) -> None:
        now = (what, _STEPS * done // max(total, 1))
        if now != last[0]:
            last[0] = now
            on_step(Step(what, done, total))

    return progress


def _facts(model_id: str, found: Mapping[str, Any]) -> dict[str, object]:
    kept = ("num_vocab", "weight_bytes", "tokens", "device", "float32")
    return {"model": model_id, **{name: found[name] for name in kept}}


def _measures(found: Mapping[str, Any], side: str) -> Iterator[Measure]:
    """All figures of one model: overall, by text, and the loss and KL of each context."""
    yield from _of(found["overall"], side, {"text": "all", "tokens": found["tokens"]})
    for name, figures in cast(Mapping[str, Mapping[str, float]], found["texts"]).items():
        yield from _of(figures, side, {"text": name, "tokens": int(figures["tokens"])})
    contexts = cast(Sequence[Mapping[str, Any]], found["contexts"])
    for name in ("loss", "kl"):
        samples = tuple(float(one[name]) for one in contexts if name in one)
        if samples:
            yield Measure(f"context_{name}", _UNITS[name], samples, _LABEL, side)


def _of(figures: Mapping[str, float], side: str, case: Case) -> Iterator[Measure]:
    for name, unit in _UNITS.items():
        if name in figures:
            yield Measure(name, unit, (float(figures[name]),), _LABEL, side, case)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the model answered to a user's questions."""

    measures: list[Measure]
    notes: list[str]
    items: Mapping[str, str]


def _ask(options: Options, on_step: OnStep) -> _Asked:
    items = options.items
    spec: dict[str, object] = {
        "model": str(options.model),
        "choices": [[one.question, list(one.choices), one.answer] for one in items.choices],
        "codes": [[one.prompt, list(one.stop), one.max_tokens] for one in items.codes],
    }
    found = run_task(
        "omlx.models.questions",
        spec,
        blas=options.blas,
        progress=_few(on_step),
    )
    measures: list[Measure] = []
    notes: list[str] = []
    outcomes: dict[str, str] = {}
    if items.choices:
        outcomes |= {
            item.id: "right" if is_right else "wrong"
            for item, is_right in zip(items.choices, found["choices"]["right"], strict=True)
        }
        for name in ("accuracy", "accuracy_by_length"):
            measures.append(_share(f"choice_{name}", found["choices"][name], len(items.choices)))
    if items.codes:
        ran = _run_codes(items, cast(Sequence[str], found["codes"]), on_step)
        outcomes |= {item.id: one.outcome.value for item, one in zip(items.codes, ran, strict=True)}
        passed = sum(one.outcome is Outcome.PASSED for one in ran) / len(ran)
        measures.append(_share("code_passed", passed, len(ran)))
        notes.append(_isolation(ran))
    return _Asked(measures, notes, outcomes)


def _run_codes(items: Items, written: Sequence[str], on_step: OnStep) -> list[Ran]:
    ran: list[Ran] = []
    progress = _few(on_step)
    for item, text in zip(items.codes, written, strict=True):
        progress(len(ran), len(items.codes), "run code")
        ran.append(run_program(f"{item.prompt}{text}\n\n{item.tests}\n"))
    return ran


def _isolation(ran: Sequence[Ran]) -> str:
    with_network = any(one.had_network for one in ran)
    network = "with" if with_network else "without"
    return (
        f"ran what the model wrote as this user, {network} network,"
        " 10 s of CPU and 1 GiB each, in an empty folder"
    )


def _share(name: str, value: float, num_items: int) -> Measure:
    case: dict[str, Value] = {"items": num_items}
    return Measure(name, "share", (float(value),), _LABEL, MODEL, case)
