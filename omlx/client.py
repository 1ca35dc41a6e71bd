"""Find running servers by their state files, and ask them over HTTP.

Knows nothing about what the answers mean; standard library only.
"""

import hashlib
import http.client
import json
import math
import os
import socket
import ssl
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

from omlx.errors import ServerError

_MAX_ANSWER_BYTES = 16_000_000
MAX_STATE_BYTES = 100_000
_UNIX = "unix:"
_HEALTH_S = 3.0
_ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True, slots=True)
class Launched:
    """How a server was started: the options of `omlx serve`, and the folder it was started in.

    `withheld` names secrets that it was given by an option or a variable; they are not in
    `arguments`.
    """

    arguments: tuple[str, ...]
    cwd: Path
    withheld: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RunningServer:
    """What a state file says of a server that lives; `address` is its base URL.

    `cache_dir` is the folder of its disk tier, None where the file does not say it;
    `certificate` is the fingerprint of the one that it shows, for an https address. `started` is
    when it began to listen and `process_started` when its process began, in seconds of the epoch;
    `drain_s` is what it may take to stop, `log_path` where its log goes if not to stderr.
    """

    pid: int
    address: str
    version: str
    cache_dir: Path | None = None
    certificate: str | None = None
    started: float | None = None
    process_started: float | None = None
    drain_s: float | None = None
    log_path: Path | None = None
    launched: Launched | None = None
    state_path: Path | None = field(default=None, compare=False)

    @property
    def port(self) -> int | None:
        """The port it listens on; None for a Unix socket."""
        if self.address.startswith(_UNIX):
            return None
        try:
            return urlsplit(self.address).port
        except ValueError:
            return None


def running_servers(state_dir: Path) -> list[RunningServer]:
    """The servers whose process lives, by port; files that are stale or broken are passed over."""
    states = (server for _, server in read_states(state_dir))
    return [server for server in states if server is not None and _is_alive(server.pid)]


def read_states(state_dir: Path) -> Iterator[tuple[Path, RunningServer | None]]:
    """Every state file, with what it says of a server that lives or not; None if it is broken."""
    for path in sorted(state_dir.glob("server-*.json")):
        yield path, read_state(path)


def state_name(address: str) -> str:
    """The name of the state file of a server at an address, by its port or its Unix socket."""
    scheme, _, rest = address.partition(":")
    name = rest.rpartition(":")[2]
    if scheme == "unix":
        name = "unix-" + hashlib.sha256(os.fsencode(rest)).hexdigest()[:12]
    return f"server-{name}.json"


def read_state(path: Path) -> RunningServer | None:
    """What a state file says; None if there is none, or anything but such a file."""
    raw = _read_object(path)
    match raw:
        case {"pid": int(pid), "address": str(address), "version": str(version)} if pid > 0:
            pass
        case _:
            return None
    shown, log = raw.get("certificate"), raw.get("log")
    return RunningServer(
        pid,
        address,
        version,
        cache_dir=_path(raw.get("cache_dir")),
        certificate=shown if isinstance(shown, str) else None,
        started=_moment(raw.get("started")),
        process_started=_number(raw.get("process_started")),
        drain_s=_number(raw.get("drain_s")),
        log_path=_path(log),
        launched=_launched(raw.get("launched")),
        state_path=path,
    )


def _read_object(path: Path) -> Mapping[str, object]:
    """The JSON object of a plain file of moderate size; empty if it is anything else."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(os.open(path, flags), "rb") as file:  # noqa: PTH123
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_STATE_BYTES:
                return {}
            raw: object = json.loads(file.read(MAX_STATE_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return cast(dict[str, object], raw) if isinstance(raw, dict) else {}


def _launched(raw: object) -> Launched | None:
    if not isinstance(raw, dict):
        return None
    state = cast(dict[str, object], raw)
    words, names = _texts(state.get("arguments")), _texts(state.get("withheld"))
    folder = _path(state.get("cwd"))
    if words is None or names is None or folder is None:
        return None
    return Launched(words, folder, names)


def _texts(value: object) -> tuple[str, ...] | None:
    """A list of texts that a command line can have; None if it is anything else."""
    values = cast(list[object], value) if isinstance(value, list) else [None]
    found = [text for text in values if isinstance(text, str) and "\0" not in text]
    return tuple(found) if len(found) == len(values) else None


def _path(value: object) -> Path | None:
    is_usable = isinstance(value, str) and "\0" not in value
    return Path(cast(str, value)) if is_usable else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _moment(value: object) -> float | None:
    """A time of the ISO form, in seconds of the epoch."""
    if not isinstance(value, str):
        return None
    try:
        return datetime.fromisoformat(value).timestamp()
    except (ValueError, OverflowError, OSError):
        return None


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # another user's
    except (ProcessLookupError, OverflowError):
        return False
    return True


def ask_health(server: RunningServer, *, api_key: str | None = None) -> Mapping[str, object]:
    """What a server says of its health, whatever the status; ServerError if nothing answers."""
    asked = _Asked("GET", "/health", api_key, _HEALTH_S, server.certificate)
    _, body = _ask(server.address, asked)
    return _parse(server.address, "/health", body)


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
