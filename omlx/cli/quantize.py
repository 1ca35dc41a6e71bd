"""`omlx quantize`: makes a smaller model, each matrix in the format that measurement gives it.

Knows nothing about how that is measured: it happens in a process of its own.
"""

import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from omlx.cli.options import SettingsCommand, json_option, resolve, say, settings_options
from omlx.errors import UsageError
from omlx.units import parse_size

if TYPE_CHECKING:
    from omlx.models.locate import ModelEntry
    from omlx.settings.build import Resolved

OnTask = Callable[[int, int, str], None]
_STEPS = 4  # plain lines a stage


@click.command(cls=SettingsCommand)
@click.argument("model", metavar="MODEL")
@click.option(
    "-o",
    "--out",
    metavar="DIR",
    type=click.Path(file_okay=False),
    help="The folder to make. Default: beside the model, or in the first model folder.",
)
@click.option(
    "--bits",
    metavar="B",
    type=click.FloatRange(2.0, 8.0),
    help="Bits for each weight of the model, scales included: 2.0 to 8.0.",
)
@click.option("--size", metavar="SIZE", help="Bytes that the weights may take, such as 8GB.")
@click.option(
    "--quality",
    metavar="KL",
    type=click.FloatRange(0.0, 10.0, min_open=True),
    help="As small as KL(original || result) stays within so many nats a token, as measured.",
)
@click.option(
    "--calibration",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="A UTF-8 text to measure on; default: one that comes with omlx.",
)
@click.option(
    "--calibration-tokens",
    metavar="N",
    type=click.IntRange(64, 2**20),
    default=8192,
    show_default=True,
    help="How many tokens of it.",
)
@click.option(
    "--dtype",
    type=click.Choice(["bfloat16", "float16", "float32"]),
    help="Type of scales and of what stays in floats; default: the model's, float16 for float32.",
)
@click.option("--requantize", is_flag=True, help="Also take a model that is quantized already.")
@click.option("--plan", "plans_only", is_flag=True, help="Print the formats, and write nothing.")
@click.option("--seed", metavar="N", type=click.IntRange(0, 2**31), default=0, show_default=True)
@json_option
@settings_options("models.dir", "models.hub_cache", "engine.blas")
@click.pass_context
def quantize(
    ctx: click.Context,
    *,
    model: str,
    out: str | None,
    bits: float | None,
    size: str | None,
    quality: float | None,
    as_json: bool,
    plans_only: bool,
    **given: Any,
) -> None:
    """Make a smaller model, in formats chosen by measurement.

    MODEL is an id that omlx model list shows, or a folder. Of every matrix the output error of each
    format is measured on a calibration text, and weighed by its effect on the logits; the formats
    are then chosen so that the sum is least at the size that is asked for. Scales count: with
    groups of 128 and 16-bit scales the smallest format takes 2.25 bits, and what can't reach a
    target says what it can.

    One layer at a time is in memory. If it breaks off, or is stopped with Ctrl-C, the same command
    goes on from there. The result is a folder that mlx-lm loads, too.
    """
    from omlx.cli.view import quantize as view
    from omlx.engine.task import run_task

    goal = _goal(bits, size, quality)
    own = ("calibration", "calibration_tokens", "dtype", "requantize", "seed")
    options = {name: given.pop(name) for name in own}
    resolved = resolve(ctx, given)
    entry = find_model(model, resolved)
    target = Path(out) if out is not None else _beside(entry, goal, resolved)
    spec: dict[str, object] = {
        "model": str(entry.path),
        "out": str(target.expanduser().absolute()),
        "goal": goal,
        "calibration": options["calibration"],
        "tokens": options["calibration_tokens"],
        "dtype": options["dtype"],
        "requantize": options["requantize"],
        "plans_only": plans_only,
        "seed": options["seed"],
    }
    try:
        with reporting("quantize") as report:
            made = run_task(
                "omlx.models.quantize",
                spec,
                blas=resolved.settings.engine.blas,
                progress=report,
            )
    except KeyboardInterrupt:
        click.echo("what was measured is kept: the same command goes on from there", err=True)
        raise
    path = None if plans_only else target
    say(view.to_json(made, path) if as_json else view.to_text(made, path))


def _goal(bits: float | None, size: str | None, quality: float | None) -> dict[str, object]:
    given = [one for one in (bits, size, quality) if one is not None]
    if len(given) != 1:
        raise UsageError(
            "one of --bits, --size and --quality says how small",
            hint="--bits 4.5 is a good beginning",
        )
    if size is None:
        return {"bits": bits, "kl": quality}
    try:
        return {"size_bytes": parse_size(size)}
    except ValueError as error:
        raise UsageError(f"--size: {error}") from None


def find_model(name: str, resolved: "Resolved") -> "ModelEntry":
    """The model that a name means, or a folder; ModelError."""
    from omlx.cli.found import discover_models, search
    from omlx.errors import ModelError
    from omlx.models.names import names_of

    folder = Path(name).expanduser()
    if (folder / "config.json").is_file():
        found = search((folder.resolve(),))
        if not found.models:
            reason = found.problems[0].reason if found.problems else "it holds no weights"
            raise ModelError(f"{folder} can't be quantized: {reason}")
        return found.models[0]
    models = discover_models(resolved).models
    named = names_of(models, resolved).find(name)
    if named is None:
        raise ModelError(f"there is no model {name!r}", hint="omlx model list shows them")
    return named.entry


def _beside(entry: "ModelEntry", goal: Mapping[str, object], resolved: "Resolved") -> Path:
    """A folder's name that says what was asked for; not in a cache that others manage."""
    from omlx.models.locate import Source

    asked = {"bits": "{}bit", "size_bytes": "{}B", "kl": "kl{}"}
    suffix = next(
        form.format(f"{goal[name]:g}" if name != "size_bytes" else goal[name])
        for name, form in asked.items()
        if goal.get(name) is not None
    )
    is_own = entry.source is Source.FOLDER
    folder = entry.path.parent if is_own else resolved.model_dirs[0]
    return folder / f"{entry.path.name if is_own else entry.id.replace('/', '--')}-{suffix}"


@contextmanager
def reporting(title: str) -> Generator[OnTask]:
    """What shows a task's progress on stderr: a bar in a terminal, else a few plain lines."""
    if not sys.stderr.isatty():
        yield PlainReport()
        return
    from omlx.cli.view.quantize import TaskBar

    with TaskBar(title) as bar:
        yield bar


class PlainReport:
    """Prints a line when a stage begins, and at each further quarter of it."""

    def __init__(self) -> None:
        self._last: tuple[str, int] | None = None

    def __call__(self, done: int, total: int, stage: str) -> None:
        """Print it, if it is worth a line (mutates)."""
        now = (stage, _STEPS * done // max(total, 1))
        if now != self._last:
            self._last = now
            click.echo(f"{stage} {100 * done // max(total, 1)} %", err=True)
