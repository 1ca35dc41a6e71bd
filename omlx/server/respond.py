"""Answers a generation request over HTTP: reads the body, streams or collects the answer.

Knows nothing about dialects beyond their interface, or about engines.
"""

import logging
from dataclasses import dataclass
from http import HTTPStatus

from omlx.server.errors import ApiError, internal, log_level, unavailable
from omlx.server.generation import Began, Dialect, Ended, Piece, Reply, Text
from omlx.server.handling import handling
from omlx.server.recorder import caller
from omlx.server.service import Service
from omlx.server.session import Session
from omlx.server.web import (
    Request,
    Send,
    address_of,
    headers_of,
    read_body,
    request_id,
    start_events,
)

_log = logging.getLogger("omlx.server")


@dataclass(frozen=True, slots=True)
class _Patience:
    """How long a stream may be silent before its first event, and after it."""

    first_event_s: float
    keepalive_s: float

    def of(self, *, is_begun: bool) -> float:
        """The limit at this point of a stream."""
        return self.keepalive_s if is_begun else self.first_event_s


class Responder:
    """Answers requests of one server."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def answer(self, request: Request, dialect: Dialect) -> bytes | None:
        """The body of the answer; None if it was streamed. ApiError if nothing was sent yet."""
        service, context = self._service, self._service.context
        arrived, identity = context.clock(), request_id(request)
        body = await read_body(
            request,
            max_bytes=context.settings.server.max_body,
            timeout_s=context.timing.body_s,
        )
        headers = headers_of(request)
        prepared = await service.prepare(dialect, body, handling(headers))
        generation = prepared.generation
        reply = dialect.reply(
            identity,
            prepared.named or prepared.model_id,
            int(context.wall()),
            wants_usage=generation.wants_usage,
        )
        who = caller(headers, dialect.flavor.value, address_of(request))
        session = service.open(prepared, identity, arrived, who)
        if not generation.is_stream:
            with session:
                return await _collect(session, reply)
        await self._stream(request, session, reply)
        return None

    async def _stream(self, request: Request, session: Session, reply: Reply) -> None:
        """Stream an answer; an error before the first byte is raised, a later one is streamed."""
        send: Send | None = None
        context = self._service.context
        keepalive_s = context.settings.server.keepalive
        first_event_s = context.timing.first_event_s - context.timing.head_grace_s
        try:
            with session:
                pieces = await session.next(context.timing.head_grace_s)
                send = await start_events(request)
                await send(reply.head())
                patience = _Patience(min(first_event_s, keepalive_s), keepalive_s)
                await _pump(session, reply, send, pieces, patience=patience)
        except ApiError as error:
            if send is None:
                raise
            _log.log(log_level(error), "%s: %s", session.course.request_id, error)
            await self._fail(send, reply, error)
        except Exception:
            if send is None:
                raise
            _log.exception("%s: internal error in a stream", session.course.request_id)
            await self._fail(send, reply, internal())

    async def _fail(self, send: Send, reply: Reply, error: ApiError) -> None:
        self._service.metrics.error_sent(error.status)
        if error.status == HTTPStatus.TOO_MANY_REQUESTS:
            # Inside a stream clients know, and try again on, an overload.
            error = unavailable(error.message)
        await send(reply.error(error))


async def _collect(session: Session, reply: Reply) -> bytes:
    texts: list[str] = []
    while True:
        for piece in await session.next(None):
            match piece:
                case Began():
                    pass
                case Text():
                    texts.append(piece.text)
                case Ended():
                    return reply.whole("".join(texts), piece, session.course.usage)


async def _pump(
    session: Session, reply: Reply, send: Send, pieces: list[Piece], *, patience: _Patience
) -> None:
    """Send pieces as they come, beginning with those given; never silent for long."""
    is_begun, is_silent = False, False
    while True:
        out = b""
        if not is_begun and (pieces or is_silent):
            is_begun = True
            out += reply.begin(session.course.usage)
        out += b"".join(_written(piece, session, reply) for piece in pieces)
        if not out and is_silent:
            out = reply.keepalive()
        if out:
            await send(out)
        if pieces and isinstance(pieces[-1], Ended):
            return
        pieces = await session.next(patience.of(is_begun=is_begun))
        is_silent = not pieces


def _written(piece: Piece, session: Session, reply: Reply) -> bytes:
    match piece:
        case Began():
            return b""
        case Text():
            return reply.text(piece.text)
        case Ended():
            return reply.end(piece, session.course.usage)
