"""The endpoints below /admin/api/models: a model comes, goes, or stays.

Knows nothing about who may ask; that was checked before. The shapes:

    POST /admin/api/models/load, /unload, /pin, /unpin:  {"model": str}, an id or another name;
        the answer is {"id": str, "state": str, "is_pinned": bool}

None of them waits: "state" is what it is right after, and the list of models says how it goes on.
A pin holds until the server ends; the setting engine.pin is for good.
"""

import msgspec
from sanic.response import HTTPResponse

from omlx.server.body import decode
from omlx.server.errors import in_use, unavailable
from omlx.server.prompt import find_model
from omlx.server.service import Service
from omlx.server.web import Handler, Request, json_response, read_body

_MAX_BYTES = 10_000
_BODY_S = 10.0


class _Which(msgspec.Struct, forbid_unknown_fields=True):
    """The body."""

    model: str


class ModelRoutes:
    """The handlers of one server; for the loop's thread."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._decoder = msgspec.json.Decoder(_Which)

    def handlers(self) -> dict[str, Handler]:
        """The handlers by the last part of their path."""
        return {"load": self.load, "unload": self.unload, "pin": self.pin, "unpin": self.unpin}

    async def load(self, request: Request) -> HTTPResponse:
        """POST /admin/api/models/load."""
        model_id = await self._model_of(request)
        if self._service.is_draining:
            raise unavailable("The server is stopping")
        self._service.context.pool.load(model_id)
        return self._answer(model_id)

    async def unload(self, request: Request) -> HTTPResponse:
        """POST /admin/api/models/unload."""
        model_id, pool = await self._model_of(request), self._service.context.pool
        if not pool.unload(model_id):
            raise in_use(model_id, pool.health(model_id).num_live)
        return self._answer(model_id)

    async def pin(self, request: Request) -> HTTPResponse:
        """POST /admin/api/models/pin."""
        return await self._pin(request, is_pinned=True)

    async def unpin(self, request: Request) -> HTTPResponse:
        """POST /admin/api/models/unpin."""
        return await self._pin(request, is_pinned=False)

    async def _pin(self, request: Request, *, is_pinned: bool) -> HTTPResponse:
        model_id = await self._model_of(request)
        self._service.context.pool.pin(model_id, is_pinned=is_pinned)
        return self._answer(model_id)

    async def _model_of(self, request: Request) -> str:
        body = await read_body(request, max_bytes=_MAX_BYTES, timeout_s=_BODY_S)
        name = decode(self._decoder, body).model
        return find_model(self._service.context, name, or_default=False).entry.id

    def _answer(self, model_id: str) -> HTTPResponse:
        pool = self._service.context.pool
        state, is_pinned = pool.get(model_id).state().value, pool.is_pinned(model_id)
        return json_response({"id": model_id, "state": state, "is_pinned": is_pinned})
