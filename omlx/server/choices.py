"""The answers of one request, one session at the engine for each, heard together.

Knows nothing about HTTP or dialects; for the loop's thread.
"""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from omlx.server.generation import Ended, Piece, Usage
from omlx.server.scale import REAL, Scale
from omlx.server.session import Session

Heard = list[tuple[int, Piece]]


class Choices:
    """Sessions as one context: leaving it early aborts those that have not ended.

    With several prompts, the answers to each follow each other.
    """

    def __init__(
        self, sessions: Sequence[Session], num_prompts: int = 1, scale: Scale = REAL
    ) -> None:
        assert sessions and len(sessions) % num_prompts == 0, "a prompt has an answer"
        self._each = len(sessions) // num_prompts
        self._sessions = sessions
        self._scale = scale
        self._open = set(range(len(sessions)))
        self._waiting: dict[asyncio.Task[list[Piece]], int] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for session in self._sessions:
                stack.enter_context(session)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for task in self._waiting:
            task.cancel()
            if task.done() and not task.cancelled():
                task.exception()  # of another answer's end: nobody asks for it any more
        self._stack.__exit__(kind, error, traceback)

    @property
    def num_open(self) -> int:
        """How many answers have not ended."""
        return len(self._open)

    @property
    def usage(self) -> Usage:
        """Each prompt once, and the tokens of all answers."""
        usages = [session.course.usage for session in self._sessions]
        firsts = usages[:: self._each]
        return Usage(
            sum(usage.prompt for usage in firsts),
            sum(usage.cached for usage in firsts),
            sum(usage.completion for usage in usages),
            sum(usage.reasoning for usage in usages),
        )

    @property
    def told_usage(self) -> Usage:
        """The same as the client is told it."""
        return self._scale.usage(self.usage)

    async def next(self, timeout_s: float | None) -> Heard:
        """What has come since the last call, with the answer's number, waiting for the first.

        Empty after `timeout_s`. ApiError if one of them fails.
        """
        if len(self._sessions) == 1:
            heard = [(0, piece) for piece in await self._sessions[0].next(timeout_s)]
        else:
            heard = await self._next_of_any(timeout_s)
        for choice, piece in heard:
            if isinstance(piece, Ended):
                self._open.discard(choice)
        return heard

    async def _next_of_any(self, timeout_s: float | None) -> Heard:
        for choice in sorted(self._open - set(self._waiting.values())):
            task = asyncio.ensure_future(self._sessions[choice].next(None))
            self._waiting[task] = choice
        done, _ = await asyncio.wait(
            self._waiting, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED
        )
        heard: Heard = []
        for task in sorted(done, key=self._waiting.__getitem__):
            choice = self._waiting.pop(task)
            heard += [(choice, piece) for piece in task.result()]
        return heard
