"""Gets the demo model and shows how far that is: bars in a terminal, else a few plain lines.

Knows nothing about where the model comes from.
"""

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import click

from omlx.models.demo import Progress, Stage, pull_demo
from omlx.units import format_size

_STEPS = 4  # plain lines a stage, after its first

OnProgress = Callable[[Progress], None]


def pull_demo_model(models_dir: Path) -> Path:
    """The demo model's folder below `models_dir`, made if it is missing; ModelError."""
    with reporting() as report:
        return pull_demo(models_dir, progress=report)


@contextmanager
def reporting() -> Generator[OnProgress]:
    """What shows progress on stderr as it is."""
    if not sys.stderr.isatty():
        yield PlainReport()
        return
    from omlx.cli.view.bars import Bars

    with Bars() as bars:
        yield bars


class PlainReport:
    """Prints a line when a stage begins and at each further quarter of it."""

    def __init__(self) -> None:
        self._stage: Stage | None = None
        self._step = 0

    def __call__(self, progress: Progress) -> None:
        """Print it, if it is worth a line (mutates)."""
        step = _STEPS * progress.done // max(progress.total, 1)
        if progress.stage is self._stage and step <= self._step:
            return
        self._stage, self._step = progress.stage, step
        done, total = format_size(progress.done), format_size(progress.total)
        click.echo(f"{progress.stage.value} {done} of {total}", err=True)
