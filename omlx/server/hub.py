"""Brings the events of all engines, which come on other threads, to the requests on the loop.

Knows nothing about what the events mean to a request.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from omlx.engine.request import Event, Listener


@dataclass(frozen=True, slots=True)
class Stopping:
    """The server ends before the request could."""


_MAX_BATCHES = 256  # of events that the loop has still to take; then an engine's reader waits
_LOOK_S = 0.5
_TICK_S = 0.001  # a timer of the loop is not more exact


class Inbox:
    """The events that a request has still to take, in their order; for one task on the loop.

    A limit of waiting that is not reached costs nothing: one timer serves many waits.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: deque[Event | Stopping] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._until: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def qsize(self) -> int:
        """How many events there are."""
        return len(self._events)

    def put(self, event: Event | Stopping) -> None:
        """Add an event (mutates)."""
        self._events.append(event)
        self._wake()

    def take(self) -> Event | Stopping:
        """The next event, which is there (mutates)."""
        return self._events.popleft()

    async def get(self) -> Event | Stopping:
        """The next event, waiting for it (mutates)."""
        while not await self.wait(None):
            pass
        return self.take()

    async def wait(self, until: float | None) -> bool:
        """Whether there is an event, waiting for one until a time of the loop, None for ever."""
        if self._events:
            return True
        assert self._waiter is None, "two tasks wait for the same events"
        self._until, self._waiter = until, self._loop.create_future()
        if until is not None and (self._timer is None or until < self._timer_at):
            self._set_timer(until)
        try:
            await self._waiter
        finally:
            self._waiter = None
        return bool(self._events)

    def close(self) -> None:
        """Drop the timer (mutates)."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _set_timer(self, at: float) -> None:
        self.close()
        self._timer, self._timer_at = self._loop.call_at(at, self._on_time), at

    def _on_time(self) -> None:
        """The wait that is on now may be a later one, with a later limit."""
        self._timer = None
        if self._waiter is None or self._until is None:
            return
        if self._until - self._loop.time() > _TICK_S:
            self._set_timer(self._until)
        else:
            self._wake()


@dataclass(frozen=True, slots=True)
class _Route:
    inbox: Inbox
    on_overflow: Callable[[], None]


class Hub:
    """The inboxes of requests by id; all of it is for the loop's thread, but the listeners."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, max_backlog: int) -> None:
        self._loop = loop
        self._max_backlog = max_backlog
        self._routes: dict[str, _Route] = {}
        self._batches: deque[Sequence[Event]] = deque()
        self._is_due = False  # the loop has been told of batches
        self._has_room = threading.Event()

    def listener(self, model_id: str) -> Listener:
        """What an engine calls with the events of a step; wakes the loop once. For any thread.

        While the loop is far behind it holds its caller up, and so in the end the engine.
        """
        own_thread = threading.get_ident()

        def listen(events: Sequence[Event]) -> None:
            if threading.get_ident() == own_thread and not self._loop.is_closed():
                self._loop.call_soon(self._deliver, tuple(events))
            elif self._wait_for_room():
                self._batches.append(tuple(events))
                self._tell_loop()

        return listen

    def _wait_for_room(self) -> bool:
        """False if there will be none, since the loop is closed; for any thread."""
        while len(self._batches) >= _MAX_BATCHES:
            if self._loop.is_closed():
                return False
            self._has_room.clear()
            if len(self._batches) >= _MAX_BATCHES:
                self._has_room.wait(_LOOK_S)
        return True

    def _tell_loop(self) -> None:
        """Have the loop take the batches, unless it was told before and has not begun."""
        if self._is_due:
            return
        self._is_due = True
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._deliver_batch)

    def _deliver_batch(self) -> None:
        self._is_due = False  # before the first is taken: what comes from here on is told again
        for _ in range(len(self._batches)):
            self._deliver(self._batches.popleft())
        if not self._has_room.is_set():
            self._has_room.set()

    def open(self, request_id: str, on_overflow: Callable[[], None]) -> Inbox:
        """The inbox of a new request; `on_overflow` is called once if it is not emptied."""
        inbox = Inbox(self._loop)
        self._routes[request_id] = _Route(inbox, on_overflow)
        return inbox

    def close(self, request_id: str) -> None:
        """Forget a request; events that still come for it are dropped."""
        route = self._routes.pop(request_id, None)
        if route is not None:
            route.inbox.close()

    def stop_all(self) -> None:
        """Tell every request that the server ends."""
        for route in self._routes.values():
            route.inbox.put(Stopping())

    def _deliver(self, events: Sequence[Event]) -> None:
        for event in events:
            route = self._routes.get(event.request_id)
            if route is None:
                continue
            if route.inbox.qsize() >= self._max_backlog:
                self.close(event.request_id)
                route.on_overflow()
            else:
                route.inbox.put(event)
