"""The routes on responses that are kept: show one, forget one, list what it was an answer to.

Knows nothing about how they come to be kept.
"""

from sanic.response import HTTPResponse, raw

from omlx.server.errors import ApiError, Flavor, unsupported
from omlx.server.openai.responses_list import input_page
from omlx.server.openai.responses_store import Kept, ResponseStore
from omlx.server.respond import caller_of
from omlx.server.web import (
    JSON,
    Request,
    json_response,
    query_of,
)


class KeptRoutes:
    """The handlers; each finds only what the same tenant asked for."""

    def __init__(self, store: ResponseStore) -> None:
        self._store = store

    async def show(self, request: Request, response_id: str) -> HTTPResponse:
        """GET /v1/responses/<id>."""
        if query_of(request).get("stream", "false") != "false":
            raise unsupported("stream", "The events of an answer that is over")
        return raw(self._kept(request, response_id).response, content_type=JSON)

    async def forget(self, request: Request, response_id: str) -> HTTPResponse:
        """DELETE /v1/responses/<id>."""
        if not self._store.remove(_tenant(request), response_id):
            raise _unknown(response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    async def items(self, request: Request, response_id: str) -> HTTPResponse:
        """GET /v1/responses/<id>/input_items."""
        kept = self._kept(request, response_id)
        return json_response(input_page(kept.items, response_id, query_of(request)))

    def _kept(self, request: Request, response_id: str) -> Kept:
        kept = self._store.get(_tenant(request), response_id)
        if kept is None:
            raise _unknown(response_id)
        return kept


def _tenant(request: Request) -> str:
    return caller_of(request, Flavor.OPENAI).tenant


def _unknown(response_id: str) -> ApiError:
    return ApiError(404, f"The response {response_id[:100]!r} is not kept here (any more)")
