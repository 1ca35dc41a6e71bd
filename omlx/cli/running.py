"""Which of the running servers a command means, and what is said of servers.

Knows nothing about how servers are found.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from omlx.errors import SettingsError, UsageError

if TYPE_CHECKING:
    from omlx.client import RunningServer


def user_home() -> Path:
    """The user's folder, also where its settings are broken."""
    from omlx.settings import places

    try:
        return places.home(os.environ)
    except RuntimeError as error:
        raise SettingsError([f"environment: OMLX_HOME: {error}"]) from None


def state_dir() -> Path:
    """The folder of state files, also where the settings are broken."""
    from omlx.settings import places

    return places.state_dir(user_home())


def meant(
    servers: Sequence["RunningServer"], port: int | None, *, every: bool = False
) -> Sequence["RunningServer"]:
    """The servers that a command is for: all, the one on a port, or the only one. UsageError."""
    if every:
        return servers
    if port is not None:
        return [server for server in servers if server.port == port]
    if len(servers) > 1:
        choice = "--port or --all says which" if not every else ""
        raise UsageError(
            f"{len(servers)} servers run: {', '.join(described(s) for s in servers)}", hint=choice
        )
    return servers


def described(server: "RunningServer") -> str:
    """A server in a few words."""
    return f"{server.address} (process {server.pid})"


def stop_command(server: "RunningServer") -> str:
    """What ends a server."""
    return "omlx stop" if server.port is None else f"omlx stop --port {server.port}"
