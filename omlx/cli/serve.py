"""`omlx serve`: find the models, say where the server is, show the dashboard.

Knows nothing about HTTP or engines; the server is imported when everything else is in order.
"""

import json
import logging
import os
import shlex
import sys
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from omlx.cli.arguments import arguments_of, with_profile, withheld
from omlx.cli.options import SettingsCommand, resolve, settings_of, settings_options
from omlx.errors import ServerError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from omlx.cli.live import Dashboard
    from omlx.log import LogFile
    from omlx.models.locate import Discovery
    from omlx.settings.build import Resolved

_STDERR = 2  # sys.stderr may be none of the process's own
_KEY_VARIABLE = "OMLX_SERVER_API_KEY"


@click.command(cls=SettingsCommand)
@click.option("--demo", is_flag=True, help="Serve the demo model; get it first if it is missing.")
@click.option(
    "--dashboard",
    is_flag=True,
    help="Show requests, hit rate, times and tiers; plain lines where stdout is no terminal.",
)
@settings_options()
@click.pass_context
def serve(ctx: click.Context, *, demo: bool, dashboard: bool, **given: object) -> int:
    """Serve models over HTTP.

    Every model below the model folders is served, to OpenAI clients under /v1/chat/completions
    and to Anthropic clients under /v1/messages. Flags hold for this run only. Ctrl-C or SIGTERM
    lets running requests end (--drain-timeout) and stores what is in memory; a second one does
    not wait.
    """
    from omlx.cli.desk import CliDesk
    from omlx.cli.found import no_models
    from omlx.client import Launched
    from omlx.settings.places import data_dir

    resolved = resolve(ctx, given)
    log = _set_up_log(resolved)
    discovery = _with_demo(resolved) if demo else _found(resolved)
    if not discovery.models:
        raise no_models(resolved)
    options = with_profile(ctx, {**given, "demo": demo})
    launched = Launched(arguments_of(options), resolved.cwd, withheld(resolved))
    desk = CliDesk(resolved, settings_of(given), data_dir("profiles") / "clients")
    from omlx.server.run import run_server

    with ExitStack() as stack:
        board = stack.enter_context(_dashboard(resolved)) if dashboard else None

        def on_ready(address: str) -> None:
            _say_ready(ready_lines(resolved, discovery, address), log, stack)

        return run_server(
            resolved,
            discovery,
            on_ready=on_ready,
            snapshot_sink=board.feed if board else None,
            desk=desk,
            launched=launched,
        )


def _say_ready(lines: list[str], log: "LogFile | None", stack: ExitStack) -> None:
    """Say on stderr that the server is ready; from then on stderr is the log, if that is a file.

    So what goes wrong before is seen by whoever started it: a person, or a service manager.
    """
    from omlx.log import into

    with suppress(OSError):  # a log on a disk that is full is no reason to end
        for line in lines:
            click.echo(line, err=True)
        if log is not None and not log.is_output(sys.stderr.fileno()):
            click.echo(f"log: {log.path}", err=True)
    if log is not None:
        try:
            stack.enter_context(into(log))
        except OSError as error:
            logging.getLogger("omlx.server").warning("the log %s: %s", log.path, error)


def _set_up_log(resolved: "Resolved") -> "LogFile | None":
    """Begin to log on stderr; the file that it goes on in once the server is ready."""
    import faulthandler

    from omlx.log import LogFile, setup

    log = resolved.settings.log
    setup(log.level)
    if log.file is None:
        return None
    faulthandler.enable(_STDERR)
    file = LogFile(log.file, log.max_size, log.keep)
    try:
        os.close(file.open())
    except OSError as error:
        reason = error.strerror or str(error)
        raise ServerError(
            f"the log {log.file} cannot be written: {reason}", hint="--log-file names another one"
        ) from None
    return file


def _found(resolved: "Resolved") -> "Discovery":
    from omlx.cli.found import discover_models

    return discover_models(resolved)


def _with_demo(resolved: "Resolved") -> "Discovery":
    """The demo model, and those of folders that were named."""
    from omlx.cli.found import check_folder, search
    from omlx.cli.pull import pull_demo_model

    demo = pull_demo_model(resolved.home / "models")
    for folder in resolved.settings.models.dir:
        check_folder(folder)
    return search((demo, *resolved.settings.models.dir))


def _dashboard(resolved: "Resolved") -> "AbstractContextManager[Dashboard]":
    from omlx.cli.live import open_dashboard

    return open_dashboard(log_path(resolved.home))


def log_path(home: Path) -> Path:
    """Where stderr goes while the dashboard has the terminal."""
    return home / "logs" / "serve.log"


def ready_lines(resolved: "Resolved", discovery: "Discovery", address: str) -> list[str]:
    """What to tell once requests are accepted: the address, the models, a call to try."""
    from omlx.models.fits import split

    ids = [entry.id for entry in split(discovery.models, resolved.ceiling_bytes)[0]]
    return [
        f"omlx serves at {address}",
        f"{'model' if len(ids) == 1 else 'models'}: {', '.join(ids)}",
        "try it (a request waits until its model is loaded):",
        curl(
            address,
            ids[0],
            key=_key_placeholder(resolved),
            certificate=resolved.settings.server.tls_cert,
        ),
    ]


def curl(address: str, model_id: str, *, key: str | None, certificate: Path | None = None) -> str:
    """A request to paste into a shell; `key` is what stands for the API key in it.

    `certificate` is the file of the one that the server shows.
    """
    body = {
        "model": model_id,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 64,
        "temperature": 0,
    }
    is_unix, path = address.startswith("unix:"), address.removeprefix("unix:")
    if is_unix:
        address = "http://localhost"
    lines = [
        f"curl {address}/v1/chat/completions",
        "-H 'Content-Type: application/json'",
        f"-d {shlex.quote(json.dumps(body))}",
    ]
    if key is not None:
        lines.insert(1, f'-H "Authorization: Bearer {key}"')
    if is_unix:
        lines.insert(1, f"--unix-socket {shlex.quote(path)}")
    if certificate is not None:
        lines.insert(1, f"--cacert {shlex.quote(str(certificate))}")
    return " \\\n  ".join(lines)


def _key_placeholder(resolved: "Resolved") -> str | None:
    """The variable where the key came from it; the key itself is never printed."""
    if resolved.settings.server.api_key is None:
        from omlx.settings.keys import read_keys

        return "YOUR_API_KEY" if read_keys(resolved.keys_path) else None
    is_variable = resolved.origins["server.api_key"].where == _KEY_VARIABLE
    return f"${_KEY_VARIABLE}" if is_variable else "YOUR_API_KEY"
