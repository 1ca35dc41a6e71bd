"""The list of clients, as text and as JSON.

Knows nothing about how they were found.
"""

import json
from collections.abc import Sequence

from omlx.cli.view.text import columns
from omlx.launch.catalog import Client
from omlx.launch.detect import Found, State

Row = tuple[Client, Found]
_TITLES = ("CLIENT", "STATE", "VERSION", "ENDPOINT", "FIRST REQUEST", "PATH OR HOW TO INSTALL")


def as_text(rows: Sequence[Row], editors: Sequence[Client]) -> str:
    """A line for each client; what to do stands where it is not ready."""
    lines = [
        (
            client.name,
            found.state.value,
            found.version or "-",
            client.endpoint.value,
            f"{client.first_request_tokens:,} tokens",
            _last(client, found),
        )
        for client, found in rows
    ]
    text = columns([_TITLES, *lines])
    if editors:
        names = ", ".join(client.name for client in editors)
        text += f"\n\neditors that omlx launch NAME says how to set up: {names}"
    return text


def as_json(rows: Sequence[Row], editors: Sequence[Client]) -> str:
    """All of it."""
    shown = [_agent(client, found) for client, found in rows]
    named = [{"name": one.name, "title": one.title} for one in editors]
    return json.dumps({"clients": shown, "editors": named}, indent=2)


def _last(client: Client, found: Found) -> str:
    match found.state:
        case State.READY:
            return str(found.path)
        case State.BROKEN | State.SLOW:
            return f"{found.path}: {found.reason}; {client.install}"
        case _:
            return client.install


def _agent(client: Client, found: Found) -> dict[str, object]:
    return {
        "name": client.name,
        "title": client.title,
        "state": found.state.value,
        "is_installed": found.path is not None,
        "version": found.version,
        "least_version": client.least_version,
        "path": None if found.path is None else str(found.path),
        "reason": found.reason,
        "install": client.install,
        "needs": client.needs,
        "endpoint": client.endpoint.value,
        "first_request_tokens": client.first_request_tokens,
    }
