"""A listening socket, Sanic's side of it, and the connections that come from it.

Knows nothing about requests. The one module that touches Sanic's server object, whose own way to
stop hangs on idle connections.
"""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterable
from typing import Any, Protocol, cast

from omlx.errors import ServerError
from omlx.server.web import App

_BACKLOG = 512
_CLOSE_S = 1.0


class _Http(Protocol):
    keep_alive: bool


class _Connection(Protocol):
    @property
    def http(self) -> _Http | None: ...

    def close_if_idle(self) -> bool: ...

    def abort(self) -> None: ...


class _SanicServer(Protocol):
    """What is used of what `create_server` returns."""

    server: asyncio.Server
    connections: set[_Connection]

    async def startup(self) -> None: ...

    async def before_start(self) -> None: ...

    async def start_serving(self) -> None: ...

    async def after_start(self) -> None: ...

    async def before_stop(self) -> None: ...

    async def after_stop(self) -> None: ...


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; ServerError if the address can't be used."""
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, _, _, _, address = found[0]
        listener = socket.create_server(
            cast(tuple[str, int], address), family=family, backlog=_BACKLOG
        )
    except OSError as error:
        reason = error.strerror or str(error)
        raise ServerError(
            f"Can't listen on {where}: {reason}", hint="choose another --port or --host"
        ) from error
    # Finds peers that vanished without a word; connections inherit it.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return listener


def address_of(host: str, listener: socket.socket, *, is_secure: bool = False) -> str:
    """The address for clients, with the port that was really taken."""
    port = listener.getsockname()[1]
    scheme = "https" if is_secure else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


class Sockets:
    """The listener of an application and its connections; for the loop's thread."""

    def __init__(self, server: _SanicServer) -> None:
        self._server = server

    @classmethod
    async def start(
        cls, app: App, listener: socket.socket, tls: ssl.SSLContext | None = None
    ) -> "Sockets":
        """Begin to accept connections."""
        untyped = cast(Any, app)
        server: _SanicServer = await untyped.create_server(
            sock=listener, ssl=tls, asyncio_server_kwargs={"start_serving": False}
        )
        await server.startup()
        await server.before_start()
        await server.start_serving()
        await server.after_start()
        return cls(server)

    async def refuse_new(self) -> None:
        """Accept no more connections; those that are open stay."""
        self._server.server.close()
        await self._server.before_stop()

    def close_idle(self) -> bool:
        """Close connections without a request, the others after theirs; whether none is left."""
        for connection in self._connections():
            if not connection.close_if_idle() and connection.http is not None:
                connection.http.keep_alive = False
        return not self._server.connections

    async def close(self) -> None:
        """Cut what is still open."""
        for connection in self._connections():
            connection.abort()
        await asyncio.sleep(0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._server.server.wait_closed()
        await self._server.after_stop()

    def _connections(self) -> Iterable[_Connection]:
        return tuple(self._server.connections)
