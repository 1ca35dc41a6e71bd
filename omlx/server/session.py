"""One answer's life at an engine: submitted, heard, ended or given up; times are taken.

Knows nothing about HTTP, dialects or how tokens become text; for the loop's thread.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Self, assert_never

from omlx.engine.request import (
    Admitted,
    Engine,
    EngineState,
    Event,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    Prefilled,
    RequestStats,
    Started,
    Token,
    Trail,
)
from omlx.server.canonical import Changes
from omlx.server.errors import ApiError, busy, unavailable
from omlx.server.generation import Began, Ended, Piece, Progress, Usage
from omlx.server.hub import Hub, Stopping
from omlx.server.ledger import Said
from omlx.server.parse.said import CallArguments, CallEnded, Reasoning, Text
from omlx.server.parse.speech import Speech
from omlx.server.prompt import Prepared
from omlx.server.spoken import Spoken
from omlx.server.transcript import Transcript
from omlx.storage.entry import Span, TtftParts

_log = logging.getLogger("omlx.server")


@dataclass(frozen=True, slots=True)
class Caller:
    """Who sent a request, as far as its headers tell, and in which dialect."""

    dialect: str = ""
    client: str = ""
    session: str = ""
    address: str = ""
    key: str = ""
    # With whom it shares what is cached; a digest.
    salt: str = ""

    @property
    def tenant(self) -> str:
        """With whom it shares what one tenant may have: its key, else its session, its address."""
        if self.key:
            return f"key {self.key}"
        return f"session {self.session}" if self.session else f"address {self.address}"


@dataclass(slots=True)
class Course:
    """What has happened to a request so far, with times on the server's clock."""

    request_id: str
    model_id: str
    arrived: float
    prompt_tokens: int
    caller: Caller = field(default_factory=Caller)
    spans: tuple[Span, ...] = ()
    prompt: str | None = None
    # What was done to the prompt, by the value of a rule.
    changes: Changes = field(default_factory=dict[str, int])
    cached_memory: int = 0
    cached_disk: int = 0
    generated: int = 0
    # Of these, what was no part of the answer.
    reasoning: int = 0
    # Uncached prompt tokens that were computed, of so many once the engine has said it.
    prefilled: int = 0
    to_prefill: int | None = None
    trail: Trail | None = None
    # What the engine says when the first token is there.
    stats: RequestStats | None = None
    submitted: float | None = None
    was_ready: bool = True
    admitted: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    ended: float | None = None
    # "stop", "length" and "repetition" are answers; "aborted" and "failed" are not.
    outcome: str = "aborted"

    @property
    def usage(self) -> Usage:
        """The token counts as far as they are known."""
        cached = self.cached_memory + self.cached_disk
        return Usage(self.prompt_tokens, cached, self.generated, self.reasoning)

    @property
    def computed(self) -> int:
        """Uncached prompt tokens that were computed: all of them once there is a token."""
        uncached = self.prompt_tokens - self.cached_memory - self.cached_disk
        return uncached if self.first_token is not None else min(self.prefilled, uncached)

    @property
    def parts(self) -> TtftParts | None:
        """What the first token waited for; None while there is none."""
        stats = self.stats
        if stats is None or self.first_token is None or self.submitted is None:
            return None
        # The engine's clock starts when its model is loaded.
        outside_s = self.first_token - self.submitted - stats.ttft_s
        warm_up_s = 0.0 if self.was_ready else max(0.0, outside_s)
        named_s = stats.queue_s + stats.load_s + stats.restore_s + stats.prefill_s + warm_up_s
        return TtftParts(
            queue_s=stats.queue_s,
            load_s=stats.load_s,
            warm_up_s=warm_up_s,
            restore_s=stats.restore_s,
            prefill_s=stats.prefill_s,
            bookkeeping_s=max(0.0, self.first_token - self.arrived - named_s),
        )


def _nothing(prepared: Prepared, said: Said, salt: str) -> None:
    """Where nobody asks for answers."""


def _no_gap(course: Course, seconds: float) -> None:
    """Where nobody asks for the time between tokens."""


@dataclass(frozen=True, slots=True)
class Watchers:
    """Who is told of a request's course."""

    on_open: Callable[[Course], None]
    on_admit: Callable[[Course], None]
    on_close: Callable[[Course], None]
    # Of an answer with its tokens, before its end is told, and the salt; also of one given up.
    on_answer: Callable[[Prepared, Said, str], None] = _nothing
    # Of a token, with the seconds since the one before.
    on_gap: Callable[[Course, float], None] = _no_gap


class Session:
    """A submitted request, as a context: leaving it early aborts the request at the engine."""

    def __init__(
        self,
        prepared: Prepared,
        course: Course,
        *,
        engine: Engine,
        hub: Hub,
        clock: Callable[[], float],
        watchers: Watchers,
    ) -> None:
        self.course = course
        self._prepared = prepared
        self._engine = engine
        self._hub = hub
        self._clock = clock
        self._watchers = watchers
        self._transcript = _transcript(prepared)
        # By what the engine knows the answer, and what it has said of it.
        self._engine_id = course.request_id
        self._tokens: list[int] = []
        self._is_over = False  # at the engine
        self._failure: ApiError | None = None
        self._spoken = Spoken()
        self._is_told = False

    def __enter__(self) -> Self:
        task = asyncio.current_task()
        assert task is not None, "a session needs a task"
        self._on_overflow = lambda: self._give_up(task)
        self.course.was_ready = self._engine.state() is EngineState.READY
        self.course.submitted = self._clock()
        self._submit()
        self._watchers.on_open(self.course)
        return self

    def _submit(self) -> None:
        """Have the engine go on from what it has said so far."""
        self._inbox = self._hub.open(self._engine_id, self._on_overflow)
        request = replace(
            self._prepared.request,
            id=self._engine_id,
            tenant=self.course.caller.tenant,
            salt=self.course.caller.salt,
            emitted=tuple(self._tokens),
        )
        try:
            self._engine.submit(request)
        except BaseException:
            self._hub.close(request.id)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._hub.close(self._engine_id)
        if not self._is_over:
            self._engine.abort(self._engine_id)
        self._tell(is_ended=False)
        self.course.reasoning = self._transcript.num_reasoning
        if isinstance(error, Exception):
            self.course.outcome = "failed"
        self.course.ended = self._clock()
        self._watchers.on_close(self.course)

    async def next(self, timeout_s: float | None) -> list[Piece]:
        """What has come since the last call, waiting for the first; empty after `timeout_s`.

        The last piece of an answer is Ended. ApiError if the request fails.
        """
        until = None if timeout_s is None else asyncio.get_running_loop().time() + timeout_s
        pieces: list[Piece] = []
        while not pieces:
            if self._failure is not None:
                raise self._failure
            if not await self._inbox.wait(until):
                return []
            while self._inbox.qsize() and not self._has_last(pieces):
                self._take(self._inbox.take(), pieces)
        pieces = _joined(pieces)
        for piece in pieces:
            self._spoken.take(0, piece)
        if self._has_last(pieces):
            self._tell(is_ended=self.course.outcome == FinishReason.STOP.value)
        return pieces

    def _tell(self, *, is_ended: bool) -> None:
        """Say once what was said, however it ended: it may come back."""
        if self._tokens and not self._is_told:
            self._is_told = True
            prompt = next((one.text for one in self._prepared.prompts), "")
            parts = self._spoken.parts(0)
            said = Said(prompt, tuple(self._tokens), parts, is_ended=is_ended)
            self._watchers.on_answer(self._prepared, said, self.course.caller.salt)

    def _has_last(self, pieces: list[Piece]) -> bool:
        return self._failure is not None or (bool(pieces) and isinstance(pieces[-1], Ended))

    def _take(self, event: Event | Stopping, pieces: list[Piece]) -> None:
        match event:
            case Token():
                self._take_token(event, pieces)
            case Admitted() if self.course.admitted is None:
                self.course.admitted = self._clock()
                self.course.cached_memory = event.cached_memory
                self.course.cached_disk = event.cached_disk
                self.course.trail = event.trail
                self._watchers.on_admit(self.course)
                pieces.append(Began())
            case Admitted():
                pass
            case Prefilled():
                self.course.prefilled, self.course.to_prefill = event.done, event.total
                pieces.append(Progress(event.done, event.total))
            case Started():
                self.course.stats = self.course.stats or event.stats
            case Finished():
                self._is_over = True
                self._finish(event, pieces)
            case Failed():
                self._is_over = True
                self._failure = _failure(event)
            case Stopping():
                self._failure = unavailable("The server is stopping")
            case _:
                assert_never(event)

    def _take_token(self, token: Token, pieces: list[Piece]) -> None:
        self._time_token()
        self._tokens.append(token.token)
        pieces += self._transcript.add(token)
        self._counted()
        is_last_call = not self._prepared.generation.tool_choice.is_parallel and any(
            isinstance(piece, CallEnded) for piece in pieces
        )
        if self._transcript.stop is not None or is_last_call:
            rest = self._transcript.finish(is_cut=False)
            pieces += [] if is_last_call else rest
            self._end(FinishReason.STOP, pieces)
        elif self._has_thought_enough():
            self._close_thinking(pieces)

    def _time_token(self) -> None:
        now, last = self._clock(), self.course.last_token
        self.course.last_token = now
        if last is None:
            self.course.first_token = now
        else:
            self._watchers.on_gap(self.course, now - last)

    def _has_thought_enough(self) -> bool:
        budget = self._prepared.thinking_budget
        if budget is None or not (self._transcript.is_thinking and self._prepared.thinking_close):
            return False
        return self._transcript.num_reasoning >= budget

    def _close_thinking(self, pieces: list[Piece]) -> None:
        """Make the model say that it has thought enough, and have it go on from there."""
        close = self._prepared.thinking_close
        tokens = self._prepared.text.encode(close)
        if len(self._tokens) + len(tokens) >= self._prepared.request.max_tokens:
            return  # the limit of the answer comes first
        self._hub.close(self._engine_id)
        self._engine.abort(self._engine_id)
        self._engine_id += ".answer"
        self._tokens += tokens
        pieces += self._transcript.insert(close, len(tokens))
        self._counted()
        self._submit()

    def _counted(self) -> None:
        self.course.generated = len(self._tokens)
        self.course.reasoning = self._transcript.num_reasoning

    def _finish(self, event: Finished, pieces: list[Piece]) -> None:
        if event.reason is FinishReason.ABORT:
            self._failure = unavailable("The engine gave the request up")
            return
        is_cut = event.reason is not FinishReason.STOP
        pieces += self._transcript.finish(is_cut=is_cut)
        is_stopped = self._transcript.stop is not None
        self._end(FinishReason.STOP if is_stopped else event.reason, pieces)

    def _end(self, reason: FinishReason, pieces: list[Piece]) -> None:
        self.course.outcome = reason.value
        pieces.append(Ended(reason, self._transcript.stop, self._transcript.has_calls))

    def _give_up(self, task: asyncio.Task[object]) -> None:
        _log.warning("%s: the client reads too slowly; given up", self.course.request_id)
        task.cancel()


def _transcript(prepared: Prepared) -> Transcript:
    form, is_thinking = prepared.speech_form, prepared.is_thinking
    return Transcript(
        prepared.text,
        Speech(form, prepared.tools, is_open=is_thinking),
        prepared.generation.stop,
        kept=form.kept,
        is_thinking=is_thinking,
    )


def _joined(pieces: list[Piece]) -> list[Piece]:
    """The same pieces, with neighbours of a kind as one: one write for what came in one step."""
    if len(pieces) < 2:
        return pieces
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        match last, piece:
            case Text(), Text():
                scores = (*last.scores, *piece.scores)
                joined[-1] = Text(last.text + piece.text, last.at, scores)
            case Reasoning(), Reasoning():
                joined[-1] = Reasoning(last.text + piece.text)
            case CallArguments(), CallArguments() if last.index == piece.index:
                joined[-1] = CallArguments(last.index, last.text + piece.text)
            case Progress(), Progress():
                joined[-1] = piece
            case _:
                joined.append(piece)
    return joined


def _failure(event: Failed) -> ApiError:
    match event.code:
        case FailureCode.BAD_REQUEST:
            return ApiError(400, event.message)
        case FailureCode.OVERLOADED:
            return busy(event.message)
        case FailureCode.ENGINE | FailureCode.CRASH:
            return ApiError(500, event.message)
