"""Computes what the next request will begin with while the client runs the tools it was told to.

Where a template prints an answer in other words than the model's, the next prompt differs from what
is cached. So it is rendered as it will be, up to where a result begins, and computed while the
server is idle; a request of a user's ends that. Knows nothing about HTTP; for the loop's thread.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from omlx.cache.policy import StorePolicy
from omlx.server import idle
from omlx.server.generation import ToolCall
from omlx.server.idle import IdleRuns, Job
from omlx.server.ledger import Said
from omlx.server.metrics import Metrics
from omlx.server.predict import predicted
from omlx.server.prompt import Prepared

_TENANT = "rerender"
Tokens = tuple[int, ...]


class Host(idle.Host, Protocol):
    """What is needed of a server; see omlx.server.service.Service."""

    @property
    def metrics(self) -> Metrics: ...
    def on_text_thread(self, work: Callable[[], Tokens | None]) -> Awaitable[Tokens | None]: ...


@dataclass(frozen=True, slots=True)
class _Answer:
    """An answer with calls, and the salt of its request."""

    prepared: Prepared
    said: Said
    salt: str


class Rerenderer:
    """Runs until it is cancelled; `answered` and `opened` are called for what users do.

    Only the newest answer is looked at. `is_wanted` is asked each time.
    """

    def __init__(self, host: Host, is_wanted: Callable[[], bool]) -> None:
        self._host = host
        self._is_wanted = is_wanted
        self._runs = IdleRuns(host, _TENANT)
        self._newest: _Answer | None = None
        self._is_there = asyncio.Event()

    def answered(self, prepared: Prepared, said: Said, salt: str) -> None:
        """An answer is out, or about to be (mutates)."""
        has_calls = any(isinstance(part, ToolCall) for part in said.parts)
        if said.is_ended and has_calls and prepared.store is not StorePolicy.OFF:
            self._newest = _Answer(prepared, said, salt)
            self._is_there.set()

    def opened(self) -> None:
        """A user's request is there, maybe the one that was foreseen (mutates)."""
        self._newest = None
        self._runs.opened()

    async def run(self) -> None:
        """Take one answer after the other."""
        while True:
            await self._is_there.wait()
            self._is_there.clear()
            await self._runs.idle()
            answer = self._newest
            if answer is not None and self._is_wanted():
                await self._rerender(answer)

    async def _rerender(self, answer: _Answer) -> None:
        prepared, ledger = answer.prepared, self._host.context.ledger
        work = partial(predicted, prepared, answer.said, ledger, answer.salt)
        tokens = await self._host.on_text_thread(work)
        is_current = self._newest is answer and not self._host.num_active
        if tokens is None or not is_current or not self._runs.is_ready(prepared.model_id):
            return
        job = Job(
            "a next prompt",
            tokens,
            prepared.head,
            prepared.store,
            stop=prepared.request.stop,
            salt=answer.salt,
            stable=prepared.stable,
        )
        ran = await self._runs.once(prepared.model_id, job)
        num_tokens = len(tokens) - sum(ran.cached)
        self._host.metrics.rerendered(prepared.model_id, ran.outcome.value, num_tokens)
