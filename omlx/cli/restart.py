"""`omlx restart`: ends a server and starts it again with the options that it had.

Knows nothing about how a process is started or ended.
"""

from typing import TYPE_CHECKING

import click

from omlx.cli.arguments import Given, anchored, merged, with_profile
from omlx.cli.options import (
    SettingsCommand,
    current_dir,
    json_option,
    resolve,
    settings_options,
)
from omlx.cli.running import described, meant, state_dir, user_home
from omlx.cli.start import begin, has_any, say_port, show, talk
from omlx.errors import OmlxError, ServerError, UsageError

if TYPE_CHECKING:
    from omlx.client import Launched, RunningServer
    from omlx.settings.build import Resolved


@click.command(cls=SettingsCommand)
@click.option("--demo", is_flag=True, help="Serve the demo model; get it first if it is missing.")
@json_option
@settings_options()
@click.pass_context
def restart(ctx: click.Context, *, as_json: bool, **given: object) -> None:
    """Restart a server, in the background.

    It gets the options that it was started with, in the folder that it was started in; options
    that are given now replace them. Settings of files and variables are read anew. Of several
    servers, --port says which; where none is on that port and only one runs, that one moves
    there. API keys are never kept: one that came by a flag or variable has to be given again.
    Where no server runs, one is started. The service keeps its options: omlx service install
    takes others.
    """
    from omlx.launch.background import find, stop

    options = with_profile(ctx, given)
    server = _server(find(state_dir()).servers, options)
    if _is_service(server, options):
        return _restart_service(has_any(options), as_json=as_json)
    launched = None if server is None else server.launched
    if launched is not None:
        options = merged(launched.arguments, anchored(options, current_dir()))
    resolved = resolve(ctx, options, cwd=None if launched is None else launched.cwd)
    if launched is not None:
        _check(launched, resolved)
    say_port(resolved)
    if server is None:
        talk("no server is running; one is started")
    else:
        if launched is None:
            talk("it does not say which options it was started with: only those given now are used")
        talk(f"stopping {described(server)}")
        ended = stop(server, on_progress=talk)
        how = f"; {ended.num_killed} processes had to be killed" if ended.num_killed else ""
        talk(f"stopped after {ended.seconds:.1f} s{how}")
    try:
        started = begin(resolved, options)
    except ServerError as error:
        if server is None:
            raise
        hint = "; ".join(filter(None, [error.hint, "the server that ran before is stopped"]))
        raise ServerError(error.message, hint=hint) from None
    return show(started, as_json=as_json)


def _is_service(server: "RunningServer | None", options: Given) -> bool:
    """Whether the service is meant: it is that server, or the only one there could be."""
    from omlx.cli.service import here
    from omlx.launch.service.service import is_of

    service = here(user_home())
    if service is None:
        return False
    return is_of(service, server) if server is not None else not has_any(options)


def _restart_service(has_options: bool, *, as_json: bool) -> None:
    from omlx.cli.service import begin as begin_service
    from omlx.cli.service import here

    service = here(user_home())
    assert service is not None
    if has_options:
        raise UsageError(
            "the service has options of its own, and is restarted with those",
            hint="omlx service install with all options that it is to have replaces them",
        )
    begin_service(service, user_home(), again=True, as_json=as_json)


def _server(servers: "tuple[RunningServer, ...]", options: Given) -> "RunningServer | None":
    """The server that is meant, if any runs."""
    port = options.get("server__port")
    if isinstance(port, str) and port.strip().isdecimal():
        on_port = meant(servers, int(port))
        if on_port:
            return on_port[0]
    try:
        only = meant(servers, None)
    except UsageError as error:
        raise UsageError(error.message, hint="--port says which") from None
    return only[0] if only else None


def _check(launched: "Launched", resolved: "Resolved") -> None:
    """OmlxError where the server would come back without its folder, or open to everyone."""
    if not launched.cwd.is_dir():
        raise OmlxError(
            f"the folder that the server was started in is gone: {launched.cwd}",
            hint="end it with omlx stop, and start it with omlx start",
        )
    if "--api-key" in launched.withheld and resolved.settings.server.api_key is None:
        raise OmlxError(
            "the server has an API key that came by a flag or variable, and is not kept",
            hint="set OMLX_SERVER_API_KEY, or put it into config.toml",
        )
    if "--metrics-key" in launched.withheld and resolved.settings.server.metrics_key is None:
        raise OmlxError(
            "the server has a key for /metrics that came by a flag or variable, and is not kept",
            hint="set OMLX_SERVER_METRICS_KEY, or put it into config.toml",
        )
