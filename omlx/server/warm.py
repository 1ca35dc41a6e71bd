"""Brings prompts that will be needed into memory while a server has nothing else to do.

Once a model is loaded, the prompts that settings name and the heads that most requests shared run
as requests of one token, one after the other. A request of a user's ends the one that runs: what it
has computed is kept, and it goes on when the server is idle again. None of it is counted as a
request. Knows nothing about HTTP; for the loop's thread.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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
from omlx.errors import OmlxError
from omlx.server.context import ServerContext
from omlx.server.errors import ApiError
from omlx.server.generation import Dialect
from omlx.server.handling import Handling
from omlx.server.heads import SharedHead
from omlx.server.hub import Hub, Inbox, Stopping
from omlx.server.prompt import Prepared, find_model
from omlx.server.warmprompts import WarmPrompt

_log = logging.getLogger("omlx.server.warm")
_POLL_S = 0.1
_TENANT = "warm"
_MAX_SHOWN = 100

FindHeads = Callable[[str, int], list[SharedHead]]


def no_heads(model_id: str, num_heads: int) -> list[SharedHead]:
    """What is found where no journal is kept."""
    return []


@dataclass(frozen=True, slots=True)
class WarmPlan:
    """What to warm: prompts, and so many heads of each model, which `find_heads` finds (on a
    thread; StoreError)."""

    prompts: Sequence[WarmPrompt] = ()
    num_heads: int = 0
    find_heads: FindHeads = no_heads

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.prompts or self.num_heads)


class Host(Protocol):
    """What a warmer needs of a server; see omlx.server.service.Service."""

    @property
    def context(self) -> ServerContext: ...
    @property
    def hub(self) -> Hub: ...
    @property
    def num_active(self) -> int: ...
    async def prepare(self, dialect: Dialect, body: bytes, wanted: Handling) -> Prepared: ...


@dataclass(frozen=True, slots=True)
class _Job:
    """One prompt to warm for an engine; `head` as in EngineRequest."""

    name: str
    tokens: tuple[int, ...]
    head: int
    store: StorePolicy
    stop: tuple[tuple[int, ...], ...] = ()
    salt: str = ""


class _Outcome(Enum):
    DONE = "done"
    IN_THE_WAY = "in the way"
    ENGINE_GONE = "engine gone"


@dataclass(slots=True)
class _Running:
    """The request that runs now."""

    engine: Engine
    request_id: str
    inbox: Inbox
    is_over: bool = False
    is_in_the_way: bool = False
    cached: tuple[int, int] = field(default=(0, 0))


class Warmer:
    """Runs a plan until it is cancelled; `opened` is called for each request of a user's."""

    def __init__(self, host: Host, plan: WarmPlan) -> None:
        self._host = host
        self._plan = plan
        self._ids = count(1)
        self._running: _Running | None = None
        # The processes whose models are warm, by model; None where one has no id.
        self._warmed: dict[str, int | None] = {}
        self._left_out: set[tuple[str, str]] = set()

    def opened(self) -> None:
        """A user's request is there: what runs ends, and goes on later (mutates)."""
        running = self._running
        if running is not None and not running.is_in_the_way:
            running.is_in_the_way = True
            running.engine.abort(running.request_id)

    async def run(self) -> None:
        """Warm each model once for each time that it is loaded."""
        self._check_names()
        while True:
            for entry in self._host.context.pool.models():
                await self._look(entry.id)
            await asyncio.sleep(_POLL_S)

    def _check_names(self) -> None:
        for prompt in self._plan.prompts:
            if self._model_of(prompt) is None:
                text = "%s is not warmed: there is no model %r"
                _log.warning(text, prompt.where, prompt.model[:_MAX_SHOWN])

    def _model_of(self, prompt: WarmPrompt) -> str | None:
        try:
            return find_model(self._host.context, prompt.model).entry.id
        except ApiError:
            return None

    async def _look(self, model_id: str) -> None:
        if not self._is_ready(model_id):
            self._warmed.pop(model_id, None)
            return
        pid = self._host.context.pool.health(model_id).pid
        if model_id in self._warmed and self._warmed[model_id] == pid:
            return
        await self._idle()
        for job in await self._jobs(model_id):
            if not await self._warm(model_id, job):
                return
        self._warmed[model_id] = pid

    def _is_ready(self, model_id: str) -> bool:
        return self._host.context.pool.get(model_id).state() is EngineState.READY

    async def _idle(self) -> None:
        """Wait until no request of a user's is there."""
        while self._host.num_active:
            await asyncio.sleep(_POLL_S)

    async def _jobs(self, model_id: str) -> list[_Job]:
        jobs = [await self._prompt_job(model_id, prompt) for prompt in self._plan.prompts]
        found = [job for job in jobs if job is not None]
        if self._plan.num_heads:
            found += await self._head_jobs(model_id)
        return [job for job in found if (model_id, job.name) not in self._left_out]

    async def _prompt_job(self, model_id: str, prompt: WarmPrompt) -> _Job | None:
        """A prompt as a job, None where it is for another model or can't be one for this."""
        context = self._host.context
        try:
            if self._model_of(prompt) != model_id:
                return None
            wanted = Handling(request_class=RequestClass.BATCH)
            prepared = await self._host.prepare(prompt.dialect, prompt.body, wanted)
        except ApiError as error:
            _log.warning("%s is not warmed: %s", prompt.where, error.message)
            return None
        store = StorePolicy(context.model_settings(prepared.named).cache.store)
        stop = tuple((token,) for token in sorted(prepared.text.eos_ids))
        return _Job(prompt.where, prepared.tokens, prepared.head, store, stop)

    async def _head_jobs(self, model_id: str) -> list[_Job]:
        loop, plan = asyncio.get_running_loop(), self._plan
        try:
            heads = await loop.run_in_executor(None, plan.find_heads, model_id, plan.num_heads)
        except OmlxError as error:
            _log.warning("no heads of %s are warmed: %s", model_id, error.message)
            return []
        # What is stored stays as it is: a head by itself is no prompt that anyone sends.
        return [
            _Job(
                f"head {idx} of {len(heads)}",
                head.tokens,
                len(head.tokens),
                StorePolicy.MEMORY,
                salt=head.salt,
            )
            for idx, head in enumerate(heads, 1)
        ]

    async def _warm(self, model_id: str, job: _Job) -> bool:
        """Run a job to its end, however often it has to make way; False if the engine is gone."""
        while True:
            await self._idle()
            if not self._is_ready(model_id):
                return False
            match await self._once(model_id, job):
                case _Outcome.DONE:
                    return True
                case _Outcome.IN_THE_WAY:
                    continue
                case _Outcome.ENGINE_GONE:
                    # It may have been the cause, and must not be it again and again.
                    self._left_out.add((model_id, job.name))
                    _log.warning(
                        "%s is left out from now on: the engine of %s ended beside it",
                        job.name,
                        model_id,
                    )
                    return False

    async def _once(self, model_id: str, job: _Job) -> _Outcome:
        hub, request_id = self._host.hub, f"warm-{next(self._ids)}"
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
                    store=job.store,
                    request_class=RequestClass.BATCH,
                    tenant=_TENANT,
                    salt=job.salt,
                )
            )
            return await self._course(running, model_id, job)
        finally:
            self._running = None
            hub.close(request_id)
            if not running.is_over:
                engine.abort(request_id)

    async def _course(self, running: _Running, model_id: str, job: _Job) -> _Outcome:
        """Take the events of a request until it is over."""
        clock = self._host.context.clock
        started = clock()
        while True:
            try:
                async with asyncio.timeout(_POLL_S):
                    event = await running.inbox.get()
            except TimeoutError:
                if self._is_ready(model_id):
                    continue
                is_asked = running.is_in_the_way
                return _Outcome.IN_THE_WAY if is_asked else _Outcome.ENGINE_GONE
            match event:
                case Admitted():
                    running.cached = event.cached_memory, event.cached_disk
                case Finished(reason=FinishReason.ABORT) | Stopping():
                    running.is_over = True
                    return _Outcome.IN_THE_WAY
                case Finished():
                    running.is_over = True
                    _log.info(
                        "%s is warm for %s: %d tokens (%d from memory, %d from disk) in %.1f s",
                        job.name,
                        model_id,
                        len(job.tokens),
                        *running.cached,
                        clock() - started,
                    )
                    return _Outcome.DONE
                case Failed():
                    running.is_over = True
                    _log.warning("%s is not warmed: %s", job.name, event.message)
                    return _Outcome.DONE
                case _:
                    pass
