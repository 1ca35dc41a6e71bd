"""`omlx service install`, `uninstall` and `status`: a server from login on, started again.

Knows nothing about launchd or systemd.
"""

import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from omlx.cli.arguments import Given, anchored, arguments_of, secrets_of, with_profile
from omlx.cli.options import (
    SettingsCommand,
    current_dir,
    json_option,
    say,
    settings_options,
    warn,
)
from omlx.cli.running import state_dir, user_home
from omlx.cli.start import talk
from omlx.errors import ServerError, UsageError

if TYPE_CHECKING:
    from omlx.client import RunningServer
    from omlx.launch.service.service import Installed
    from omlx.launch.service.spec import Supervisor
    from omlx.settings.build import Resolved

_OWN = ("profile", "demo")


@click.command(cls=SettingsCommand)
@click.option("--demo", is_flag=True, help="Serve the demo model; get it first if it is missing.")
@click.option(
    "--print", "is_print", is_flag=True, help="Print the file and where it goes; change nothing."
)
@click.option("--no-start", is_flag=True, help="Leave the first start to the next login.")
@click.option(
    "--force", is_flag=True, help="Replace a file that was edited, or is for another folder."
)
@settings_options()
@click.pass_context
def install(
    ctx: click.Context, *, is_print: bool, no_start: bool, force: bool, **given: object
) -> None:
    """Have a server started at login, and again when it crashes.

    A launchd agent on macOS, a systemd user unit on Linux. It takes the options of omlx serve,
    which the file keeps; all else comes from config.toml in OMLX_HOME. Variables of this
    terminal are not kept, nor are API keys: omlx key makes keys, omlx config set sets the rest.
    Called again, it replaces the options and starts anew. The command waits until the server
    answers. omlx start, stop, restart, status and logs drive the service from then on.
    """
    from omlx.launch.service.service import install as install_service
    from omlx.launch.service.service import oddities
    from omlx.launch.service.spec import carried_away, spec_of

    options = anchored(with_profile(ctx, given), current_dir())
    if secrets := sorted(secrets_of(options)):
        raise UsageError(
            f"the file of a service is no place for secrets: {', '.join(secrets)}",
            hint="omlx key create makes a key for clients; omlx config set keeps others",
        )
    supervisor, resolved = _supervisor(), service_settings(options)
    spec = spec_of(arguments_of(options), resolved, os.environ)
    if is_print:
        talk(f"{supervisor.path}:")
        return say(supervisor.text(spec).decode().removesuffix("\n"))
    warn([f"{name} is set here, and not for the service" for name in carried_away(os.environ)])
    if options.get("demo"):
        from omlx.cli.pull import pull_demo_model

        pull_demo_model(resolved.home / "models")
    is_changed = install_service(spec, supervisor, force=force)
    talk(f"{'wrote' if is_changed else 'has not changed'}: {supervisor.path}")
    warn(oddities(supervisor, resolved.home, sys.executable))
    for note in supervisor.notes():
        talk(f"note: {note}")
    if not no_start:
        service = here(resolved.home)
        assert service is not None, supervisor.path
        begin(service, resolved.home, again=is_changed)
    return None


@click.command()
@click.option("--force", is_flag=True, help="Also one that was edited, without asking.")
def uninstall(*, force: bool) -> None:
    """End the service and remove its file.

    Models, cache, settings and logs stay. A file that was edited since omlx wrote it is removed
    only if asked for, and a copy is kept in OMLX_HOME. Where there is no service, that is said.
    """
    from omlx.launch.service.service import any_installed, edited
    from omlx.launch.service.service import uninstall as uninstall_service

    service, home = any_installed(_supervisor()), user_home()
    if service is None:
        return talk("no service is installed")
    other = service.written.home
    if other not in (None, home) and not force:
        raise ServerError(
            f"{service.path} is the service of another folder, {other}",
            hint=f"OMLX_HOME={other} omlx service uninstall, or --force",
        )
    if service.is_edited and not force:
        if not sys.stdin.isatty():
            raise edited(service)
        question = f"{service.path} was edited since omlx wrote it. Remove it?"
        if not click.confirm(question, err=True):
            return talk("nothing was changed")
        force = True
    uninstall_service(service, home, force=force)
    return talk(f"removed {service.path}")


@click.command()
@json_option
@settings_options("server.api_key")
@click.pass_context
def status(ctx: click.Context, *, as_json: bool, **given: object) -> int:
    """Show how the service stands, and its server.

    Whether it runs, and what it said if it could not start; then version, age, address, models,
    memory, cache and the last error of its server. The exit code is 0 if that answers, else 1.
    """
    from omlx.cli.status import key_of, server_lines, server_object, view_of
    from omlx.cli.view.service import service_lines, service_object
    from omlx.launch.service.service import oddities

    home, supervisor = user_home(), _supervisor()
    service = here(home)
    warn(oddities(supervisor, home, sys.executable))
    if service is None:
        say(json.dumps({"service": None, "server": None}) if as_json else "no service is installed")
        return 1
    state = service.state()
    server = _server_of(state.pid)
    view = None if server is None else view_of(server, key_of(ctx, given))
    if as_json:
        told = None if view is None else server_object(view)
        whole = {"service": service_object(service, state, home), "server": told}
        say(json.dumps(whole, indent=2))
    else:
        lines = service_lines(service, state, home)
        say("\n".join([*lines, *([] if view is None else server_lines(view))]))
    return 0 if view is not None and not view.problem else 1


def service_settings(options: Given) -> "Resolved":
    """The settings that a service with these options has: in its folder, without variables."""
    from omlx.settings.build import load
    from omlx.settings.machine import this_machine

    kept = ("OMLX_HOME", "OMLX_PROFILE")
    env = {name: v for name, v in os.environ.items() if name in kept or name[:5] != "OMLX_"}
    profile = options.get("profile")
    cli = {name.replace("__", "."): value for name, value in options.items() if name not in _OWN}
    resolved = load(
        cli=cli,
        env=env,
        cwd=user_home(),
        profile=profile if isinstance(profile, str) else None,
        machine=this_machine(),
    )
    warn(resolved.warnings)
    return resolved


def here(home: Path) -> "Installed | None":
    """The service that runs in this folder of the user's."""
    from omlx.launch.service.host import this_supervisor
    from omlx.launch.service.service import installed

    return installed(home, this_supervisor())


def begin(service: "Installed", home: Path, *, again: bool, as_json: bool = False) -> None:
    """Start a service, or end it and start it, and say where its server is."""
    from omlx.cli.start import show
    from omlx.launch.background import Started
    from omlx.launch.service.service import oddities, start

    warn(oddities(service.supervisor, home, sys.executable))
    talk(f"{'restarting' if again else 'starting'} the service {service.path.name}")
    server, is_new = start(service, home, again=again, on_progress=talk)
    show(Started(server, is_new), as_json=as_json)


def end(service: "Installed") -> None:
    """Stop a service until the next login, and say so."""
    talk(f"stopping the service {service.path.name}")
    service.supervisor.stop()
    talk("stopped until the next login or omlx start; omlx service uninstall ends it for good")


def _supervisor() -> "Supervisor":
    from omlx.launch.service.host import this_supervisor

    found = this_supervisor()
    if found is None:
        raise ServerError(
            f"there are services on macOS and Linux, and not on {sys.platform}",
            hint="omlx start runs a server in the background",
        )
    return found


def _server_of(pid: int | None) -> "RunningServer | None":
    """The server that this process is, once it has said so."""
    from omlx.launch.background import find

    return next((one for one in find(state_dir()).servers if one.pid == pid), None)
