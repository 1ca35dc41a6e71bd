"""The Sanic application: routes, checks before them, errors after them.

Knows nothing about how requests are answered.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, MutableMapping
from typing import Any, cast
from urllib.parse import unquote

from sanic import Sanic
from sanic.exceptions import SanicException
from sanic.handlers import ErrorHandler
from sanic.http import Http
from sanic.response import BaseHTTPResponse, HTTPResponse, raw

from omlx.errors import OmlxError
from omlx.models.names import Named
from omlx.server import metrics
from omlx.server.adminpaths import admin_routes
from omlx.server.anthropic import models as anthropic_models
from omlx.server.anthropic.messages import Counting, Messages
from omlx.server.auth import Guard, is_page, need_of
from omlx.server.context import Listed
from omlx.server.errors import (
    ApiError,
    Flavor,
    error_bytes,
    from_status,
    internal,
    log_level,
    status_of,
)
from omlx.server.generation import Dialect
from omlx.server.kept import KeptRoutes
from omlx.server.keyring import KeyRing
from omlx.server.openai import models as openai_models
from omlx.server.openai.chat import Chat
from omlx.server.openai.completions import Completions
from omlx.server.openai.responses import Responses
from omlx.server.origin import SECURE_HEADERS
from omlx.server.page.assets import PAGE_HEADERS
from omlx.server.prompt import find_model
from omlx.server.quota import Quotas
from omlx.server.resident import load_model, unload_model
from omlx.server.respond import Responder
from omlx.server.scale import scale_of
from omlx.server.service import Service
from omlx.server.signin import Sessions
from omlx.server.web import (
    JSON,
    App,
    Handler,
    Request,
    close_if_unread,
    flavor,
    headers_of,
    json_response,
    request_id,
    set_grant,
)

_log = logging.getLogger("omlx.server")
_READ = ["GET", "HEAD"]
_HEADER_BYTES = 16_384
# Sanic's own timer would cut silent prefills; there are own limits instead.
_NO_TIMEOUT_S = 86_400
_IDLE_S = 120


def build_app(service: Service, keys: KeyRing) -> App:
    """The application of one server; `forget_app` when the server ends."""
    app = Sanic(
        f"omlx-{secrets.token_hex(8)}",  # names must differ within a process
        configure_logging=False,
        env_prefix="OMLX_SANIC_",
        error_handler=_Errors(service),
    )
    settings = service.context.settings.server
    app.config.update(_config(settings.max_body))
    sessions = _sessions(service, keys)
    guard = Guard(settings, keys, sessions)
    routes = _Routes(service, guard)
    untyped = cast(Any, app)
    untyped.register_middleware(routes.check, "request")
    untyped.register_middleware(routes.finish, "response")
    responder = Responder(service, Quotas(service.context.clock))
    responses = Responses()
    dialects: dict[str, Dialect] = {
        "/v1/chat/completions": Chat(),
        "/v1/completions": Completions(),
        "/v1/messages": Messages(),
        "/v1/responses": responses,
    }
    for path, dialect in dialects.items():
        name = path.removeprefix("/v1/").replace("/", "_")
        # As a "stream", so that the checks come before the body is read.
        app.add_route(
            _generation(responder, dialect), path, methods=["POST"], name=name, stream=True
        )
    app.add_route(_counting(responder), "/v1/messages/count_tokens", methods=["POST"], stream=True)
    kept = KeptRoutes(responses.store)
    one_response = "/v1/responses/<response_id:str>"
    _add(app, kept.show, one_response, ["GET"])
    _add(app, kept.forget, one_response, ["DELETE"])
    _add(app, kept.items, f"{one_response}/input_items", ["GET"])
    _add(app, routes.models, "/v1/models", _READ)
    _add(app, routes.model, "/v1/models/<model_id:path>", _READ)
    _add(app, routes.change_model, "/v1/models/<model_id:path>", ["POST"])
    _add(app, routes.health, "/health", _READ)
    _add(app, routes.metrics, "/metrics", _READ)
    _add(app, routes.root, "/", _READ)
    for number, route in enumerate(admin_routes(service, guard, sessions)):
        _add(app, route.handler, route.path, [*route.methods], name=f"admin_{number}")
    return app


def _sessions(service: Service, keys: KeyRing) -> Sessions:
    """Those of the admin page; a browser keeps the cookies of all ports of a host together."""
    scheme, _, place = service.address.partition("://")
    port = place.rpartition(":")[2]
    cookie = f"omlx-admin-{port}" if port.isdecimal() else "omlx-admin"
    clock = service.context.clock
    return Sessions(keys, clock, cookie=cookie, is_secure=scheme == "https")


def _add(app: App, handler: Handler, path: str, methods: list[str], *, name: str = "") -> None:
    """A route whose checks come before a body that may be there is read; none of it is."""

    async def handle(request: Request, **places: str) -> HTTPResponse:
        return await handler(request, **places)

    app.add_route(handle, path, methods=methods, name=name or handler.__name__, stream=True)


def _config(max_body: int) -> dict[str, object]:
    return {
        "AUTO_EXTEND": False,
        "ACCESS_LOG": False,
        "MOTD": False,
        # Rewrites Sanic's classes without what is not used, and can only once in a process.
        "TOUCHUP": not vars(Http).get("__touched__", False),
        "REQUEST_MAX_SIZE": max_body,
        "REQUEST_MAX_HEADER_SIZE": _HEADER_BYTES,
        "REQUEST_TIMEOUT": 60,
        "RESPONSE_TIMEOUT": _NO_TIMEOUT_S,
        "KEEP_ALIVE_TIMEOUT": _IDLE_S,
    }


def forget_app(app: App) -> None:
    """Take an application out of Sanic's list of all of the process (mutates that)."""
    cast(Any, Sanic).unregister_app(app)


def _generation(
    responder: Responder, dialect: Dialect
) -> Callable[[Request], Coroutine[Any, Any, HTTPResponse | None]]:
    """The handler of a route that generates; a function, as Sanic needs to mark it."""

    async def handle(request: Request) -> HTTPResponse | None:
        body = await responder.answer(request, dialect)
        return None if body is None else raw(body, content_type=JSON)

    return handle


def _counting(responder: Responder) -> Callable[[Request], Coroutine[Any, Any, HTTPResponse]]:
    """The handler that counts a prompt's tokens and computes nothing."""

    async def count_tokens(request: Request) -> HTTPResponse:
        num_tokens = await responder.count(request, Counting())
        return json_response({"input_tokens": num_tokens})

    return count_tokens


class _Routes:
    """The handlers of one server's other routes, and the check before each."""

    def __init__(self, service: Service, guard: Guard) -> None:
        self._service = service
        self._guard = guard
        self._created = int(service.context.wall())

    async def check(self, request: Request) -> HTTPResponse | None:
        """Refuse what may not come in; runs before the body is read."""
        if request.method == "NONE":  # what Sanic calls a request that it can't read
            return None
        headers = request.headers
        if request.method == "OPTIONS":
            self._guard.origins.check_host(headers)
            wanted = headers_of(request).get("access-control-request-headers", "")
            granted = self._guard.origins.preflight(headers, wanted)
            if granted is not None:
                return raw(b"", status=204, headers=dict(granted))
        set_grant(request, self._guard.check(request.method, headers, need_of(request.path)))
        return None

    async def finish(self, request: Request, response: BaseHTTPResponse) -> None:
        """Add what every answer has: its id, and what browsers are to keep to."""
        name = "request-id" if flavor(request) is Flavor.ANTHROPIC else "x-request-id"
        headers = cast(MutableMapping[str, str], cast(Any, response).headers)
        headers[name] = f"req_{request_id(request)}"
        headers.update(PAGE_HEADERS if is_page(request.path) else SECURE_HEADERS)
        headers.update(self._guard.origins.answer_headers(request.headers))
        close_if_unread(request)

    async def models(self, request: Request) -> HTTPResponse:
        """GET /v1/models, in the shape of the client's API."""
        listed = [
            self._listed(name, named) for name, named in self._service.context.names().listed()
        ]
        if flavor(request) is Flavor.ANTHROPIC:
            return json_response(anthropic_models.models(listed))
        return json_response(openai_models.models(listed))

    async def model(self, request: Request, model_id: str) -> HTTPResponse:
        """GET /v1/models/<id>."""
        name = unquote(model_id)
        named = find_model(self._service.context, name, or_default=False)
        is_alias = name in dict(self._service.context.names().listed())
        listed = self._listed(name if is_alias else named.id, named)
        if flavor(request) is Flavor.ANTHROPIC:
            return json_response(anthropic_models.model(listed))
        return json_response(openai_models.model(listed))

    async def change_model(self, request: Request, model_id: str) -> HTTPResponse:
        """POST /v1/models/<id>/load and /unload: begin, and answer once it is done."""
        name, _, verb = unquote(model_id).rpartition("/")
        if verb not in ("load", "unload") or not name:
            raise ApiError(404, f"POST /v1/models/ID/load or /unload, not {verb[:40]!r}")
        entry = find_model(self._service.context, name, or_default=False).entry
        service, pool = self._service, self._service.context.pool
        if verb == "load":
            done = await load_model(pool, entry.id, lambda: service.is_draining)
        else:
            done = await unload_model(pool, entry.id)
        return json_response(done)

    def _listed(self, name: str, named: Named) -> Listed:
        window = self._service.window(named.entry, named.id)
        if window is not None:
            agent = self._service.context.model_settings(named.id).agent
            window = scale_of(agent, window).tokens(window)
        return Listed(name, window, self._created, named.entry.id, named.profile)

    async def health(self, request: Request) -> HTTPResponse:
        """GET /health: 200 once a model is ready; the models only for those with the key."""
        state, models = self._service.health()
        shown = {"models": models} if self._guard.knows(request.headers) else {}
        return json_response({"status": state, **shown}, status=200 if state == "ready" else 503)

    async def metrics(self, request: Request) -> HTTPResponse:
        """GET /metrics."""
        self._service.counting.count_disk()
        # On another thread, as many series take longer than the time between two tokens.
        shown = await asyncio.to_thread(self._service.metrics.exposition)
        return raw(shown, content_type=metrics.CONTENT_TYPE)

    async def root(self, request: Request) -> HTTPResponse:
        """HEAD /, by which some clients see whether anyone is there."""
        return json_response({"name": "omlx"})


class _Errors(ErrorHandler):
    """Turns whatever a handler raised into the dialect's error."""

    def __init__(self, service: Service) -> None:
        super().__init__()
        self._service = service

    def default(self, request: Request, exception: BaseException) -> HTTPResponse:
        """The response to an exception."""
        if isinstance(exception, asyncio.CancelledError):
            return raw(b"", status=499)  # the client has gone: nobody reads it
        error = _as_api_error(request, exception)
        status = status_of(error, flavor(request))
        self._service.metrics.error_sent(status)
        identity = request_id(request)
        close_if_unread(request)
        # Not the message: it may quote the request.
        summary = f"{request.method} {request.path[:100]!r} refused: {status}"
        _log.log(log_level(error), "%s %s %s", identity, summary, error.param or "")
        return raw(
            error_bytes(error, flavor(request), identity),
            status=status,
            headers=error.headers,
            content_type=JSON,
        )


def _as_api_error(request: Request, exception: BaseException) -> ApiError:
    match exception:
        case ApiError():
            return exception
        case OmlxError():
            return ApiError(500, exception.message)
        case SanicException():
            return from_status(exception.status_code, str(exception), exception.headers)
        case _:
            _log.error("%s: internal error", request_id(request), exc_info=exception)
            return internal()
