"""The endpoints that only the admin page asks: what leads, the last turns, clients, the log.

Knows nothing about who may ask; that was checked before. The shapes (seconds, null = not known):

    lead:     {"figures": {"uncached_per_turn", "ttft_s", "disk_day": as in omlx status --json}}
    turns:    {"turns": [{"time": float, "model", "client": str, "ttft_s": float | null,
                          "prompt_tokens", "cached_tokens": int}]}, the last 240, the newest last
    clients:  {"clients": [{"name", "title", "kind", "endpoint", "install": str,
                            "needed_tokens": int, "fit": "well" | "tight" | "not" | null}],
               "models": [{"name": str, "window": int | null}]}
    clients/NAME?model=ID:  {"name", "model", "command", "text": str, "has_placeholder": bool}
    logs?lines=N:  {"lines": [str], "path": str | null}, at most 1000, the newest last

"fit" is that of the window of the model that ?model= names with the client's first request.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import TypeVar
from urllib.parse import unquote

from sanic.response import HTTPResponse

from omlx.errors import OmlxError
from omlx.models.names import Named
from omlx.server.auth import Guard
from omlx.server.desk import Desk, Wanted
from omlx.server.errors import ApiError
from omlx.server.logtail import MAX_LINES
from omlx.server.prompt import find_model
from omlx.server.service import Service
from omlx.server.web import Handler, Request, headers_of, json_response, query_of

_DEFAULT_LINES = 200
T = TypeVar("T")
Answer = TypeVar("Answer")


class ShownRoutes:
    """The handlers of one server; for the loop's thread."""

    def __init__(self, service: Service, guard: Guard) -> None:
        self._service = service
        self._guard = guard

    def handlers(self) -> dict[str, Handler]:
        """The handlers by the last part of their path."""
        return {
            "lead": self.lead,
            "turns": self.turns,
            "clients": self.clients,
            "clients/<name:str>": self.recipe,
            "logs": self.logs,
        }

    async def lead(self, request: Request) -> HTTPResponse:
        """GET /admin/api/lead."""
        return json_response({"figures": self._desk().lead(self._service.status())})

    async def turns(self, request: Request) -> HTTPResponse:
        """GET /admin/api/turns."""
        return json_response({"turns": self._service.counting.turns.shown()})

    async def clients(self, request: Request) -> HTTPResponse:
        """GET /admin/api/clients."""
        named = self._named(query_of(request))
        window = None if named is None else self._service.window(named.entry, named.id)
        shown = await _asked(self._desk().clients, window)
        names = self._service.context.names().listed()
        models = [
            {"name": name, "window": self._service.window(one.entry, one.id)} for name, one in names
        ]
        return json_response({"clients": list(shown), "models": models})

    async def recipe(self, request: Request, name: str) -> HTTPResponse:
        """GET /admin/api/clients/<name>."""
        query, desk = query_of(request), self._desk()
        named = self._named(query)
        if named is None:
            raise ApiError(400, "Say which model: ?model=ID", param="model")
        window = self._service.window(named.entry, named.id)
        if window is None:
            reason = f"Nothing says how large the window of {named.id} is: set context_window"
            raise ApiError(409, reason, param="model")
        wanted = Wanted(
            unquote(name)[:100],
            query["model"],
            window,
            base=self._base(headers_of(request)),
            needs_key=not self._guard.is_open,
        )
        return json_response(await _asked(desk.recipe, wanted))

    async def logs(self, request: Request) -> HTTPResponse:
        """GET /admin/api/logs."""
        text = query_of(request).get("lines", str(_DEFAULT_LINES))
        if not text.isdecimal() or len(text) > 6 or not 1 <= int(text) <= MAX_LINES:
            raise ApiError(400, f"lines must be from 1 to {MAX_LINES}", param="lines")
        try:
            tail = await asyncio.to_thread(self._service.log.last, int(text))
        except OSError as error:
            raise ApiError(500, f"The log can't be read: {error.strerror or error}") from None
        path = None if tail.path is None else str(tail.path)
        return json_response({"lines": list(tail.lines), "path": path})

    def _desk(self) -> Desk:
        if self._service.context.desk is None:
            raise ApiError(404, "This server was not started by omlx serve")
        return self._service.context.desk

    def _named(self, query: Mapping[str, str]) -> Named | None:
        name = query.get("model", "")
        return find_model(self._service.context, name, or_default=False) if name else None

    def _base(self, headers: Mapping[str, str]) -> str:
        """The server's root as the browser reaches it, by a Host header that was checked before."""
        scheme, host = self._service.address.partition("://")[0], headers.get("host", "")
        return f"{scheme}://{host}" if host and "://" in self._service.address else ""


async def _asked(ask: Callable[[T], Answer], given: T) -> Answer:
    """What the desk says, which may take long; ApiError where it has none."""
    try:
        return await asyncio.to_thread(ask, given)
    except OmlxError as error:
        text = f"{error.message} ({error.hint})" if error.hint else error.message
        raise ApiError(400, f"{text[:1].upper()}{text[1:]}") from None
