"""Who may ask: the address that may be listened on, the API key, what headers must say.

Knows nothing about models or bodies; each check needs headers only and comes before any work.
"""

import hmac
from dataclasses import dataclass

from omlx.errors import ServerError
from omlx.server.errors import ApiError
from omlx.server.origin import Headers, Origins, is_loopback

_READING = ("GET", "HEAD", "OPTIONS")


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

    origins: Origins
    api_key: str | None

    def check(self, method: str, headers: Headers, *, needs_key: bool) -> None:
        """Refuse what a web page could have sent, what is not JSON, and what lacks the key."""
        self.origins.check_host(headers)
        if method not in _READING:
            self.origins.check_origin(headers)
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


def _check_content(headers: Headers) -> None:
    for value in headers.getall("content-type", ()):
        if value.partition(";")[0].strip().lower() != "application/json":
            raise ApiError(415, "The content type must be application/json")
    for value in headers.getall("content-encoding", ()):
        if value.strip().lower() not in ("", "identity"):
            raise ApiError(415, "A body with a content encoding is not accepted")
