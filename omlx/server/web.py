"""One HTTP request as handlers see it: its headers, its body, and a response that is streamed.

Knows nothing about routes or dialects. With `app` and `sockets` the only module that knows Sanic,
whose types say little.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import orjson
from sanic import Request as _Request
from sanic import Sanic
from sanic.config import Config
from sanic.response import HTTPResponse, raw

from omlx.server import sse
from omlx.server.errors import ApiError, Flavor, flavor_of

App = Sanic[Config, SimpleNamespace]
Request = _Request[App, SimpleNamespace]
Send = Callable[[bytes], Awaitable[None]]
JSON = "application/json"


def request_id(request: Request) -> str:
    """The id that the request was given when it was first looked at."""
    return vars(request.ctx).setdefault("request_id", secrets.token_hex(12))


def flavor(request: Request) -> Flavor:
    """The dialect in which the client expects errors."""
    return flavor_of(request.path, cast(Any, request.headers))


def json_response(value: dict[str, object], *, status: int = 200) -> HTTPResponse:
    """A plain value as the response."""
    return raw(orjson.dumps(value), status=status, content_type=JSON)


async def read_body(request: Request, *, max_bytes: int, timeout_s: float) -> bytes:
    """The whole body, within limits of size and time; ApiError 413 or 408."""
    too_large = ApiError(413, f"The body is larger than {max_bytes} bytes")
    length = str(cast(Any, request.headers).get("content-length", ""))
    if length.isdecimal() and int(length[:20]) > max_bytes:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for data in cast(AsyncIterator[bytes], request.stream):
                body += data
                if len(body) > max_bytes:
                    raise too_large
    except TimeoutError:
        raise ApiError(408, "The body did not arrive in time") from None
    return bytes(body)


async def start_events(request: Request) -> Send:
    """Begin a response of events; nothing is sent before the first call of what is returned."""
    response = cast(
        Any, await request.respond(content_type=sse.CONTENT_TYPE, headers=dict(sse.HEADERS))
    )

    async def send(data: bytes) -> None:
        await response.send(data)

    return send
