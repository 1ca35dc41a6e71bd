"""The endpoints below /admin/api/keys: which API keys there are, a new one, one less.

Knows nothing about who may ask; that was checked before. The shapes (times as in ISO 8601, null =
no limit):

    GET:     {"keys": [{"name", "prefix": str, "scope": "inference" | "admin",
                       "requests_per_minute", "tokens_per_minute", "concurrent": int | null,
                       "created": str, "expires": str | null, "has_expired": bool}]}
    POST:    {"name": str, and "scope", "requests_per_minute", "tokens_per_minute", "concurrent",
              "expires_in_s" if wanted}; the answer is one of these keys with "key", what clients
             send, which is shown this once
    DELETE:  {"name": str, "deleted": true}, of /admin/api/keys/NAME

The one key of the settings is none of them.
"""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal
from urllib.parse import unquote

import msgspec
from sanic.response import HTTPResponse

from omlx.errors import SettingsError
from omlx.server.body import decode
from omlx.server.errors import ApiError, bad_field
from omlx.server.web import Request, json_response, read_body
from omlx.settings.keys import (
    Key,
    Limits,
    Scope,
    change_keys,
    check_limit,
    new_key,
    read_keys,
    with_key,
    without_key,
)

_MAX_BYTES = 10_000
_BODY_S = 10.0
_MAX_AGE_S = 10**10


class _Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a POST."""

    name: str
    scope: Literal["inference", "admin"] = "inference"
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None
    expires_in_s: float | None = None


class KeyRoutes:
    """The handlers of one server; `path` is the file of its keys, if it has one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._decoder = msgspec.json.Decoder(_Wanted)

    async def show_keys(self, request: Request) -> HTTPResponse:
        """GET /admin/api/keys."""
        now = datetime.now(UTC)
        try:
            keys = read_keys(self._file())
        except SettingsError as error:
            raise ApiError(500, error.message) from None
        return json_response({"keys": [key.shown(now) for key in keys]})

    async def add_key(self, request: Request) -> HTTPResponse:
        """POST /admin/api/keys."""
        body = await read_body(request, max_bytes=_MAX_BYTES, timeout_s=_BODY_S)
        wanted, now = decode(self._decoder, body), datetime.now(UTC)
        key, sent = _made(wanted, now)
        self._change(key, None)
        return json_response({**key.shown(now), "key": sent}, status=201)

    async def remove_key(self, request: Request, name: str) -> HTTPResponse:
        """DELETE /admin/api/keys/<name>."""
        name = unquote(name)
        self._change(None, name)
        return json_response({"name": name, "deleted": True})

    def _file(self) -> Path:
        if self._path is None:
            raise ApiError(404, "This server has no file of API keys")
        return self._path

    def _change(self, added: Key | None, removed: str | None) -> None:
        change = without_key(removed or "") if added is None else with_key(added)
        try:
            change_keys(self._file(), change)
        except KeyError:
            raise ApiError(404, f"There is no API key {(removed or '')[:100]!r}") from None
        except ValueError as error:
            raise ApiError(409, _sentence(error)) from None
        except (SettingsError, OSError) as error:
            raise ApiError(500, f"The file of API keys can't be changed: {error}") from None


def _made(wanted: _Wanted, now: datetime) -> tuple[Key, str]:
    limits: dict[str, int | None] = {}
    for name in ("requests_per_minute", "tokens_per_minute", "concurrent"):
        try:
            limits[name] = check_limit(getattr(wanted, name))
        except ValueError as error:
            raise bad_field(f"$.{name}", _sentence(error)) from None
    age_s = wanted.expires_in_s
    if age_s is not None and not 0 < age_s <= _MAX_AGE_S:
        raise bad_field("$.expires_in_s", f"Must be more than 0 and at most {_MAX_AGE_S}")
    expires = None if age_s is None else now + timedelta(seconds=age_s)
    scope = Scope(wanted.scope)
    try:
        return new_key(wanted.name, now=now, scope=scope, limits=Limits(**limits), expires=expires)
    except ValueError as error:
        raise bad_field("$.name", _sentence(error)) from None


def _sentence(error: ValueError) -> str:
    text = str(error)
    return text[:1].upper() + text[1:]
