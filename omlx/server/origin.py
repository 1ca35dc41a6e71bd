"""Which web pages may use the server: the Host and Origin headers, content types, CORS.

Knows nothing about keys or routes. Browsers can't be told what to send in these headers by a page,
so they say what other programs, which need a key, could say as they like.
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import urlsplit

from omlx.errors import ServerError
from omlx.server.errors import ApiError

_PORT = re.compile(r":[0-9]{0,5}")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^\s/*?#@,]+")
_HOST_NAME = re.compile(r"[A-Za-z0-9._-]+")
_HEADER_NAMES = re.compile(r"[A-Za-z0-9_-]{1,80}(?:\s*,\s*[A-Za-z0-9_-]{1,80}){0,63}")
_READING = ("GET", "HEAD", "OPTIONS")
_METHODS = "GET, HEAD, POST, DELETE"
_PREFLIGHT_S = "600"
_SHOWN_HEADERS = "request-id, x-request-id, retry-after"
# A page of the server's own, once there is one, says more of itself.
SECURE_HEADERS: Mapping[str, str] = {
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
}


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


@dataclass(frozen=True, slots=True)
class Sites:
    """What a server knows of names and pages; `check` raises ApiError.

    `is_local` is one that only this machine reaches, `has_names` one that is called by a name at
    all, which one on a Unix socket is not.
    """

    is_local: bool
    has_names: bool = True
    hosts: frozenset[str] = field(default_factory=frozenset[str])
    origins: frozenset[str] = field(default_factory=frozenset[str])

    def check(self, method: str, headers: Headers) -> None:
        """Refuse what a strange page could have sent, and what is not JSON."""
        if self.has_names:
            self._check_host(headers)
        if method not in _READING:
            for origin in headers.getall("origin", ()):
                if not self._may_send(origin.lower(), headers):
                    raise ApiError(403, "Web pages of other sites may not use this server")
            _check_content(headers)

    def _check_host(self, headers: Headers) -> None:
        """A name that is not this machine's means that some page's DNS name points here."""
        if not (self.is_local or self.hosts):
            return  # nobody has said what the names are
        values = headers.getall("host", ())
        if not values:
            return  # no browser sends none
        host = _host_of(values[0])
        if len(values) > 1 or not (is_loopback(host) or host in self.hosts):
            what = "name this machine, as in localhost or 127.0.0.1"
            if not self.is_local:
                what = "be one of server.allowed_hosts"
            raise ApiError(403, f"The Host header must {what}")

    def _may_send(self, origin: str, headers: Headers) -> bool:
        if origin in self.origins:
            return True
        try:
            host = urlsplit(origin).hostname or ""
        except ValueError:
            return False
        if is_loopback(host):
            return True
        # A page from this very server; a name alone may be anybody's that points here.
        own = [_host_of(value) for value in headers.getall("host", ())]
        is_known = host in self.hosts or _is_address(host)
        return not self.is_local and is_known and own in ([host], [f"[{host}]"])

    def preflight(self, headers: Headers) -> Mapping[str, str] | None:
        """The headers of the answer to a browser that asks first; None where it asks nothing.

        ApiError 403 where the page may not.
        """
        methods = headers.getall("access-control-request-method", ())
        if not (methods and headers.getall("origin", ())):
            return None
        allowed = self.allowed(headers)
        if allowed is None:
            raise ApiError(403, "Web pages of other sites may not use this server")
        found = {**allowed, "access-control-allow-methods": _METHODS}
        wanted = ", ".join(headers.getall("access-control-request-headers", ())).strip()
        if _HEADER_NAMES.fullmatch(wanted):
            found["access-control-allow-headers"] = wanted
        if headers.getall("access-control-request-private-network", ()):
            found["access-control-allow-private-network"] = "true"
        return {**found, "access-control-max-age": _PREFLIGHT_S}

    def allowed(self, headers: Headers) -> Mapping[str, str] | None:
        """The headers that let a listed page read an answer; None for any other."""
        origins = headers.getall("origin", ())
        if len(origins) != 1 or origins[0].lower() not in self.origins:
            return None
        return {
            "access-control-allow-origin": origins[0],
            "access-control-expose-headers": _SHOWN_HEADERS,
        }


def checked_origins(origins: Sequence[str]) -> frozenset[str]:
    """The origins of settings; ServerError for one that is none, or is all of them."""
    for origin in origins:
        if not _ORIGIN.fullmatch(origin.lower()):
            raise ServerError(
                f"server.cors_origins: {origin!r} is not an origin",
                hint="name each one, as in https://chat.example or http://localhost:3000; there "
                "is no * for all of them",
            )
    return frozenset(origin.lower() for origin in origins)


def checked_hosts(hosts: Sequence[str]) -> frozenset[str]:
    """The names of settings; ServerError for one that is none."""
    for host in hosts:
        if not (_HOST_NAME.fullmatch(host) or _is_address(host)):
            raise ServerError(
                f"server.allowed_hosts: {host!r} is not a name",
                hint="write the name or address alone, without a port, as in gpu.lan",
            )
    return frozenset(host.lower() for host in hosts)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _host_of(value: str) -> str:
    """A Host header without its port, in lower case; empty if it isn't one."""
    end = value.rfind("]") + 1 if value.startswith("[") else value.find(":")
    end = len(value) if end < 0 else end
    host, port = value[:end], value[end:]
    return host.lower() if not port or _PORT.fullmatch(port) else ""


def _check_content(headers: Headers) -> None:
    for value in headers.getall("content-type", ()):
        if value.partition(";")[0].strip().lower() != "application/json":
            raise ApiError(415, "The content type must be application/json")
    for value in headers.getall("content-encoding", ()):
        if value.strip().lower() not in ("", "identity"):
            raise ApiError(415, "A body with a content encoding is not accepted")
