"""Brings prompts that will be needed into memory while a server has nothing else to do.

Once a model is loaded, the prompts that settings name and the heads that most requests shared run
as requests of one token, one after the other. A request of a user's ends the one that runs: what it
has computed is kept, and it goes on when the server is idle again. None of it is counted as a
request. Knows nothing about HTTP; for the loop's thread.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from omlx.cache.policy import StorePolicy
from omlx.engine.request import RequestClass
from omlx.errors import OmlxError
from omlx.server import idle
from omlx.server.errors import ApiError
from omlx.server.generation import Dialect
from omlx.server.handling import Handling
from omlx.server.heads import SharedHead
from omlx.server.idle import IdleRuns, Job, Outcome
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


class Host(idle.Host, Protocol):
    """What a warmer needs of a server; see omlx.server.service.Service."""

    async def prepare(self, dialect: Dialect, body: bytes, wanted: Handling) -> Prepared: ...


class Warmer:
    """Runs a plan until it is cancelled; `opened` is called for each request of a user's."""

    def __init__(self, host: Host, plan: WarmPlan) -> None:
        self._host = host
        self._plan = plan
        self._runs = IdleRuns(host, _TENANT)
        # The processes whose models are warm, by model; None where one has no id.
        self._warmed: dict[str, int | None] = {}
        self._left_out: set[tuple[str, str]] = set()

    def opened(self) -> None:
        """A user's request is there: what runs ends, and goes on later (mutates)."""
        self._runs.opened()

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
        if not self._runs.is_ready(model_id):
            self._warmed.pop(model_id, None)
            return
        pid = self._host.context.pool.health(model_id).pid
        if model_id in self._warmed and self._warmed[model_id] == pid:
            return
        await self._runs.idle()
        for job in await self._jobs(model_id):
            if not await self._warm(model_id, job):
                return
        self._warmed[model_id] = pid

    async def _jobs(self, model_id: str) -> list[Job]:
        jobs = [await self._prompt_job(model_id, prompt) for prompt in self._plan.prompts]
        found = [job for job in jobs if job is not None]
        if self._plan.num_heads:
            found += await self._head_jobs(model_id)
        return [job for job in found if (model_id, job.name) not in self._left_out]

    async def _prompt_job(self, model_id: str, prompt: WarmPrompt) -> Job | None:
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
        return Job(prompt.where, prepared.tokens, prepared.head, store, stop)

    async def _head_jobs(self, model_id: str) -> list[Job]:
        loop, plan = asyncio.get_running_loop(), self._plan
        try:
            heads = await loop.run_in_executor(None, plan.find_heads, model_id, plan.num_heads)
        except OmlxError as error:
            _log.warning("no heads of %s are warmed: %s", model_id, error.message)
            return []
        # What is stored stays as it is: a head by itself is no prompt that anyone sends.
        return [
            Job(
                f"head {idx} of {len(heads)}",
                head.tokens,
                len(head.tokens),
                StorePolicy.MEMORY,
                salt=head.salt,
            )
            for idx, head in enumerate(heads, 1)
        ]

    async def _warm(self, model_id: str, job: Job) -> bool:
        """Run a job to its end, however often it has to make way; False if the engine is gone."""
        while True:
            await self._runs.idle()
            if not self._runs.is_ready(model_id):
                return False
            started = self._host.context.clock()
            ran = await self._runs.once(model_id, job)
            match ran.outcome:
                case Outcome.DONE:
                    _log.info(
                        "%s is warm for %s: %d tokens (%d from memory, %d from disk) in %.1f s",
                        job.name,
                        model_id,
                        len(job.tokens),
                        *ran.cached,
                        self._host.context.clock() - started,
                    )
                    return True
                case Outcome.REFUSED:
                    _log.warning("%s is not warmed: %s", job.name, ran.message)
                    return True
                case Outcome.IN_THE_WAY:
                    continue
                case Outcome.ENGINE_GONE:
                    # It may have been the cause, and must not be it again and again.
                    self._left_out.add((model_id, job.name))
                    _log.warning(
                        "%s is left out from now on: the engine of %s ended beside it",
                        job.name,
                        model_id,
                    )
                    return False
