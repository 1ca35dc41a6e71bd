"""The endpoints below /admin/api/settings: what holds, who set it, and what the file says instead.

Knows nothing about who may ask; that was checked before. The shapes:

    GET:     {"settings": {path: {"value": any, "origin": {"kind", "where": str}}},
              "schema": {path: {"help", "kind": str, "choices": [str], "default", "shown": str,
                                "is_secret", "is_per_model": bool}},
              "pending": {path: {"shown": str, "origin": as above}}, "problems": [str]}
    POST:    {"value": str} for /admin/api/settings/PATH, in the words of the command line, writes
             config.toml; the answer is {"path": str, "is_shadowed", "needs_restart": bool, "shown":
             str, "origin": as above}, of what a server started now would have
    DELETE:  of /admin/api/settings/PATH takes it out of config.toml; the answer is the same

"shown" is a value as people write it. "pending" has what is another one in the files than in this
server, which takes it at its next start; "problems" are those of the files. Secrets are masked, and
cannot be written here.
"""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

import msgspec
from sanic.response import HTTPResponse

from omlx.errors import OmlxError, SettingsError
from omlx.server.body import decode
from omlx.server.desk import Desk
from omlx.server.errors import ApiError, bad_field
from omlx.server.service import Service
from omlx.server.web import Request, json_response, read_body
from omlx.settings.build import Resolved
from omlx.settings.layers import Origin, OriginKind, suggest
from omlx.settings.leaf import Kind, Leaf, leaves
from omlx.settings.schema import Settings
from omlx.settings.value import MASK, masked, show

_MAX_BYTES = 100_000
_BODY_S = 10.0
_MAX_PROBLEMS = 20
_DEFAULT = Origin(OriginKind.DEFAULT, "default")


class _Value(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a POST."""

    value: str


class SettingRoutes:
    """The handlers of one server; for the loop's thread. Files are read and written on another."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._decoder = msgspec.json.Decoder(_Value)

    async def settings(self, request: Request) -> HTTPResponse:
        """GET /admin/api/settings: every setting, and who set it."""
        context = self._service.context
        shown = {
            path: {
                "value": masked(leaf, _value(context.settings, path)),
                "origin": _origin(context.origins.get(path, _DEFAULT)),
            }
            for path, leaf in leaves().items()
        }
        schema = {path: _schema(leaf, context.settings) for path, leaf in leaves().items()}
        pending, problems = await asyncio.to_thread(self._pending)
        return json_response(
            {"settings": shown, "schema": schema, "pending": pending, "problems": problems}
        )

    async def set_setting(self, request: Request, path: str) -> HTTPResponse:
        """POST /admin/api/settings/<path>."""
        body = await read_body(request, max_bytes=_MAX_BYTES, timeout_s=_BODY_S)
        return await self._write(unquote(path), decode(self._decoder, body).value)

    async def unset_setting(self, request: Request, path: str) -> HTTPResponse:
        """DELETE /admin/api/settings/<path>."""
        return await self._write(unquote(path), None)

    async def _write(self, path: str, text: str | None) -> HTTPResponse:
        leaf, desk = _leaf(path), self._desk()
        if leaf.option.secret:
            raise bad_field(path, "A secret can't be set here: use its variable, or omlx key")
        try:
            await asyncio.to_thread(desk.write, path, text)
            written = await asyncio.to_thread(desk.written)
        except SettingsError as error:
            raise ApiError(
                400, _without_path("; ".join(error.problems), path), param=path
            ) from None
        except OmlxError as error:
            raise ApiError(400, _sentence(error), param=path) from None
        now, then = (
            _value(one, path) for one in (self._service.context.settings, written.settings)
        )
        origin = written.origins.get(path, _DEFAULT)
        return json_response(
            {
                "path": path,
                "is_shadowed": origin.kind in (OriginKind.CLI, OriginKind.ENV),
                "needs_restart": now != then,
                "shown": _shown(leaf, then),
                "origin": _origin(origin),
            }
        )

    def _desk(self) -> Desk:
        if self._service.context.desk is None:
            raise ApiError(404, "This server has no file of settings")
        return self._service.context.desk

    def _pending(self) -> tuple[dict[str, object], list[str]]:
        """What the files say otherwise than what holds, and what is wrong with them."""
        if self._service.context.desk is None:
            return {}, []
        try:
            written = self._service.context.desk.written()
        except SettingsError as error:
            return {}, list(error.problems[:_MAX_PROBLEMS])
        except OmlxError as error:
            return {}, [_sentence(error)]
        return _differences(self._service.context.settings, written), []


def _differences(running: Settings, written: Resolved) -> dict[str, object]:
    found: dict[str, object] = {}
    for path, leaf in leaves().items():
        then = _value(written.settings, path)
        if then != _value(running, path):
            origin = _origin(written.origins.get(path, _DEFAULT))
            found[path] = {"shown": _shown(leaf, then), "origin": origin}
    return found


def _leaf(path: str) -> Leaf:
    """ApiError 404 for a setting that is none."""
    known = leaves()
    if path not in known:
        raise ApiError(404, f"There is no setting {path[:100]!r}{suggest(path, known)}")
    return known[path]


def _schema(leaf: Leaf, settings: Settings) -> Mapping[str, object]:
    kind = "text" if leaf.option.choices else leaf.kind.name.lower()
    choices = [*leaf.option.choices, *leaf.words]
    if leaf.kind is Kind.BOOL:
        choices = ["true", "false", *leaf.words]
    return {
        "help": leaf.option.help,
        "kind": kind,
        "choices": choices,
        "default": show(leaf, leaf.default),
        "shown": _shown(leaf, _value(settings, leaf.path)),
        "is_secret": leaf.option.secret,
        "is_per_model": leaf.option.per_model,
    }


def _shown(leaf: Leaf, value: object) -> str:
    return MASK if leaf.option.secret and value is not None else show(leaf, value)


def _origin(origin: Origin) -> dict[str, str]:
    return {"kind": origin.kind.value, "where": origin.where}


def _without_path(message: str, path: str) -> str:
    """What is wrong with a value, without the name that the field has on the page already."""
    text = message.removeprefix(f"{path}: ")
    return text[:1].upper() + text[1:]


def _sentence(error: OmlxError) -> str:
    text = f"{error.message} ({error.hint})" if error.hint else error.message
    return text[:1].upper() + text[1:]


def _value(settings: object, path: str) -> object:
    value: Any = settings
    for name in path.split("."):
        value = getattr(value, name)
    return value
