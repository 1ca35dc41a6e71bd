"""The endpoints below /admin/api/pulls: models that are fetched while the server runs.

Knows nothing about who may ask; that was checked before. The shapes (null = not known):

    GET:     {"pulls": [pull]}, the newest first, at most 20
    POST:    {"model": str}, as in omlx model pull: OWNER/NAME, OWNER/NAME@REVISION or demo; the
             answer (202) is the pull
    DELETE:  of /admin/api/pulls/NUMBER ends one; what it has fetched is kept for the next try

    pull = {"number": int, "model": str, "state": "running" | "done" | "failed" | "cancelled",
            "stage": "" | "download" | "verify" | "convert", "done_bytes", "total_bytes": int,
            "age_s": float, "error": str | null, "served_as": str | null}

"served_as" is the id under which it is served from then on.
"""

import msgspec
from sanic.response import HTTPResponse

from omlx.errors import OmlxError
from omlx.server.body import decode
from omlx.server.context import ServerContext
from omlx.server.errors import ApiError, bad_field, busy
from omlx.server.pulls import Pulls
from omlx.server.web import Request, json_response, read_body

_MAX_BYTES = 10_000
_BODY_S = 10.0
_DEMO = "demo"


class _Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a POST."""

    model: str


class PullRoutes:
    """The handlers of one server; for the loop's thread."""

    def __init__(self, context: ServerContext, pulls: Pulls) -> None:
        self._context = context
        self._pulls = pulls
        self._decoder = msgspec.json.Decoder(_Wanted)

    async def show_pulls(self, request: Request) -> HTTPResponse:
        """GET /admin/api/pulls."""
        return json_response({"pulls": self._pulls.shown()})

    async def add_pull(self, request: Request) -> HTTPResponse:
        """POST /admin/api/pulls."""
        places = self._context.places
        if places is None:
            raise ApiError(404, "This server has no folder of models")
        body = await read_body(request, max_bytes=_MAX_BYTES, timeout_s=_BODY_S)
        model = decode(self._decoder, body).model.strip()
        _check_name(model)
        if self._pulls.running(model) is not None:
            raise ApiError(409, f"{model} is being fetched already")
        if self._pulls.is_full:
            raise busy("Two models are being fetched already; wait for one of them")
        spec = {
            "model": model,
            "folder": str(places.models_dir),
            "ceiling_bytes": places.ceiling_bytes,
        }
        pull = self._pulls.begin(model, spec)
        return json_response(pull.shown(self._context.clock()), status=202)

    async def cancel_pull(self, request: Request, number: str) -> HTTPResponse:
        """DELETE /admin/api/pulls/<number>."""
        is_number = number.isdecimal() and len(number) < 10
        pull = await self._pulls.cancel(int(number)) if is_number else None
        if pull is None:
            raise ApiError(404, f"There is no pull {number[:20]!r}")
        return json_response(pull.shown(self._context.clock()))


def _check_name(model: str) -> None:
    """ApiError 400 for what is no name of a model."""
    from omlx.models.pull import parse_repo  # with the hub's library, which few servers need

    if model == _DEMO:
        return
    try:
        parse_repo(model)
    except OmlxError as error:
        raise bad_field("$.model", f"{error.message[:1].upper()}{error.message[1:]}") from None
