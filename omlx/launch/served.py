"""What a running server offers to clients, and having it load a model.

Knows nothing about clients, or how a server is found or started.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast
from urllib.parse import quote, urlsplit, urlunsplit

from omlx.client import RunningServer, get_json, post
from omlx.errors import ServerError

_LOAD_S = 7200.0  # the server gives a load up sooner
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}


@dataclass(frozen=True, slots=True)
class Offer:
    """A model under a name that requests may use; `window` is what it can see of a prompt.

    `is_main` is False for profiles and other names of a model.
    """

    name: str
    window: int | None
    is_main: bool = True


def offers(server: RunningServer, key: str | None) -> list[Offer]:
    """The names that a server answers to; ServerError."""
    answer = get_json(
        server.address, "/v1/models", api_key=key, timeout_s=30, certificate=server.certificate
    )
    data = answer.get("data")
    items = cast(Sequence[object], data) if isinstance(data, list) else ()
    found: list[Offer] = []
    for item in items:
        match item:
            case {"id": str(name), "context_window": int(window)} if window > 0:
                found.append(Offer(name, window, _is_main(cast(Mapping[str, object], item))))
            case {"id": str(name)}:
                found.append(Offer(name, None, _is_main(cast(Mapping[str, object], item))))
            case _:
                continue
    return found


def _is_main(item: Mapping[str, object]) -> bool:
    return item.get("root", item["id"]) == item["id"]


def load(server: RunningServer, name: str, key: str | None) -> None:
    """Load a model and wait until it is; ServerError if it can't be."""
    path = f"/v1/models/{quote(name, safe='/:')}/load"
    status, answer = post(
        server.address, path, api_key=key, timeout_s=_LOAD_S, certificate=server.certificate
    )
    if status == 403:  # a key that opens the models only; its first request loads the model
        return
    if status != 200:
        raise ServerError(_message(answer) or f"{server.address} answers with {status}")


def base_url(address: str) -> str:
    """The root of a server as clients on this machine reach it; ServerError for a Unix socket."""
    url = urlsplit(address)
    if url.scheme not in ("http", "https"):
        raise ServerError(
            f"agents can't use the server at {address}",
            hint="serve on a host and port, without server.unix_socket",
        )
    host = url.hostname or ""
    if host not in _ANY_ADDRESS:
        return address.rstrip("/")
    port = f":{url.port}" if url.port is not None else ""
    return urlunsplit((url.scheme, f"{_ANY_ADDRESS[host]}{port}", "", "", ""))


def _message(answer: Mapping[str, object]) -> str:
    error = answer.get("error")
    message = cast(Mapping[str, object], error).get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else ""
