"""`omlx stop`: ends servers and the service, and removes state files of servers that are gone.

Knows nothing about signals.
"""

import click

from omlx.cli.running import described, meant, state_dir, user_home
from omlx.cli.start import talk


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), metavar="N", help="The server on this port.")
@click.option("--all", "every", is_flag=True, help="Every server.")
def stop(*, port: int | None, every: bool) -> None:
    """Stop a server, in the background or not.

    Its requests may finish, and what is in memory is stored. What still runs after 15 seconds
    (or server.drain_timeout and 5 seconds, if that is more) is killed. State files of servers
    that are gone are removed. Where none runs, that is said, and the exit code is 0: what was
    asked for is so. Of several servers, --port or --all says which. The service is stopped until
    the next login.
    """
    from omlx.cli.service import end, here
    from omlx.launch.background import clean, find
    from omlx.launch.background import stop as stop_server
    from omlx.launch.service.service import is_of, runs

    folder = state_dir()
    for stale in clean(folder):
        talk(f"removed {stale.path}: {stale.reason}")
    chosen = meant(find(folder).servers, port, every=every)
    service = here(user_home())
    if service is not None and any(is_of(service, server) for server in chosen):
        chosen = [server for server in chosen if not is_of(service, server)]
        end(service)
    elif service is not None and port is None and not chosen and runs(service):
        end(service)
    elif not chosen:
        talk("no server is running" if port is None else f"no server is running on port {port}")
    for server in chosen:
        talk(f"stopping {described(server)}")
        ended = stop_server(server, on_progress=talk)
        how = f"; {ended.num_killed} processes had to be killed" if ended.num_killed else ""
        talk(f"stopped {described(server)} after {ended.seconds:.1f} s{how}")
