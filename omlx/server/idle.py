"""Runs requests of one token, to have their prompts in the cache, while a server is idle.

A request of a user's ends the one that runs: what it has computed is kept. None of it is counted as
a request. Knows nothing about what is run or why; for the loop's thread.
"""

import asyncio
from dataclasses import dataclass
from enum import Enum
from itertools import count
from typing import Protocol

from omlx.cache.policy import StorePolicy
from omlx.engine.request import (
    Admitted,
    Engine,
    EngineRequest,
    EngineState,
    Failed,
    Finished,
    FinishReason,
    RequestClass,
)
from omlx.server.context import ServerContext
from omlx.server.hub import Hub, Inbox, Stopping

_POLL_S = 0.1


class Host(Protocol):
    """What is needed of a server; see omlx.server.service.Service."""

    @property
    def context(self) -> ServerContext: ...
    @property
    def hub(self) -> Hub: ...
    @property
    def num_active(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt to have in the cache of an engine; fields as in EngineRequest."""

    name: str
    tokens: tuple[int, ...]
    head: int
    store: StorePolicy
    stop: tuple[tuple[int, ...], ...] = ()
    salt: str = ""
    stable: int = 0


class Outcome(Enum):
    """How the run of a job ended."""

    DONE = "done"
    REFUSED = "refused"
    IN_THE_WAY = "in the way"
    ENGINE_GONE = "engine gone"


@dataclass(frozen=True, slots=True)
class Run:
    """What came of a job: from memory and disk so many tokens, or what the engine objects to."""

    outcome: Outcome
    cached: tuple[int, int] = (0, 0)
    message: str = ""


@dataclass(slots=True)
class _Running:
    """The request that runs now."""

    engine: Engine
    request_id: str
    inbox: Inbox
    is_over: bool = False
    is_in_the_way: bool = False
    cached: tuple[int, int] = (0, 0)


class IdleRuns:
    """Runs jobs of one tenant one after the other; `opened` is for each request of a user's."""

    def __init__(self, host: Host, tenant: str) -> None:
        self._host = host
        self._tenant = tenant
        self._ids = count(1)
        self._running: _Running | None = None

    def opened(self) -> None:
        """A user's request is there: what runs ends (mutates)."""
        running = self._running
        if running is not None and not running.is_in_the_way:
            running.is_in_the_way = True
            running.engine.abort(running.request_id)

    def is_ready(self, model_id: str) -> bool:
        """Whether a model is loaded."""
        return self._host.context.pool.get(model_id).state() is EngineState.READY

    async def idle(self) -> None:
        """Wait until no request of a user's is there."""
        while self._host.num_active:
            await asyncio.sleep(_POLL_S)

    async def once(self, model_id: str, job: Job) -> Run:
        """Run a job until it is done or has to make way."""
        hub, request_id = self._host.hub, f"{self._tenant}-{next(self._ids)}"
        engine = self._host.context.pool.get(model_id)
        inbox = hub.open(request_id, lambda: engine.abort(request_id))
        running = self._running = _Running(engine, request_id, inbox)
        try:
            engine.submit(
                EngineRequest(
                    request_id,
                    job.tokens,
                    1,
                    stop=job.stop,
                    head=job.head,
                    stable=job.stable,
                    store=job.store,
                    request_class=RequestClass.BATCH,
                    tenant=self._tenant,
                    salt=job.salt,
                )
            )
            return await self._course(running, model_id)
        finally:
            self._running = None
            hub.close(request_id)
            if not running.is_over:
                engine.abort(request_id)

    async def _course(self, running: _Running, model_id: str) -> Run:
        """Take the events of a request until it is over."""
        while True:
            try:
                async with asyncio.timeout(_POLL_S):
                    event = await running.inbox.get()
            except TimeoutError:
                if self.is_ready(model_id):
                    continue
                is_asked = running.is_in_the_way
                return Run(Outcome.IN_THE_WAY if is_asked else Outcome.ENGINE_GONE)
            match event:
                case Admitted():
                    running.cached = event.cached_memory, event.cached_disk
                case Finished(reason=FinishReason.ABORT) | Stopping():
                    running.is_over = True
                    return Run(Outcome.IN_THE_WAY)
                case Finished():
                    running.is_over = True
                    return Run(Outcome.DONE, running.cached)
                case Failed():
                    running.is_over = True
                    return Run(Outcome.REFUSED, message=event.message)
                case _:
                    pass
