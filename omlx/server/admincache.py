"""The endpoints on what is stored: pruning it, and why a request missed it; never any text.

Knows nothing about who may ask; that was checked before. The shapes (sizes in bytes):

    POST /admin/api/cache/prune:  {"model", "max_size", "older_than": str, "everything",
        "is_dry_run": bool}, of which at least one says what goes: the oldest until no more than
        max_size is left, what was not used for older_than, all of a model, everything. The answer
        is {"is_dry_run": bool, "num_files", "num_bytes", "num_failed": int}
    GET /admin/api/requests/<id>/miss:  {"id", "model", "miss": str, "prompt_tokens",
        "cached_memory", "cached_disk", "uncached": int, "token": int | null, "place": str | null,
        "change": str | null, "note": str, "parts": [{"part": str, "tokens", "cached",
        "uncached": int}]}

"token" is the first one that was not stored, "place" the part of the request that it lies in, and
"change" what happened to that part.
"""

import asyncio
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import unquote

import msgspec
from sanic.response import HTTPResponse

from omlx.errors import OmlxError
from omlx.server.body import decode
from omlx.server.context import ServerContext
from omlx.server.errors import ApiError, bad_field
from omlx.server.web import Request, json_response, read_body
from omlx.storage.fs import RealFileSystem
from omlx.storage.survey import execute, plan_prune, survey
from omlx.units import parse_duration, parse_size

_MAX_BYTES = 10_000
_BODY_S = 10.0
_MAX_ID = 100
Number = TypeVar("Number", int, float)


class _Criteria(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a POST."""

    model: str | None = None
    max_size: str | None = None
    older_than: str | None = None
    everything: bool = False
    is_dry_run: bool = False


class CacheRoutes:
    """The handlers of one server; for the loop's thread. Files are read and removed on another."""

    def __init__(self, context: ServerContext) -> None:
        self._context = context
        self._decoder = msgspec.json.Decoder(_Criteria)
        self._alone = asyncio.Lock()

    async def prune_cache(self, request: Request) -> HTTPResponse:
        """POST /admin/api/cache/prune."""
        body = await read_body(request, max_bytes=_MAX_BYTES, timeout_s=_BODY_S)
        wanted = decode(self._decoder, body)
        max_bytes = _number("max_size", wanted.max_size, parse_size)
        older_than_s = _number("older_than", wanted.older_than, parse_duration)
        _check(wanted)
        if self._alone.locked():
            raise ApiError(409, "The cache is being pruned already")
        async with self._alone:
            return json_response(
                await asyncio.to_thread(self._prune, wanted, max_bytes, older_than_s)
            )

    async def explain_miss(self, request: Request, request_id: str) -> HTTPResponse:
        """GET /admin/api/requests/<id>/miss."""
        desk, name = self._context.desk, unquote(request_id)
        if desk is None or not name or len(name) > _MAX_ID:
            raise ApiError(404, "Nothing is known of this request")
        try:
            return json_response(await asyncio.to_thread(desk.miss, name))
        except OmlxError as error:
            raise ApiError(404, f"{error.message[:1].upper()}{error.message[1:]}") from None

    def _prune(
        self, wanted: _Criteria, max_bytes: int | None, older_than_s: float | None
    ) -> dict[str, object]:
        places = self._context.places
        if places is None:
            raise ApiError(404, "This server has no folder of blocks")
        directory, fs = places.cache_dir, RealFileSystem()
        try:
            if wanted.model is not None:
                known = sorted({root.model for root in survey(directory, fs) if root.model})
                if wanted.model not in known:
                    raise bad_field("$.model", f"Nothing is stored of {wanted.model[:200]!r}")
            plan = plan_prune(
                directory,
                fs,
                now=self._context.wall(),
                max_bytes=max_bytes,
                older_than_s=older_than_s,
                model=wanted.model,
                everything=wanted.everything,
            )
            if wanted.is_dry_run:
                return _answer(len(plan.files), plan.num_bytes, 0, is_dry_run=True)
            done = execute(plan, directory, fs)
        except OSError as error:
            reason = error.strerror or str(error)
            raise ApiError(500, f"The folder of blocks cannot be read: {reason}") from None
        return _answer(done.num_files, done.num_bytes, done.num_failed, is_dry_run=False)


def _check(wanted: _Criteria) -> None:
    """ApiError 400 where nothing, or a contradiction, says what goes."""
    has_limit = wanted.max_size is not None or wanted.older_than is not None
    if wanted.everything and has_limit:
        raise bad_field("$.everything", "Everything leaves nothing for other limits to choose")
    if not wanted.everything and not has_limit and wanted.model is None:
        raise bad_field("$", "Say what is to go: model, max_size, older_than or everything")


def _number(name: str, text: str | None, parse: Callable[[str], Number]) -> Number | None:
    try:
        return None if text is None else parse(text)
    except ValueError as error:
        message = str(error)
        raise bad_field(f"$.{name}", f"{message[:1].upper()}{message[1:]}") from None


def _answer(
    num_files: int, num_bytes: int, num_failed: int, *, is_dry_run: bool
) -> dict[str, object]:
    return {
        "is_dry_run": is_dry_run,
        "num_files": num_files,
        "num_bytes": num_bytes,
        "num_failed": num_failed,
    }
