"""Which names this server goes by, and which web pages may ask it: the Host and Origin headers.

Knows nothing about keys, bodies or routes; each check needs headers only.
"""

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import urlsplit

from omlx.errors import ServerError
from omlx.server.errors import ApiError

_PORT = re.compile(r":[0-9]{0,5}")
_ORIGIN = re.compile(r"https?://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")
_PREFLIGHT_S = "600"
_EXPOSED = "x-request-id, request-id, retry-after"
# No answer is a page: nothing of it may be run, shown in a frame, guessed at or kept.
SECURE_HEADERS: Sequence[tuple[str, str]] = (
    ("x-content-type-options", "nosniff"),
    ("cache-control", "no-store"),
    ("content-security-policy", "default-src 'none'; frame-ancestors 'none'"),
    ("referrer-policy", "no-referrer"),
    ("x-frame-options", "DENY"),
)


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
class Origins:
    """The names of one server, and the origins whose pages may ask it.

    Where it can be reached from this machine only, or where names are given, a Host header with
    another name is refused: some page's DNS name would point here. Elsewhere the API key protects.
    """

    host: str
    allowed_hosts: Sequence[str] = ()
    cors_origins: Sequence[str] = ()

    def check_host(self, headers: Headers) -> None:
        """ApiError 403 for a Host header that is none of this server's names."""
        if not self.allowed_hosts and not is_loopback(self.host):
            return
        values = headers.getall("host", ())
        if not values:
            return  # no browser sends none
        if len(values) > 1 or not self._is_own(_host_of(values[0])):
            raise ApiError(
                403,
                "The Host header must name this machine, as in localhost or 127.0.0.1, or be one "
                "of server.allowed_hosts",
            )

    def check_origin(self, headers: Headers) -> None:
        """ApiError 403 for a page of another site, or of none."""
        for origin in headers.getall("origin", ()):
            if origin in self.cors_origins:
                continue
            try:
                host = urlsplit(origin).hostname or ""
            except ValueError:
                host = ""
            if not self._is_own(host):
                raise ApiError(403, "Web pages of other sites may not use this server")

    def answer_headers(self, headers: Headers) -> Mapping[str, str]:
        """What tells a browser that a page may read an answer; empty while no origin is listed."""
        if not self.cors_origins:
            return {}
        origin = self._listed(headers)
        if origin is None:
            return {"vary": "Origin"}
        return {
            "vary": "Origin",
            "access-control-allow-origin": origin,
            "access-control-expose-headers": _EXPOSED,
        }

    def preflight(self, headers: Headers, allowed: str) -> Mapping[str, str] | None:
        """What to answer to a browser's question before a call; None where it is no such, or no.

        `allowed` is what headers a page wants to send; the answer has the same.
        """
        is_asked = headers.getall("access-control-request-method", ())
        if not is_asked or self._listed(headers) is None:
            return None
        return {
            "access-control-allow-methods": "GET, HEAD, POST, DELETE",
            "access-control-allow-headers": allowed,
            "access-control-max-age": _PREFLIGHT_S,
        }

    def _listed(self, headers: Headers) -> str | None:
        """The one origin of a request, if its pages may ask."""
        values = headers.getall("origin", ())
        return values[0] if len(values) == 1 and values[0] in self.cors_origins else None

    def _is_own(self, host: str) -> bool:
        host = host.lower()
        return is_loopback(host) or any(
            host.strip("[]") == name.lower().strip("[]") for name in self.allowed_hosts if host
        )


def check_origins(allowed_hosts: Sequence[str], cors_origins: Sequence[str]) -> None:
    """ServerError for a setting that could never match, or would let in every page."""
    for name in allowed_hosts:
        if _host_of(name) != name or not name.strip("[]") or "*" in name or "/" in name:
            raise ServerError(
                f"server.allowed_hosts has {name!r}, which is no host name",
                hint="give names or addresses without scheme and port, such as gpu.lan",
            )
    for origin in cors_origins:
        if not _ORIGIN.fullmatch(origin):
            raise ServerError(
                f"server.cors_origins has {origin!r}, which is no origin of pages",
                hint="give each as browsers send it, such as https://app.example; there is no '*'",
            )


def _host_of(value: str) -> str:
    """A Host header without its port; empty if it isn't one."""
    end = value.rfind("]") + 1 if value.startswith("[") else value.find(":")
    end = len(value) if end < 0 else end
    host, port = value[:end], value[end:]
    return host if not port or _PORT.fullmatch(port) else ""
