"""One HTTP request as handlers see it: its headers, its body, and a response that is streamed.

Knows nothing about routes or dialects. With `app` the only module that knows Sanic, whose types
say little.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from types import SimpleNamespace
from typing import Any, cast

import orjson
from sanic import Request as _Request
from sanic import Sanic
from sanic.config import Config
from sanic.exceptions import RequestCancelled
from sanic.response import HTTPResponse, raw

from omlx.server import sse
from omlx.server.auth import ANYONE, Grant
from omlx.server.errors import ApiError, Flavor, flavor_of

App = Sanic[Config, SimpleNamespace]
Request = _Request[App, SimpleNamespace]
Handler = Callable[..., Coroutine[Any, Any, HTTPResponse]]
Send = Callable[[bytes], Awaitable[None]]
JSON = "application/json"
_MUCH = 4


def request_id(request: Request) -> str:
    """The id that the request was given when it was first looked at."""
    return vars(request.ctx).setdefault("request_id", secrets.token_hex(12))


def set_grant(request: Request, grant: Grant) -> None:
    """Note who sends a request (mutates)."""
    vars(request.ctx)["grant"] = grant


def grant_of(request: Request) -> Grant:
    """Who sends a request, as far as the check before it has found out."""
    return vars(request.ctx).get("grant", ANYONE)


def headers_of(request: Request) -> Mapping[str, str]:
    """The headers; their names may be asked for in any case."""
    return cast(Any, request.headers)


def address_of(request: Request) -> str:
    """The address of whoever has connected; empty where there is none, as on a Unix socket."""
    return str(request.ip or "")


def query_of(request: Request) -> Mapping[str, str]:
    """The first value of each parameter behind the path."""
    args = cast(Mapping[str, list[str]], cast(Any, request).args)
    return {name: values[0] for name, values in args.items() if values}


def flavor(request: Request) -> Flavor:
    """The dialect in which the client expects errors."""
    return flavor_of(request.path, headers_of(request))


def json_response(value: dict[str, object], *, status: int = 200) -> HTTPResponse:
    """A plain value as the response."""
    return raw(orjson.dumps(value), status=status, content_type=JSON)


async def read_body(request: Request, *, max_bytes: int, timeout_s: float) -> bytes:
    """The whole body, within limits of size and of time between two parts; ApiError 413 or 408.

    A body that is too large is read to its end all the same, unless it is much too large: a
    client that still sends would not see the answer.
    """
    too_large = ApiError(413, f"The body is larger than {max_bytes} bytes")
    length = str(cast(Any, request.headers).get("content-length", ""))
    if length.isdecimal() and int(length[:20]) > max_bytes * _MUCH:
        raise too_large
    body, num_bytes = bytearray(), 0
    try:
        async with asyncio.timeout(timeout_s) as timeout:
            async for data in cast(AsyncIterator[bytes], request.stream):
                timeout.reschedule(asyncio.get_running_loop().time() + timeout_s)
                num_bytes += len(data)
                if num_bytes <= max_bytes:
                    body += data
                elif num_bytes > max_bytes * _MUCH:
                    raise too_large
    except TimeoutError:
        raise ApiError(408, "The body did not arrive in time") from None
    # Sanic leaves off reading where much has come at once, and then hears of no client that goes.
    transport = cast(Any, request.transport)
    if not transport.is_closing():
        transport.resume_reading()
    if num_bytes > max_bytes:
        raise too_large
    return bytes(body)


def close_if_unread(request: Request) -> None:
    """Let the connection end with this response if a part of the body was not read (mutates)."""
    stream = cast(Any, request.stream)
    if stream is not None and stream.request_body:
        stream.keep_alive = False


async def start_events(request: Request) -> Send:
    """Begin a response of events; nothing is sent before the first call of what is returned."""
    response = cast(
        Any, await request.respond(content_type=sse.CONTENT_TYPE, headers=dict(sse.HEADERS))
    )

    async def send(data: bytes) -> None:
        if request.transport.is_closing():
            raise RequestCancelled  # Sanic does so too, but not once it has cut the connection
        await response.send(data)

    return send
