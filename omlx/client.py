"""Find running servers by their state files, and ask them over HTTP.

Knows nothing about what the answers mean; standard library only.
"""

import hashlib
import http.client
import json
import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from omlx.errors import ServerError

_MAX_ANSWER_BYTES = 16_000_000
_MAX_STATE_BYTES = 10_000
_UNIX = "unix:"
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class RunningServer:
    """What a state file says of a server that lives; `address` is its base URL.

    `cache_dir` is the folder of its disk tier, None where the file does not say it;
    `certificate` is the fingerprint of the one that it shows, for an https address.
    """

    pid: int
    address: str
    version: str
    cache_dir: Path | None = None
    certificate: str | None = None


def running_servers(state_dir: Path) -> list[RunningServer]:
    """The servers whose process lives, by port; files that are stale or broken are passed over."""
    found: list[RunningServer] = []
    for path in sorted(state_dir.glob("server-*.json")):
        server = _read_state(path)
        if server is not None and _is_alive(server.pid):
            found.append(server)
    return found


def _read_state(path: Path) -> RunningServer | None:
    try:
        with path.open("rb") as file:
            raw: object = json.loads(file.read(_MAX_STATE_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(raw, dict):
        return None
    state = cast(dict[str, object], raw)
    folder = state.get("cache_dir")
    cache_dir = Path(folder) if isinstance(folder, str) else None
    shown = state.get("certificate")
    certificate = shown if isinstance(shown, str) else None
    match state:
        case {"pid": int(pid), "address": str(address), "version": str(version)} if pid > 0:
            return RunningServer(pid, address, version, cache_dir, certificate)
        case _:
            return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # another user's
    except (ProcessLookupError, OverflowError):
        return False
    return True


def get_json(
    address: str,
    path: str,
    *,
    api_key: str | None = None,
    timeout_s: float = 3.0,
    certificate: str | None = None,
) -> Mapping[str, object]:
    """GET a JSON object from a server; ServerError says what went wrong.

    `certificate` is the only one that is taken from an https address, by its fingerprint; None
    takes those that the machine trusts.
    """
    asked = _Asked("GET", path, api_key, timeout_s, certificate)
    status, body = _ask(address, asked)
    if status == 403:
        raise ServerError(
            f"the server at {address} refuses to answer {path}",
            hint="set OMLX_SERVER_API_KEY to an API key of scope admin",
        )
    if status != 200:
        raise ServerError(f"the server at {address} answers {path} with {status}")
    return _parse(address, path, body)


def post(
    address: str,
    path: str,
    *,
    api_key: str | None = None,
    timeout_s: float = 3.0,
    certificate: str | None = None,
) -> tuple[int, Mapping[str, object]]:
    """POST without a body; the status and the JSON object that came. ServerError as `get_json`."""
    asked = _Asked("POST", path, api_key, timeout_s, certificate)
    status, body = _ask(address, asked)
    return status, _parse(address, path, body)


@dataclass(frozen=True, slots=True)
class _Asked:
    method: str
    path: str
    api_key: str | None
    timeout_s: float
    certificate: str | None


def _ask(address: str, asked: _Asked) -> tuple[int, bytes]:
    headers = {"Accept": "application/json", "Connection": "close"}
    if asked.api_key is not None:
        headers["Authorization"] = f"Bearer {asked.api_key}"
    connection = _connection(address, asked)
    try:
        _connect(connection, address, asked)
        connection.request(asked.method, asked.path, headers=headers)
        with connection.getresponse() as response:
            status, body = response.status, response.read(_MAX_ANSWER_BYTES)
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = str(error) or type(error).__name__
        raise ServerError(f"the server at {address} does not answer: {reason}") from None
    finally:
        connection.close()
    if status == 401:
        raise ServerError(
            f"the server at {address} asks for an API key",
            hint="set OMLX_SERVER_API_KEY, or api_key in the [server] table of config.toml",
        )
    return status, body


def _connect(connection: http.client.HTTPConnection, address: str, asked: _Asked) -> None:
    """Connect, and look at the certificate before anything is sent."""
    if address.startswith(_UNIX):
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.sock = sock  # closed with the connection
        sock.settimeout(asked.timeout_s)
        sock.connect(address.removeprefix(_UNIX))
        return
    connection.connect()
    sock = connection.sock
    if asked.certificate is not None and isinstance(sock, ssl.SSLSocket):
        shown = sock.getpeercert(binary_form=True) or b""
        if hashlib.sha256(shown).hexdigest() != asked.certificate:
            raise ServerError(
                f"what answers at {address} does not show the certificate of the server",
                hint="another process may listen there; start omlx serve again",
            )


def _connection(address: str, asked: _Asked) -> http.client.HTTPConnection:
    if address.startswith(_UNIX) and "\0" not in address:
        return http.client.HTTPConnection("localhost", timeout=asked.timeout_s)
    try:
        url = urlsplit(address)
        host, port = url.hostname, url.port
    except ValueError:
        host, port, url = None, None, None
    if url is None or url.scheme not in ("http", "https") or not host:
        raise ServerError(f"{address!r} is not the address of a server")
    host = _ANY_ADDRESS.get(host, host)
    if url.scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=asked.timeout_s)
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if asked.certificate is not None:  # that one is compared, whoever signed it
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=asked.timeout_s, context=context)


def _parse(address: str, path: str, body: bytes) -> Mapping[str, object]:
    try:
        answer: object = json.loads(body)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise ServerError(f"the server at {address} answers {path} with no JSON object")
    return cast(Mapping[str, object], answer)
