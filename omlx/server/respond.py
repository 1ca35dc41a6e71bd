"""Answers a generation request over HTTP: reads the body, streams or collects the answer.

Knows nothing about dialects beyond their interface, or about engines.
"""

import logging
from dataclasses import dataclass, replace
from http import HTTPStatus

from omlx.server.choices import Choices, Heard
from omlx.server.errors import ApiError, Flavor, internal, log_level, unavailable
from omlx.server.generation import About, Began, Dialect, Ended, Progress, Reply
from omlx.server.handling import handling
from omlx.server.quota import Quotas, Visit
from omlx.server.recorder import caller
from omlx.server.salt import cache_salt
from omlx.server.service import Service
from omlx.server.session import Caller
from omlx.server.spoken import Spoken
from omlx.server.web import (
    Request,
    Send,
    address_of,
    grant_of,
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


def caller_of(request: Request, flavor: Flavor) -> Caller:
    """Who sent a request, by its key and headers."""
    key = grant_of(request).key
    return caller(headers_of(request), flavor.value, address_of(request), key=key)


class Responder:
    """Answers requests of one server."""

    def __init__(self, service: Service, quotas: Quotas) -> None:
        self._service = service
        self._quotas = quotas

    async def answer(self, request: Request, dialect: Dialect) -> bytes | None:
        """The body of the answer; None if it was streamed. ApiError if nothing was sent yet."""
        grant = grant_of(request)
        with self._quotas.visit(grant.key, grant.limits) as visit:
            return await self._answer(request, dialect, visit)

    async def _answer(self, request: Request, dialect: Dialect, visit: Visit) -> bytes | None:
        service, context = self._service, self._service.context
        arrived, identity = context.clock(), request_id(request)
        body = await read_body(
            request,
            max_bytes=context.settings.server.max_body,
            timeout_s=context.timing.body_s,
        )
        headers, salt = headers_of(request), self._salt(request)
        who = replace(caller_of(request, dialect.flavor), salt=salt)
        prepared = await service.prepare(dialect, body, handling(headers), who.tenant, salt=salt)
        generation = prepared.generation
        about = About(
            identity,
            prepared.named or prepared.model_id,
            int(context.wall()),
            generation,
            who.tenant,
            fingerprint=prepared.fingerprint,
            prompts=[one.text for one in prepared.prompts] if generation.is_echo else (),
        )
        reply = dialect.reply(about)
        sessions = service.open_all(prepared, identity, arrived, who)
        choices = Choices(sessions, generation.num_prompts, prepared.scale)
        visit.charge(choices.usage.prompt, then=lambda: choices.usage.completion)
        if not generation.is_stream:
            with choices:
                return await _collect(choices, reply)
        await self._stream(request, choices, reply)
        return None

    async def count(self, request: Request, dialect: Dialect) -> int:
        """How many tokens the prompt of a request has; ApiError says what is wrong with it."""
        context, grant = self._service.context, grant_of(request)
        with self._quotas.visit(grant.key, grant.limits):
            body = await read_body(
                request,
                max_bytes=context.settings.server.max_body,
                timeout_s=context.timing.body_s,
            )
            return await self._service.count(dialect, body, self._salt(request))

    def _salt(self, request: Request) -> str:
        """Of those with whom a request shares what is cached."""
        isolate = self._service.context.settings.cache.isolate
        return cache_salt(headers_of(request), grant_of(request), isolate=isolate)

    async def _stream(self, request: Request, choices: Choices, reply: Reply) -> None:
        """Stream an answer; an error before the first byte is raised, a later one is streamed."""
        send: Send | None = None
        context = self._service.context
        keepalive_s = context.settings.server.keepalive
        first_event_s = context.timing.first_event_s - context.timing.head_grace_s
        try:
            with choices:
                pieces = await choices.next(context.timing.head_grace_s)
                send = await start_events(request)
                await send(reply.head())
                patience = _Patience(min(first_event_s, keepalive_s), keepalive_s)
                await _pump(choices, reply, send, pieces, patience=patience)
        except ApiError as error:
            if send is None:
                raise
            _log.log(log_level(error), "%s: %s", request_id(request), error)
            await self._fail(send, reply, error)
        except Exception:
            if send is None:
                raise
            _log.exception("%s: internal error in a stream", request_id(request))
            await self._fail(send, reply, internal())

    async def _fail(self, send: Send, reply: Reply, error: ApiError) -> None:
        self._service.metrics.error_sent(error.status)
        if error.status == HTTPStatus.TOO_MANY_REQUESTS:
            # Inside a stream clients know, and try again on, an overload.
            error = unavailable(error.message)
        await send(reply.error(error))


async def _collect(choices: Choices, reply: Reply) -> bytes:
    spoken = Spoken()
    while choices.num_open:
        for choice, piece in await choices.next(None):
            spoken.take(choice, piece)
    return reply.whole(spoken.answers(), choices.told_usage)


async def _pump(
    choices: Choices, reply: Reply, send: Send, heard: Heard, *, patience: _Patience
) -> None:
    """Send pieces as they come, beginning with those given; never silent for long."""
    is_begun, is_silent = False, False
    progress: Progress | None = None
    while True:
        parts: list[bytes] = []
        if not is_begun and (heard or is_silent):
            is_begun = True
            parts.append(reply.begin(choices.told_usage))
        for choice, piece in heard:
            match piece:
                case Began():
                    pass
                case Progress():
                    progress = piece
                case Ended():
                    parts.append(reply.ended(piece, choice))
                case _:
                    parts.append(reply.said(piece, choice))
        if not choices.num_open:
            parts.append(reply.end(choices.told_usage))
        out = b"".join(parts)
        if not out and is_silent:
            out = reply.keepalive(progress)
        if out:
            await send(out)
        if not choices.num_open:
            return
        heard = await choices.next(patience.of(is_begun=is_begun))
        is_silent = not heard
