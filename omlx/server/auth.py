"""Who may ask: the address that may be listened on, the Host and Origin headers, the API key.

Knows nothing about models or bodies; each check needs headers only and comes before any work.
"""

import hmac
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from omlx.errors import ServerError
from omlx.server.errors import ApiError

_PORT = re.compile(r":[0-9]{0,5}")
_READING = ("GET", "HEAD", "OPTIONS")


class Headers(Protocol):
    """Request headers: by name, case ignored, each name maybe several times."""

    def getall(self, key: str, default: Sequence[str]) -> Sequence[str]:
        """All values of a header."""
        ...


def is_loopback(host: str) -> bool:
    """Whether a name or address can be reached from this machine only."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_bind(host: str, api_key: str | None) -> None:
    """Refuse to listen where strangers could connect without a key."""
    if api_key is not None and not api_key.strip():
        raise ServerError(
            "The API key is empty", hint="set OMLX_SERVER_API_KEY to a key, or leave it out"
        )
    if api_key is None and not is_loopback(host):
        raise ServerError(
            f"Listening on {host} needs an API key, since other machines can connect",
            hint="set OMLX_SERVER_API_KEY, or listen on 127.0.0.1",
        )


@dataclass(frozen=True, slots=True)
class Guard:
    """The checks of one server; `check` raises ApiError."""

    host: str
    api_key: str | None

    def check(self, method: str, headers: Headers, *, needs_key: bool) -> None:
        """Refuse what a web page could have sent, what is not JSON, and what lacks the key."""
        if is_loopback(self.host):
            _check_host(headers)
        if method not in _READING:
            _check_origin(headers)
            _check_content(headers)
        if needs_key and not self.has_key(headers):
            raise ApiError(
                401,
                "Missing or wrong API key; send it as `Authorization: Bearer KEY` or `x-api-key`",
                headers={"www-authenticate": "Bearer"},
            )

    def has_key(self, headers: Headers) -> bool:
        """Whether the key is among those sent, compared in constant time; True if none is set."""
        if self.api_key is None:
            return True
        wanted = self.api_key.encode("utf-8", "surrogateescape")
        sent = [_bearer(value) for value in headers.getall("authorization", ())]
        sent += headers.getall("x-api-key", ())
        found = [
            hmac.compare_digest(key.strip().encode("utf-8", "surrogateescape"), wanted)
            for key in sent
        ]
        return any(found)


def _bearer(value: str) -> str:
    scheme, _, key = value.strip().partition(" ")
    return key if scheme.lower() == "bearer" else ""


def _check_host(headers: Headers) -> None:
    """A name that is not this machine's means that some page's DNS name points here."""
    values = headers.getall("host", ())
    if not values:
        return  # no browser sends none
    if len(values) > 1 or not is_loopback(_host_of(values[0])):
        raise ApiError(403, "The Host header must name this machine, as in localhost or 127.0.0.1")


def _host_of(value: str) -> str:
    """A Host header without its port; empty if it isn't one."""
    end = value.rfind("]") + 1 if value.startswith("[") else value.find(":")
    end = len(value) if end < 0 else end
    host, port = value[:end], value[end:]
    return host if not port or _PORT.fullmatch(port) else ""


def _check_origin(headers: Headers) -> None:
    for origin in headers.getall("origin", ()):
        try:
            host = urlsplit(origin).hostname or ""
        except ValueError:
            host = ""
        if not is_loopback(host):
            raise ApiError(403, "Web pages of other sites may not use this server")


def _check_content(headers: Headers) -> None:
    for value in headers.getall("content-type", ()):
        if value.partition(";")[0].strip().lower() != "application/json":
            raise ApiError(415, "The content type must be application/json")
    for value in headers.getall("content-encoding", ()):
        if value.strip().lower() not in ("", "identity"):
            raise ApiError(415, "A body with a content encoding is not accepted")
