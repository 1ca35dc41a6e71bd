"""Brings the events of all engines, which come on other threads, to the requests on the loop.

Knows nothing about what the events mean to a request.
"""

import asyncio
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from omlx.engine.request import Event, Listener


@dataclass(frozen=True, slots=True)
class Stopping:
    """The server ends before the request could."""


_MAX_BATCHES = 256  # of events that the loop has still to take; then an engine's reader waits
_LOOK_S = 0.5

Inbox = asyncio.Queue[Event | Stopping]


@dataclass(frozen=True, slots=True)
class _Route:
    inbox: Inbox
    on_overflow: Callable[[], None]


class Hub:
    """The inboxes of requests by id; all of it is for the loop's thread, but the listeners."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, max_backlog: int) -> None:
        self._loop = loop
        self._room = threading.BoundedSemaphore(_MAX_BATCHES)
        self._max_backlog = max_backlog
        self._routes: dict[str, _Route] = {}

    def listener(self, model_id: str) -> Listener:
        """What an engine calls with the events of a step; wakes the loop once. For any thread.

        While the loop is far behind it holds its caller up, and so in the end the engine.
        """
        own_thread = threading.get_ident()

        def listen(events: Sequence[Event]) -> None:
            if threading.get_ident() == own_thread and not self._loop.is_closed():
                self._loop.call_soon(self._deliver, tuple(events))
                return
            has_room = False
            while not has_room:
                if self._loop.is_closed():
                    return
                has_room = self._room.acquire(timeout=_LOOK_S)
            try:
                self._loop.call_soon_threadsafe(self._deliver_batch, tuple(events))
            except RuntimeError:  # the loop is closed
                self._room.release()

        return listen

    def _deliver_batch(self, events: Sequence[Event]) -> None:
        self._room.release()
        self._deliver(events)

    def open(self, request_id: str, on_overflow: Callable[[], None]) -> Inbox:
        """The inbox of a new request; `on_overflow` is called once if it is not emptied."""
        inbox: Inbox = asyncio.Queue()
        self._routes[request_id] = _Route(inbox, on_overflow)
        return inbox

    def close(self, request_id: str) -> None:
        """Forget a request; events that still come for it are dropped."""
        self._routes.pop(request_id, None)

    def stop_all(self) -> None:
        """Tell every request that the server ends."""
        for route in self._routes.values():
            route.inbox.put_nowait(Stopping())

    def _deliver(self, events: Sequence[Event]) -> None:
        for event in events:
            route = self._routes.get(event.request_id)
            if route is None:
                continue
            if route.inbox.qsize() >= self._max_backlog:
                self.close(event.request_id)
                route.on_overflow()
            else:
                route.inbox.put_nowait(event)
