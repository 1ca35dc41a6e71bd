"""The run loop: bind, serve, start the engines, and on a signal drain, flush and end.

Knows nothing about routes, or about where settings come from.
"""

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Generator

from omlx.engine.heap import c_library_trim
from omlx.errors import ServerError
from omlx.server.app import build_app, forget_app
from omlx.server.auth import check_access
from omlx.server.context import EnginePool, ServerContext
from omlx.server.hub import Hub
from omlx.server.keyring import KeyRing
from omlx.server.rerender import Rerenderer
from omlx.server.rest import give_back_at_rest
from omlx.server.service import Service
from omlx.server.sockets import Sockets, address_of, bind
from omlx.server.tls import tls_context
from omlx.server.unixsocket import bound_unix, unix_address
from omlx.server.warm import Warmer, WarmPlan
from omlx.settings.server import Server

_log = logging.getLogger("omlx.server")
_SANIC_LOGGERS = ("sanic.root", "sanic.error", "sanic.server", "sanic.access")
# The part of the drain limit that requests may use; the rest is for writing the cache.
_REQUESTS_SHARE = 0.5
_LEAST_FLUSH_S = 1.0
_COUNT_DISK_S = 2.0
_HURRIED_EXIT_CODE = 130


async def serve(
    context: ServerContext,
    *,
    on_bound: Callable[[Service], None],
    stop: asyncio.Event | None = None,
    warm: WarmPlan | None = None,
    wants_rerender: Callable[[], bool] | None = None,
) -> int:
    """Serve until SIGTERM, SIGINT or `stop`, drain, and return the exit code.

    `wants_rerender` says now and then whether next prompts are to be computed while clients run
    tools; None is never. `on_bound` is called once requests are accepted; models load from then on.
    ServerError if the address can't be used. A second signal ends without waiting.
    """
    settings = context.settings.server
    keys = KeyRing(context.keys_path, settings.api_key)
    keys.load()
    check_access(settings, keys)
    tls = tls_context(settings.tls_cert, settings.tls_key)
    _quiet_sanic()
    stopper = _Stopper(stop or asyncio.Event())
    with contextlib.ExitStack() as cleanup:
        listener, address = _listen(settings, cleanup, is_secure=tls is not None)
        cleanup.enter_context(stopper.signals())
        service = Service(context, Hub(asyncio.get_running_loop(), max_backlog=context.max_backlog))
        service.address = address
        cleanup.callback(service.close)
        cleanup.enter_context(service.log.kept())
        app = build_app(service, keys)
        cleanup.callback(forget_app, app)
        sockets = await Sockets.start(app, listener, tls)
        idle_tasks: list[asyncio.Task[None]] = []
        resting = asyncio.create_task(give_back_at_rest(c_library_trim()), name="rest")
        counting = asyncio.create_task(_count_disk(service), name="disk")
        counting.add_done_callback(_log_failure)
        try:
            context.pool.start_all(service.hub.listener)
            service.warm_up()
            idle_tasks = _start_idle_work(service, warm or WarmPlan(), wants_rerender)
            on_bound(service)
            await stopper.wait()
        finally:
            resting.cancel()
            counting.cancel()
            for task in idle_tasks:
                task.cancel()
            await service.pulls.close()
            await _end(service, sockets, stopper)
            service.counting.count_disk()  # what the engines wrote at their end
    return _HURRIED_EXIT_CODE if stopper.is_hurried else 0


def _listen(
    settings: Server, cleanup: contextlib.ExitStack, *, is_secure: bool
) -> tuple[socket.socket, str]:
    """The socket that the settings want, closed by `cleanup`, and its address."""
    path = settings.unix_socket
    if path is not None:
        if is_secure:
            raise ServerError(
                "A Unix socket needs no TLS", hint="set server.unix_socket or server.tls_cert"
            )
        return cleanup.enter_context(bound_unix(path)), unix_address(path)
    listener = cleanup.enter_context(bind(settings.host, settings.port))
    return listener, address_of(settings.host, listener, is_secure=is_secure)


def _start_idle_work(
    service: Service, plan: WarmPlan, wants_rerender: Callable[[], bool] | None
) -> list[asyncio.Task[None]]:
    """What is done while no user's request is there, and ends when one comes."""
    workers: list[Warmer | Rerenderer] = []
    if not plan.is_empty:
        workers.append(Warmer(service, plan))
    if wants_rerender is not None:
        rerenderer = Rerenderer(service, wants_rerender)
        service.on_answer = rerenderer.answered
        workers.append(rerenderer)

    def opened() -> None:
        for worker in workers:
            worker.opened()

    service.on_open = opened
    tasks = [asyncio.create_task(worker.run(), name="idle") for worker in workers]
    for task in tasks:
        task.add_done_callback(_log_failure)
    return tasks


async def _count_disk(service: Service) -> None:
    """Note what engines have written and evicted, now and then."""
    while True:
        await asyncio.sleep(_COUNT_DISK_S)
        service.counting.count_disk()


def _log_failure(task: asyncio.Task[None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        _log.error(
            "the task %r has ended, and what it does is left", task.get_name(), exc_info=error
        )


async def _end(service: Service, sockets: Sockets, stopper: "_Stopper") -> None:
    """Let requests finish, then let the engines write what they hold, all within the limit."""
    clock, timing = service.context.clock, service.context.timing
    limit_s = service.context.settings.server.drain_timeout
    end = clock() + limit_s
    service.drain()
    await sockets.refuse_new()
    _log.info("stopping; requests may finish for %.1f s", limit_s * _REQUESTS_SHARE)
    if not await _idle(sockets, stopper, limit_s * _REQUESTS_SHARE, service):
        service.hub.stop_all()
        await _idle(sockets, stopper, timing.farewell_s, service)
    await sockets.close()
    await _stop_engines(service.context.pool, max(end - clock(), _LEAST_FLUSH_S), stopper)


async def _idle(sockets: Sockets, stopper: "_Stopper", limit_s: float, service: Service) -> bool:
    """Wait until no connection is left, at most so long; whether that came."""
    clock, poll_s = service.context.clock, service.context.timing.drain_poll_s
    end = clock() + limit_s
    while not (is_idle := sockets.close_idle()) and clock() < end:
        if await stopper.wait_hurried(poll_s):
            break
    return is_idle


async def _stop_engines(pool: EnginePool, timeout_s: float, stopper: "_Stopper") -> None:
    """Flush and end the engines on a thread that a second signal can leave behind."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    errors: list[BaseException] = []

    def work() -> None:
        try:
            pool.stop_all(timeout_s)
        except BaseException as error:
            errors.append(error)
        finally:
            with contextlib.suppress(RuntimeError):  # the loop may be closed by now
                loop.call_soon_threadsafe(done.set)

    threading.Thread(target=work, name="omlx-stop", daemon=True).start()
    hurried = asyncio.ensure_future(stopper.hurried())
    await asyncio.wait(
        (asyncio.ensure_future(done.wait()), hurried), return_when=asyncio.FIRST_COMPLETED
    )
    hurried.cancel()
    if errors:
        raise errors[0]


def _quiet_sanic() -> None:
    """Only errors of Sanic's own are of interest; requests are logged here."""
    for name in _SANIC_LOGGERS:
        logging.getLogger(name).setLevel(logging.ERROR)


class _Stopper:
    """Collects wishes to stop: the first begins to drain, the second ends at once."""

    def __init__(self, event: asyncio.Event) -> None:
        self._event = event
        self._hurry = asyncio.Event()

    @contextlib.contextmanager
    def signals(self) -> Generator[None]:
        """Listen to SIGTERM and SIGINT; only the main thread can, elsewhere there is `stop`."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        numbers = (signal.SIGTERM, signal.SIGINT)
        for number in numbers:
            loop.add_signal_handler(number, self._hit)
        try:
            yield
        finally:
            for number in numbers:
                loop.remove_signal_handler(number)

    async def wait(self) -> None:
        """Wait for the first wish."""
        await self._event.wait()

    @property
    def is_hurried(self) -> bool:
        """Whether the second wish has come."""
        return self._hurry.is_set()

    async def hurried(self) -> None:
        """Wait for the second wish."""
        await self._hurry.wait()

    async def wait_hurried(self, timeout_s: float) -> bool:
        """Wait for the second wish, at most so long; whether it has come."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._hurry.wait()
        return self.is_hurried

    def _hit(self) -> None:
        if self._event.is_set():
            self._hurry.set()
        self._event.set()
