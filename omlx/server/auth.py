"""Who may ask: the address that may be listened on, the API keys, what each of them opens.

Knows nothing about models or bodies; each check needs headers only and comes before any work.
"""

import hashlib
import hmac
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Never

from omlx.errors import ServerError
from omlx.server.errors import ApiError
from omlx.server.keyring import SETTINGS_KEY, KeyRing
from omlx.server.origin import Headers, Origins, check_origins, is_loopback
from omlx.server.signin import Sessions
from omlx.settings.keys import Key, Limits, Scope
from omlx.settings.server import Server

_READING = ("GET", "HEAD", "OPTIONS")
_ADD_HINT = "omlx key create NAME makes one, or set OMLX_SERVER_API_KEY"


PAGE_PATH = "/admin"
ASSET_PATH = "/admin/page/"
SESSION_PATH = "/admin/session"
_SAME_SITE = ("same-origin", "none")


def is_page(path: str) -> bool:
    """Whether a path is that of the admin page or of a part of it."""
    return path.rstrip("/") == PAGE_PATH or path.startswith(ASSET_PATH)


class Need(Enum):
    """What a route asks for."""

    NOTHING = "nothing"
    INFERENCE = "inference"
    KEY = "key"
    METRICS = "metrics"
    ADMIN = "admin"


def need_of(path: str) -> Need:
    """What the routes below a path ask for."""
    if path in ("/", "/health"):  # whether the server is there, whether it is ready
        return Need.NOTHING
    if is_page(path) or path == SESSION_PATH:  # the page itself holds nothing, and signs in
        return Need.NOTHING
    if path == "/metrics":
        return Need.METRICS
    if path.startswith("/v1/"):
        return Need.INFERENCE
    return Need.ADMIN if path.startswith("/admin") else Need.KEY


@dataclass(frozen=True, slots=True)
class Grant:
    """Who sends a request, and what that may use.

    `key` is the name of a key of the file, the tenant; the one key of the settings is nobody's.
    `identity` stands for the key wherever its secret must not be.
    """

    key: str = ""
    scope: Scope = Scope.INFERENCE
    limits: Limits = field(default_factory=Limits)
    identity: str = ""


ANYONE = Grant(identity="(anyone)")
_SCRAPER = Grant(identity="(metrics)")
_OWNER = Grant(scope=Scope.ADMIN)


def grant_of(key: Key) -> Grant:
    """What a key opens."""
    if key.name == SETTINGS_KEY:
        return Grant(scope=key.scope, identity=SETTINGS_KEY)
    # A new key of an old name is another one.
    return Grant(key.name, key.scope, key.limits, f"{key.name} {key.digest.hex()}")


def is_local(settings: Server) -> bool:
    """Whether only this machine can connect."""
    return settings.unix_socket is not None or is_loopback(settings.host)


def check_access(settings: Server, keys: KeyRing) -> None:
    """Refuse to listen where strangers could connect without a key; ServerError."""
    if settings.api_key is not None and not settings.api_key.strip():
        raise ServerError(
            "The API key is empty", hint="set OMLX_SERVER_API_KEY to a key, or leave it out"
        )
    if settings.metrics_key is not None and not settings.metrics_key.strip():
        raise ServerError(
            "server.metrics_key is empty",
            hint="set OMLX_SERVER_METRICS_KEY to a key, or leave it out",
        )
    check_origins(settings.allowed_hosts, settings.cors_origins)
    if is_local(settings):
        return
    if settings.skip_api_key_verification:
        raise ServerError(
            f"server.skip_api_key_verification can't be used on {settings.host}, since other "
            "machines can connect",
            hint="listen on 127.0.0.1, or set server.allow_unauthenticated_inference",
        )
    if not keys.has_any and not settings.allow_unauthenticated_inference:
        raise ServerError(
            f"Listening on {settings.host} needs an API key, since other machines can connect",
            hint=f"{_ADD_HINT}, or listen on 127.0.0.1",
        )


class Guard:
    """The checks of one server; those that refuse raise ApiError."""

    def __init__(self, settings: Server, keys: KeyRing, sessions: Sessions | None = None) -> None:
        self._settings = settings
        self._keys = keys
        self._sessions = sessions
        self._is_local = is_local(settings)
        # Nobody but this user can reach a Unix socket, whatever the Host header says.
        host = "" if settings.unix_socket else settings.host
        self.origins = Origins(host, settings.allowed_hosts, settings.cors_origins)

    def check(self, method: str, headers: Headers, need: Need) -> Grant:
        """Refuse what a web page could have sent, what is not JSON, and what lacks the key."""
        self.origins.check_host(headers)
        if method not in _READING:
            self.origins.check_origin(headers)
            _check_content(headers)
            if need in (Need.ADMIN, Need.NOTHING):
                self._check_site(headers)
        return ANYONE if need is Need.NOTHING else self.grant(headers, need)

    def grant(self, headers: Headers, need: Need) -> Grant:
        """What the keys that were sent open, if that is enough."""
        self._keys.refresh()
        sent = _sent(headers)
        if need is Need.METRICS and self._is_metrics_key(sent):
            return _SCRAPER
        # A key of its own is asked for though nothing else needs one.
        if self.is_open and not (need is Need.METRICS and self._wants_metrics_key):
            return _OWNER
        found = self._keys.find(sent)
        if found is None and not sent and need is Need.ADMIN and self._sessions is not None:
            found = self._sessions.key_of(headers)
        if found is None:
            if need is Need.INFERENCE and self._settings.allow_unauthenticated_inference:
                return ANYONE
            self._refuse(need)
        if need is Need.ADMIN and found.scope is not Scope.ADMIN:
            raise ApiError(403, "This needs an API key of scope admin")
        return grant_of(found)

    def admin_key(self, sent: str) -> Key | None:
        """The key of scope admin that a text is, None if it is none at all; ApiError.

        403 where it is a key of another scope, or no key could open the admin page.
        """
        self._keys.refresh()
        found = self._keys.find([sent.strip().encode("utf-8", "surrogateescape")])
        if found is None:
            if not self._keys.has_admin():
                self._refuse(Need.ADMIN)
            return None
        if found.scope is not Scope.ADMIN:
            raise ApiError(403, "This is a key of scope inference; the page needs one of admin")
        return found

    @property
    def has_admin(self) -> bool:
        """Whether there is a key that could sign in."""
        self._keys.refresh()
        return self._keys.has_admin()

    def _check_site(self, headers: Headers) -> None:
        """Refuse what a page of another origin sent, also one on another port of this host."""
        sites = [site.strip().lower() for site in headers.getall("sec-fetch-site", ())]
        listed = any(one in self._settings.cors_origins for one in headers.getall("origin", ()))
        if not listed and any(site not in _SAME_SITE for site in sites):
            raise ApiError(403, "Web pages of other sites may not use this server")

    def _refuse(self, need: Need) -> Never:
        if need is Need.ADMIN and not self._keys.has_admin():
            raise ApiError(403, "The admin API is off, since there is no API key of scope admin")
        raise ApiError(
            401,
            "Missing or wrong API key; send it as `Authorization: Bearer KEY` or `x-api-key`",
            headers={"www-authenticate": "Bearer"},
        )

    def knows(self, headers: Headers) -> bool:
        """Whether whoever asks may use the models."""
        try:
            self.grant(headers, Need.INFERENCE)
        except ApiError:
            return False
        return True

    @property
    def _wants_metrics_key(self) -> bool:
        is_skipped = self._settings.skip_api_key_verification
        return self._settings.metrics_key is not None and not is_skipped

    def _is_metrics_key(self, sent: Sequence[bytes]) -> bool:
        """Whether the key of /metrics was sent; each that was is compared, in the same time."""
        if self._settings.metrics_key is None:
            return False
        key = self._settings.metrics_key.strip().encode("utf-8", "surrogateescape")
        return any([hmac.compare_digest(_hashed(one), _hashed(key)) for one in sent])

    @property
    def is_open(self) -> bool:
        """Whether nobody is asked for a key."""
        is_unlocked = self._settings.skip_api_key_verification or not self._keys.has_any
        return self._is_local and is_unlocked


def _hashed(key: bytes) -> bytes:
    """Of one length, so that comparing says nothing of it."""
    return hashlib.sha256(key).digest()


def _sent(headers: Headers) -> list[bytes]:
    """All keys of a request, as bytes."""
    sent = [_bearer(value) for value in headers.getall("authorization", ())]
    sent += headers.getall("x-api-key", ())
    keys = (key.strip().encode("utf-8", "surrogateescape") for key in sent)
    return [key for key in keys if key]


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
