"""`omlx start`: a server in the background, with the options of `omlx serve`.

Knows nothing about how a process is started or watched.
"""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from omlx.cli.arguments import Given, arguments_of, secrets_of, with_profile
from omlx.cli.options import SettingsCommand, json_option, resolve, say, settings_options
from omlx.cli.running import stop_command, user_home

if TYPE_CHECKING:
    from omlx.launch.background import Started
    from omlx.settings.build import Resolved


@click.command(cls=SettingsCommand)
@click.option("--demo", is_flag=True, help="Serve the demo model; get it first if it is missing.")
@json_option
@settings_options()
@click.pass_context
def start(ctx: click.Context, *, as_json: bool, **given: object) -> None:
    """Start a server in the background.

    It takes the options of omlx serve, runs in this folder, and goes on when the terminal is
    closed. The command waits until the server answers; models load at their first request
    unless they are preloaded. Where one runs on that port already, that is said, and the exit
    code is 0. omlx stop ends it, omlx status shows it, omlx logs its log. Where a service is
    installed and no option is given, that is started.
    """
    from omlx.cli.service import begin as begin_service
    from omlx.cli.service import here

    options = with_profile(ctx, given)
    service = here(user_home())
    if service is not None:
        if not has_any(options):
            return begin_service(service, user_home(), again=False, as_json=as_json)
        talk("a service is installed, too, and stays as it is: it has options of its own")
    resolved = resolve(ctx, options)
    say_port(resolved)
    return show(begin(resolved, options), as_json=as_json)


def has_any(options: Given) -> bool:
    """Whether an option was given."""
    return any(value not in (None, (), False) for value in options.values())


def begin(resolved: "Resolved", options: Given) -> "Started":
    """Start a server with these options, which `resolved` is made of."""
    from omlx.launch.background import start as start_server

    if options.get("demo"):
        from omlx.cli.pull import pull_demo_model

        pull_demo_model(resolved.home / "models")
    secrets = secrets_of(options)
    for name in secrets:
        talk(f"the value of {name} is not kept: omlx restart needs it again, or in a file")
    return start_server(
        arguments_of(options),
        resolved=resolved,
        env={**os.environ, **secrets},
        on_progress=talk,
    )


def talk(text: str) -> None:
    """Say how it goes, on stderr."""
    click.echo(text, err=True)


def say_port(resolved: "Resolved") -> None:
    """Say who set the port where anybody did, and whom that overrules."""
    path = "server.port"
    if resolved.settings.server.unix_socket is not None:
        return
    others = [f"{s.value} ({s.origin})" for s in resolved.shadowed.get(path, ())]
    if others:
        port, origin = resolved.settings.server.port, resolved.origins[path]
        talk(f"port {port} ({origin}) comes before {', '.join(others)}")


def show(started: "Started", *, as_json: bool) -> None:
    """Print where a server is, and what ends it."""
    server = started.server
    if as_json:
        return say(json.dumps(_object(started)))
    runs = "omlx serves at" if started.is_new else "omlx runs already at"
    lines = [f"{runs} {server.address}", f"process: {server.pid}"]
    lines += [f"log: {server.log_path}"] if server.log_path else []
    return say("\n".join([*lines, f"{stop_command(server)} ends it"]))


def _object(started: "Started") -> dict[str, object]:
    server = started.server
    return {
        "address": server.address,
        "pid": server.pid,
        "version": server.version,
        "log": _text(server.log_path),
        "is_new": started.is_new,
    }


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
