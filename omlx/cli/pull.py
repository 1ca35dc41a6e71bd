"""Gets models and shows how far that is: bars in a terminal, else a few plain lines.

Knows nothing about where models come from.
"""

import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from omlx.cli.options import warn
from omlx.errors import ModelError
from omlx.models.demo import Progress, Stage, pull_demo
from omlx.units import format_size

if TYPE_CHECKING:
    from omlx.settings.build import Resolved

_STEPS = 4  # plain lines a stage, after its first


@dataclass(frozen=True, slots=True)
class PullOptions:
    """What a user may ask for beside the name of a model."""

    into_hub_cache: bool = False
    any_architecture: bool = False


OnProgress = Callable[[Progress], None]


def pull_demo_model(models_dir: Path) -> Path:
    """The demo model's folder below `models_dir`, made if it is missing; ModelError."""
    with reporting() as report:
        return pull_demo(models_dir, progress=report)


def pull_model(name: str, resolved: "Resolved", options: PullOptions) -> Path:
    """The folder of a model of the hub, fetched as far as it is missing."""
    from omlx.models.destination import HubCache, ModelFolder
    from omlx.models.hub import Hub
    from omlx.models.pull import parse_repo, pull

    def check(config: Mapping[str, object]) -> None:
        if not options.any_architecture:
            _refuse_unknown(config)

    repo = parse_repo(name)
    into_cache = HubCache(resolved.hub_cache_dir) if options.into_hub_cache else None
    try:
        with reporting() as report:
            pulled = pull(
                repo,
                into_cache or ModelFolder(resolved.model_dirs[0]),
                hub=Hub(),
                progress=report,
                check_config=check,
                check_weights=lambda size: _warn_of_size(size, resolved.ceiling_bytes),
            )
    except KeyboardInterrupt:
        click.echo("what was fetched is kept: the same command goes on from there", err=True)
        raise
    what = f"fetched {format_size(pulled.fetched_bytes)}" if pulled.fetched_bytes else "up to date"
    click.echo(f"{repo} at commit {pulled.commit[:12]}: {what}", err=True)
    return pulled.path


def _warn_of_size(weight_bytes: int, ceiling_bytes: int | None) -> None:
    """Say at once that a model can be had, but not be served here."""
    if ceiling_bytes is not None and weight_bytes > ceiling_bytes:
        warn(
            [
                f"it has {format_size(weight_bytes)} of weights, and engine.memory_limit allows "
                f"{format_size(ceiling_bytes)} on this machine: it can't be served here"
            ]
        )


def _refuse_unknown(config: Mapping[str, object]) -> None:
    """Stop before gigabytes are fetched that nothing here can load."""
    from omlx.models.arch.known import Architectures

    reason = Architectures.installed().why_not(config)
    if reason is not None:
        raise ModelError(reason, hint="--any-architecture fetches it all the same")


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
