"""Who has a port that a server was to listen on, for the message that says so.

Knows nothing about sockets of this process.
"""

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from omlx.client import read_state
from omlx.errors import ServerError


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that listens on a port."""

    pid: int
    name: str


def find_holder(port: int) -> Holder | None:
    """The process that listens on a port; None if the system does not tell."""
    for connection, pid in _listening():
        if connection.laddr and connection.laddr.port == port and pid:
            try:
                return Holder(pid, psutil.Process(pid).name())
            except psutil.Error:
                return Holder(pid, "")
    return None


def _listening() -> Iterator[tuple[Any, int | None]]:
    try:
        found = [(c, c.pid) for c in psutil.net_connections("tcp")]
    except psutil.AccessDenied:  # macOS tells only of the user's own processes
        found = list(_own())
    yield from ((c, pid) for c, pid in found if c.status == psutil.CONN_LISTEN)


def _own() -> Iterator[tuple[Any, int]]:
    for process in psutil.process_iter():
        try:
            connections = process.net_connections("tcp")
        except psutil.Error:
            continue
        yield from ((connection, process.pid) for connection in connections)


def explained(
    error: ServerError,
    state_dir: Path,
    port: int,
    *,
    find: Callable[[int], Holder | None] = find_holder,
) -> ServerError:
    """The error of a port that is taken, with the process that has it where that is known."""
    cause = error.__cause__
    if not isinstance(cause, OSError) or cause.errno != errno.EADDRINUSE:
        return error
    holder = find(port)
    state = read_state(state_dir / f"server-{port}.json")
    ours = state.pid if state is not None and psutil.pid_exists(state.pid) else None
    if ours is not None and ours != os.getpid() and (holder is None or holder.pid == ours):
        return ServerError(
            f"{error.message}; omlx runs on port {port} already, as process {ours}",
            hint=f"{error.hint}; omlx stop --port {port} ends that one",
        )
    if holder is None:
        return error
    name = f" ({holder.name})" if holder.name else ""
    return ServerError(
        f"{error.message}; process {holder.pid}{name} listens on port {port}", hint=error.hint
    )
