"""The engine loop: requests in, events out, one step of the batch at a time.

Knows nothing about text, HTTP or how a batch computes; it holds no mlx object itself.
All of it runs on the engine thread; other threads reach it through the inbox.
"""

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Protocol

from omlx.engine.admission import Admission
from omlx.engine.batch import RowInput, RowProgress, RowToken
from omlx.engine.buffers import FreedBuffers
from omlx.engine.gauge import Gauge
from omlx.engine.inbox import Inbox
from omlx.engine.intake import Intake
from omlx.engine.keeper import Keeper
from omlx.engine.pacer import Pacer
from omlx.engine.recovery import Recovery
from omlx.engine.request import (
    EngineRequest,
    Event,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    Prefilled,
    Started,
    Token,
)
from omlx.engine.row import Row
from omlx.engine.scheduler import Scheduler
from omlx.engine.together import Together
from omlx.engine.turns import Stage

_log = logging.getLogger("omlx.engine.loop")
_IDLE_S = 0.5  # how long an idle loop sleeps at most: upkeep and figures stay fresh
_ENDING = (FailureCode.ENGINE, "the engine is ending")
_NOT_FINITE = "the model's logits are not finite"
_DROPPED = "; the cached blocks of this prompt were dropped"


class RowBatch(Protocol):
    """What the loop needs of a batch; see omlx.engine.batch.Batch."""

    @property
    def row_ids(self) -> Collection[str]: ...
    @property
    def done_ids(self) -> list[str]: ...
    def __len__(self) -> int: ...
    def insert(self, row: RowInput) -> None: ...
    def remove(self, row_id: str) -> None: ...
    def step(
        self, chosen: Collection[str], grain: int, *, starts: bool
    ) -> tuple[list[RowProgress], list[RowToken]]: ...
    def num_left(self, row_id: str) -> int: ...
    def take_next(self, row_id: str) -> RowToken | None: ...
    def reset(self) -> None: ...


class Meter(Protocol):
    """What the loop needs to know how much memory a step took; see omlx.engine.memory."""

    def begin(self) -> None: ...
    def end(self) -> int: ...


class EngineLoop:
    """Runs the requests of one model; any thread may submit, abort and stop."""

    def __init__(
        self,
        batch: RowBatch,
        keeper: Keeper,
        scheduler: Scheduler,
        intake: Intake,
        *,
        pacer: Pacer,
        admission: Admission,
        meter: Meter,
        buffers: FreedBuffers,
        inbox: Inbox,
        emit: Callable[[Sequence[Event]], None],
        gauge: Gauge,
        clock: Callable[[], float],
    ) -> None:
        self._batch = batch
        self._keeper = keeper
        self._scheduler = scheduler
        self._intake = intake
        self._rows = intake.rows
        self._pacer, self._admission = pacer, admission
        self._meter = meter
        self._buffers = buffers
        self._room = 0
        self._together = Together(batch, scheduler, intake.rows, pacer=pacer, clock=clock)
        self._recovery = Recovery(
            keeper, scheduler, intake, pacer=pacer, admission=admission, fail=self._fail
        )
        self._emit = emit
        self._gauge = gauge
        self._clock = clock
        self._inbox = inbox
        self._events: list[Event] = []
        self._stopping = threading.Event()
        self._wait_s = _IDLE_S

    def submit(self, request: EngineRequest) -> None:
        """Queue a request."""
        arrived = self._clock()
        self._inbox.post(lambda: self._submit(request, arrived))

    def abort(self, request_id: str) -> None:
        """End a request within one step."""
        self._inbox.post(lambda: self._abort(request_id))

    def stop(self) -> None:
        """Leave `run` after the current step."""
        self._inbox.post(self._stopping.set)

    def run(self) -> None:
        """Work until `stop`; requests that are still there then are aborted."""
        while not self._stopping.is_set():
            has_work = len(self._batch) > 0 or self._intake.has_work
            self.turn(self._together.pause_s if has_work else self._wait_s)
        for request_id in list(self._rows):
            self.abort(request_id)
        while self._rows:
            self.turn(0.0)
        self._flush_events()

    def turn(self, wait_s: float) -> None:
        """Run what was posted, waiting at most so long for it, then do one round of work."""
        try:
            self._inbox.run_jobs(wait_s)
            self._work()
        except Exception as error:  # the engine step: log it and run the rows again
            _log.exception("a step of the engine failed")
            self._batch.reset()
            self._recovery.run_again(error, self._room)

    def _work(self) -> None:
        """Preempt, admit, start prefills, step the batch, upkeep, events."""
        self._make_way()
        room = self._together.room(self._pacer.room(self._scheduler.count(Stage.DECODING)))
        self._room = room = self._admission.room(self._scheduler.lengths(), room)
        chosen = self._intake.work(self._events.append, room)
        if len(self._batch):
            self._step(chosen, room)
        self._buffers.turned(self._batch.row_ids)
        upkeep_s = self._keeper.tick(is_busy=len(self._batch) > 0)
        self._wait_s = _IDLE_S if upkeep_s is None else min(upkeep_s, _IDLE_S)
        self._gauge.sample(self._scheduler)
        self._flush_events()

    def _make_way(self) -> None:
        """Let a row leave for a more urgent request, or since the others need its memory."""
        victim = self._scheduler.victim()
        if victim is None and not self._admission.holds(self._scheduler.lengths()):
            victim = self._scheduler.last_come()
        if victim is not None:
            self._preempt(self._rows[victim])

    def _flush_events(self) -> None:
        if self._events:
            events, self._events = self._events, []
            self._emit(events)

    def _submit(self, request: EngineRequest, arrived: float) -> None:
        refused = _ENDING if self._stopping.is_set() else self._intake.enqueue(request, arrived)
        if refused is not None:
            self._events.append(Failed(request.id, *refused))

    def _step(self, chosen: Sequence[str], grain: int) -> None:
        starts, started = not self._together.holds(chosen), self._clock()
        self._meter.begin()
        progress, tokens = self._batch.step(chosen, grain, starts=starts)
        num_begun = self._scheduler.computed({i: self._batch.num_left(i) for i in chosen})
        for p in progress:
            self._prefilled(self._rows[p.row_id], p)
        for t in tokens:
            self._decoded(self._rows[t.row_id], t)
        seconds, num_prefilled = self._clock() - started, _num_prefilled(progress)
        self._pacer.stepped(seconds, num_prefilled, len(tokens))
        self._admission.stepped(grain if num_begun else 0, self._meter.end(), _longest(progress))
        self._gauge.stepped(seconds, num_prefilled, len(tokens))

    def _prefilled(self, row: Row, p: RowProgress) -> None:
        if p.is_complete:
            self._scheduler.decoding(row.id)
            self._intake.leave(row.id)
        else:
            self._keeper.keep(row, p.num_cached, is_end=p.done == p.total - 1)
            self._intake.prefilled(row, p.num_cached)
        self._events.append(Prefilled(row.id, p.done, p.total))

    def _decoded(self, row: Row, t: RowToken) -> None:
        if not self._deliver(row, t):
            return
        if t.finish is None:
            self._keeper.keep(row, t.num_cached, is_end=False)
        elif t.final is not None:
            self._keeper.keep(row, t.num_cached, is_end=True, final=t.final)

    def _deliver(self, row: Row, t: RowToken) -> bool:
        """Give a token to its request, maybe its last; False if nothing more of it is kept."""
        fault = row.fault()
        if fault is not None:
            self._batch.remove(row.id)
            self._fail(row, FailureCode.BAD_REQUEST, fault)
            return False
        if t.finish == "fault":
            message = _NOT_FINITE + (_DROPPED if self._keeper.drop(row) else "")
            _log.error("%s: %s", row.id, message)
            self._fail(row, FailureCode.ENGINE, message)
            return False
        self._scheduler.decoded(row.id)
        if row.first_token_at is None:
            self._events.append(Started(row.id, row.start(self._clock())))
        row.emitted.append(t.token)
        if t.finish != "stop":
            self._events.append(Token(row.id, t.token, t.logprob, t.top))
        if t.finish is not None:
            self._finish(row, FinishReason(t.finish))  # first: what follows may fail
        elif row.repetition.add(t.token):
            self._batch.remove(row.id)
            self._finish(row, FinishReason.REPETITION)  # and no tail of it is kept
            return False
        return True

    def _preempt(self, row: Row) -> None:
        """Let a row leave the batch; it comes back from what is stored of it."""
        if self._scheduler.stage(row.id) is not Stage.READY:
            self._keeper.keep_preempted(row)
            token = self._batch.take_next(row.id)
            if token is not None and not (self._deliver(row, token) and token.finish is None):
                return
        self._recovery.put_back(row, is_excused=True)
        self._scheduler.preempt(row.id, len(row.tokens))
        self._gauge.preempted()

    def _abort(self, request_id: str) -> None:
        row = self._rows.get(request_id)
        if row is None:
            return
        stage = self._scheduler.stage(request_id)
        self._finish(row, FinishReason.ABORT)  # first: what follows may fail
        if stage in (Stage.PREFILLING, Stage.DECODING):
            self._keeper.keep_aborted(row)
            self._batch.remove(request_id)

    def _finish(self, row: Row, reason: FinishReason) -> None:
        self._close(row)
        self._admission.relaxed()
        self._gauge.finished(failed=False)
        self._events.append(Finished(row.id, reason, row.stats(self._clock())))

    def _fail(self, row: Row, code: FailureCode, message: str) -> None:
        self._close(row)
        self._gauge.finished(failed=True)
        self._events.append(Failed(row.id, code, message))

    def _close(self, row: Row) -> None:
        self._scheduler.remove(row.id)
        self._intake.leave(row.id)
        self._keeper.release(row)
        del self._rows[row.id]


def _num_prefilled(progress: Sequence[RowProgress]) -> int:
    """Without last tokens, which are computed with rows that decode and cost what these do."""
    return sum(p.step_tokens for p in progress if not p.is_complete)


def _longest(progress: Sequence[RowProgress]) -> int:
    """How many tokens the state of the longest row covers."""
    return max((p.num_cached for p in progress), default=0)
