"""`omlx status`: the servers that run, the service, and what is left of those that do not run.

Knows nothing about how servers are found; each is asked over HTTP.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from omlx.cli.last_error import last_error
from omlx.cli.options import SettingsCommand, json_option, resolve, say, settings_options, warn
from omlx.cli.running import state_dir, user_home
from omlx.errors import ServerError, SettingsError

if TYPE_CHECKING:
    from omlx.cli.view.status import Status
    from omlx.client import RunningServer
    from omlx.launch.background import Found
    from omlx.launch.service.service import Installed
    from omlx.launch.service.spec import State


@dataclass(frozen=True, slots=True)
class View:
    """A server and what it says of itself; `models` and `told` are None where it does not tell."""

    server: "RunningServer"
    word: str
    models: Sequence[Mapping[str, object]] | None
    problem: str = ""
    told: "Status | None" = None


@click.command(cls=SettingsCommand)
@json_option
@settings_options("server.api_key")
@click.pass_context
def status(ctx: click.Context, *, as_json: bool, **given: object) -> int:
    """Show the servers that run.

    Of each one the three figures that tell how well it does, over the last 24 hours: uncached
    tokens per turn by client, TTFT with the means of its parts, disk bytes written and evicted.
    Also its memory, its tiers and the last error in its log. Also servers that were started with
    omlx serve, the service, and state files of servers that are gone. The exit code is 0 if a
    server runs, else 1.
    """
    from omlx.launch.background import find

    found = find(state_dir())
    key = key_of(ctx, given) if found.servers else None
    views = [view_of(server, key) for server in found.servers]
    service = _service()
    if as_json:
        told = None if service is None else _told_of(service)
        say(json.dumps({**_object(views, found), "service": told}, indent=2))
    else:
        shown = [] if service is None else _shown(service)
        say("\n".join([*_lines(views, found), *shown]))
    return 0 if views else 1


def _service() -> "tuple[Installed, State] | None":
    """The service of this folder and how it stands; its supervisor may not answer."""
    from omlx.cli.service import here

    try:
        service = here(user_home())
        return None if service is None else (service, service.state())
    except ServerError as error:
        warn([f"how the service stands is not known: {error.message}"])
        return None


def _shown(service: "tuple[Installed, State]") -> list[str]:
    from omlx.cli.view.service import service_lines

    return service_lines(*service, user_home())


def _told_of(service: "tuple[Installed, State]") -> dict[str, object]:
    from omlx.cli.view.service import service_object

    return service_object(*service, user_home())


def key_of(ctx: click.Context, given: Mapping[str, object]) -> str | None:
    """The API key of the settings, where those can be read."""
    try:
        return resolve(ctx, given).settings.server.api_key
    except SettingsError as error:
        warn(error.problems)
        return None


def view_of(server: "RunningServer", key: str | None) -> View:
    """A server, asked."""
    from omlx.cli.view.plain import maps_of, text_of
    from omlx.client import ask_health

    try:
        health = ask_health(server, api_key=key)
    except ServerError as error:
        return View(server, "no answer", None, error.message)
    word = text_of(health, "status") or "unknown"
    if not isinstance(health.get("models"), list):
        return View(server, word, None)
    return View(server, word, maps_of(health, "models"), told=_told(server, key))


def _told(server: "RunningServer", key: str | None) -> "Status | None":
    """The figures of a server, where it tells them to this key."""
    from omlx.cli.view.status import read_status
    from omlx.client import get_json

    try:
        answer = get_json(
            server.address, "/admin/api/status", api_key=key, certificate=server.certificate
        )
    except ServerError:
        return None
    return read_status(answer)


def _lines(views: Sequence[View], found: "Found") -> list[str]:
    lines = [line for view in views for line in server_lines(view)]
    if not views:
        lines.append("no server is running")
    for stale in found.stale:
        lines.append(f"stale: {stale.path}: {stale.reason}; omlx stop removes it")
    return lines


def server_lines(view: View) -> list[str]:
    """What is shown of a server."""
    from omlx.cli.view.lead import lead_text
    from omlx.cli.view.text import columns
    from omlx.cli.view.tiers import tier_text
    from omlx.units import format_duration

    server, uptime_s = view.server, _uptime_s(view.server)
    age = "" if uptime_s is None else f", up {format_duration(uptime_s)}"
    lines = [f"{server.address}  {view.word}"]
    lines.append(f"  process {server.pid}, omlx {server.version}{age}")
    if _is_outdated(server):
        which = "" if server.port is None else f" --port {server.port}"
        lines.append(f"  another version is installed; omlx restart{which} takes it")
    lines.append(f"  {_models(view)}")
    if view.told is not None:
        lines += columns([*lead_text(view.told), *tier_text(view.told)], indent="  ").splitlines()
    lines.append(f"  log: {server.log_path or 'stderr of the process'}")
    if error := last_error(server.log_path):
        lines.append(f"  last error: {error}")
    return lines


def _models(view: View) -> str:
    from omlx.cli.view.plain import text_of

    if view.problem:
        return view.problem
    if view.models is None:
        return "models: told only to those with an API key (OMLX_SERVER_API_KEY)"
    loaded = [text_of(one, "id") for one in view.models if one.get("state") == "ready"]
    others = len(view.models) - len(loaded)
    return f"loaded: {', '.join(loaded) or 'none'}; not loaded: {others}"


def _is_outdated(server: "RunningServer") -> bool:
    from omlx import __version__

    return server.version != __version__


def _uptime_s(server: "RunningServer") -> float | None:
    return None if server.started is None else max(0.0, time.time() - server.started)


def _object(views: Sequence[View], found: "Found") -> dict[str, object]:
    return {
        "servers": [server_object(view) for view in views],
        "stale": [{"file": str(stale.path), "reason": stale.reason} for stale in found.stale],
    }


def server_object(view: View) -> dict[str, object]:
    """What JSON has of a server."""
    from omlx.cli.view.lead import lead_json
    from omlx.cli.view.tiers import tier_json

    server, log = view.server, view.server.log_path
    return {
        "address": server.address,
        "pid": server.pid,
        "version": server.version,
        "is_outdated": _is_outdated(server),
        "uptime_s": _uptime_s(server),
        "status": view.word,
        "models": None
        if view.models is None
        else [{"id": one.get("id"), "state": one.get("state")} for one in view.models],
        "lead": None if view.told is None else lead_json(view.told),
        "cache": None if view.told is None else tier_json(view.told),
        "last_error": last_error(log),
        "log": None if log is None else str(log),
    }
