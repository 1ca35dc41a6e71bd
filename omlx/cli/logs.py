"""`omlx logs`: prints the log of a server, or follows it.

Knows nothing about how logs are written and rotated.
"""

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from omlx.cli.options import say
from omlx.cli.running import meant, state_dir, user_home
from omlx.errors import ServerError

if TYPE_CHECKING:
    from omlx.client import RunningServer

_FOLLOW_S = 0.2
# What a terminal would act on; a log may hold names that others chose.
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(9), *range(10, 32), *range(127, 160))}


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Go on with what is logged from now on.")
@click.option(
    "-n",
    "--lines",
    "num_lines",
    type=click.IntRange(0, 10_000_000),
    default=100,
    metavar="N",
    help="So many lines of what is there. [default: 100]",
)
@click.option("--model", metavar="NAME", help="Only what is logged of this model.")
@click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="The server on this port.")
def logs(*, follow: bool, num_lines: int, model: str | None, port: int | None) -> None:
    """Print the log of a server.

    Of the one that runs in the background, or else of the one that ended last. Files that the
    log was rotated into are read as well, and followed on. Lines without a time, such as those
    of a traceback, belong to the line before them.
    """
    from omlx.cli.follow import Follower, wanted

    log = find_log(state_dir(), user_home(), port)
    with closing(Follower(log, wanted(model))) as follower:
        show(follower.last(num_lines, is_all=not follow))
        if follow:
            watch(follower.more, pause=time.sleep)


def show(lines: Iterable[str]) -> None:
    """Print lines of a log; a terminal gets nothing that it would act on."""
    is_terminal = sys.stdout.isatty()
    for line in lines:
        say(line.translate(_CONTROLS) if is_terminal else line)
    sys.stdout.flush()


def watch(more: Callable[[], Sequence[str]], *, pause: Callable[[float], None]) -> None:
    """Print what comes, until Ctrl-C."""
    while True:
        lines = more()
        show(lines)
        if not lines:
            pause(_FOLLOW_S)


def find_log(states: Path, home: Path, port: int | None) -> Path:
    """The log of the server that is meant; ServerError if there is none."""
    from omlx.launch.background import find

    chosen = meant(find(states).servers, port)
    if chosen:
        return _log_of(chosen[0])
    found = [path for path in _left(states, home, port) if path.is_file()]
    if not found:
        raise ServerError(
            "there is no log" if port is None else f"there is no log of a server on port {port}",
            hint="omlx start writes one; omlx serve logs to stderr unless --log-file names a file",
        )
    return max(found, key=lambda path: path.stat().st_mtime)


def _log_of(server: "RunningServer") -> Path:
    if server.log_path is None:
        raise ServerError(
            f"the server at {server.address} logs to stderr of process {server.pid}",
            hint="its terminal or service manager has it; omlx restart or --log-file keep a file",
        )
    return server.log_path


def _left(states: Path, home: Path, port: int | None) -> list[Path]:
    """Logs of servers that are gone: those of state files that were left, and in the folder."""
    from omlx.client import read_states
    from omlx.settings import places

    named = [s.log_path for _, s in read_states(states) if s and s.log_path and _is_on(s, port)]
    folder = places.log_dir(home)
    if port is not None:
        return [*named, *folder.glob(f"serve-{port}.log")]
    # A service that can't start says so before its log is begun.
    return [*named, *folder.glob("serve*.log"), *folder.glob("service.log")]


def _is_on(server: "RunningServer", port: int | None) -> bool:
    return port is None or server.port == port
