"""`omlx cache verify`: reads all of the disk tier and says what of it is bad.

Knows nothing about files; the check does.
"""

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

import click

from omlx.cli.options import SettingsCommand, json_option, resolve, say, settings_options
from omlx.errors import StoreError
from omlx.storage.check import Checked, Checker, CheckProgress
from omlx.units import format_size

_STEPS = 4  # plain lines, after the first


@click.command(cls=SettingsCommand)
@click.option("--repair", is_flag=True, help="Remove bad files and what killed writers left.")
@json_option
@settings_options("cache.dir")
@click.pass_context
def verify(ctx: click.Context, *, repair: bool, as_json: bool, **given: object) -> None:
    """Read every file of the disk tier and verify it.

    Reports bad files by reason, and fails if one is left. Files of other versions are counted and
    stay unread. It is safe beside a running server, which drops bad files itself when it meets
    them.
    """
    from omlx.cli.view import verify as view
    from omlx.storage.fs import RealFileSystem

    directory = resolve(ctx, given).cache_dir
    checker = Checker(directory, RealFileSystem(), repair=repair)
    try:
        with _reporting() as report:
            found = checker.run(now=time.time(), progress=report)
    except OSError as error:
        reason = error.strerror or str(error)
        raise StoreError(f"the cache folder {directory} cannot be read: {reason}") from None
    text = view.verify_json if as_json else view.verify_text
    say(text(directory, found, repair=repair))
    _fail_if_bad(found, str(directory), repair=repair)


def _fail_if_bad(found: Checked, directory: str, *, repair: bool) -> None:
    if found.num_left:
        raise StoreError(
            f"bad files in {directory}: {found.num_left}",
            hint="" if repair else "omlx cache verify --repair removes them",
        )
    if found.num_busy:
        raise StoreError(f"files in {directory} that could not be opened: {found.num_busy}")


@contextmanager
def _reporting() -> Generator[Callable[[CheckProgress], None], None, None]:
    """What shows progress on stderr: a bar in a terminal, else a few plain lines."""
    if not sys.stderr.isatty():
        yield PlainReport()
        return
    from omlx.cli.view.verify import Bar

    with Bar() as bar:
        yield bar


class PlainReport:
    """Prints a line at each further quarter of a check."""

    def __init__(self) -> None:
        self._step = 0

    def __call__(self, progress: CheckProgress) -> None:
        """Print it, if it is worth a line (mutates)."""
        step = _STEPS * progress.num_bytes // max(progress.num_bytes_total, 1)
        if step <= self._step:
            return
        self._step = step
        done, total = format_size(progress.num_bytes), format_size(progress.num_bytes_total)
        click.echo(f"verified {done} of {total}", err=True)
