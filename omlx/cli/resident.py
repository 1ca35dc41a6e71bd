"""`omlx model load` and `omlx model unload`: which models a running server has in memory.

Knows nothing about how a server does it; it is asked over HTTP.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, cast
from urllib.parse import quote

import click

from omlx.cli.options import SettingsCommand, resolve, say, settings_options
from omlx.errors import ServerError

if TYPE_CHECKING:
    from omlx.settings.build import Resolved

_LOAD_S = 7200.0  # the server gives a load up sooner
_NOT_FOUND = 404


@click.command(cls=SettingsCommand)
@click.argument("name")
@settings_options("server.api_key")
@click.pass_context
def load(ctx: click.Context, *, name: str, **given: object) -> None:
    """Load a model in the running server, and wait until it is ready.

    Models that were used least recently make room where models.max_loaded or engine.memory_limit
    say so, once they have no requests; pinned ones stay.
    """
    say(_change(resolve(ctx, given), name, "load"))


@click.command(cls=SettingsCommand)
@click.argument("name")
@settings_options("server.api_key")
@click.pass_context
def unload(ctx: click.Context, *, name: str, **given: object) -> None:
    """Unload a model in the running server, and wait until its process is gone.

    A model that has requests is not unloaded. The next request for it loads it again.
    """
    say(_change(resolve(ctx, given), name, "unload"))


def _change(resolved: "Resolved", name: str, verb: str) -> str:
    """Ask the servers that run, until one knows the model; a line on what that is now."""
    from omlx.client import post, running_servers

    servers = running_servers(resolved.state_dir)
    if not servers:
        raise ServerError("no server is running", hint="omlx serve starts one")
    path = f"/v1/models/{quote(name, safe='/')}/{verb}"
    key = resolved.settings.server.api_key
    for server in servers:
        status, answer = post(
            server.address, path, api_key=key, timeout_s=_LOAD_S, certificate=server.certificate
        )
        if status == 200:
            return f"{answer.get('id')}: {answer.get('state')}"
        if status != _NOT_FOUND:
            raise ServerError(_message(answer) or f"{server.address} answers with {status}")
    raise ServerError(
        f"no running server has the model {name!r}",
        hint="omlx model list shows those in the model folders",
    )


def _message(answer: Mapping[str, object]) -> str:
    error = answer.get("error")
    message = cast(Mapping[str, object], error).get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else ""
