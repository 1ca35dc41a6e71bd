"""The engine loop: requests in, events out, one step of the batch at a time.

Knows nothing about text, HTTP or how a batch computes; it holds no mlx object itself.
All of it runs on the engine thread; other threads reach it through the inbox.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from omlx.engine.batch import RowInput, RowProgress, RowToken
from omlx.engine.gauge import Gauge
from omlx.engine.inbox import Inbox
from omlx.engine.intake import Intake
from omlx.engine.keeper import Keeper
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
from omlx.engine.scheduler import Scheduler, Stage

_log = logging.getLogger("omlx.engine.loop")
_IDLE_S = 0.5  # how long an idle loop sleeps at most: upkeep and figures stay fresh
_MAX_ATTEMPTS = 2
_NOT_FINITE = "the model's logits are not finite"
_DROPPED = "; the cached blocks of this prompt were dropped"


class RowBatch(Protocol):
    """What the loop needs of a batch; see omlx.engine.batch.Batch."""

    def __len__(self) -> int: ...
    def insert(self, row: RowInput) -> None: ...
    def remove(self, row_id: str) -> None: ...
    def step(self) -> tuple[list[RowProgress], list[RowToken]]: ...
    def reset(self) -> None: ...


class EngineLoop:
    """Runs the requests of one model; any thread may submit, abort and stop."""

    def __init__(
        self,
        batch: RowBatch,
        keeper: Keeper,
        scheduler: Scheduler,
        intake: Intake,
        *,
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
            self.turn(0.0 if self._has_work() else self._wait_s)
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
        except Exception:  # the engine step: log it and run the rows again
            _log.exception("a step of the engine failed")
            self._recover()

    def _work(self) -> None:
        """Admit, start prefills, step the batch, upkeep, events."""
        self._intake.work(self._events.append)
        if len(self._batch):
            self._step()
        upkeep_s = self._keeper.tick(is_busy=len(self._batch) > 0)
        self._wait_s = _IDLE_S if upkeep_s is None else min(upkeep_s, _IDLE_S)
        self._gauge.sample(self._scheduler)
        self._flush_events()

    def _has_work(self) -> bool:
        return len(self._batch) > 0 or self._intake.has_work

    def _flush_events(self) -> None:
        if self._events:
            events, self._events = self._events, []
            self._emit(events)

    def _submit(self, request: EngineRequest, arrived: float) -> None:
        if self._stopping.is_set():
            refused = FailureCode.ENGINE, "the engine is ending"
        else:
            refused = self._intake.enqueue(request, arrived)
        if refused is not None:
            self._events.append(Failed(request.id, *refused))

    def _step(self) -> None:
        started = self._clock()
        progress, tokens = self._batch.step()
        for p in progress:
            self._prefilled(self._rows[p.row_id], p)
        for t in tokens:
            self._decoded(self._rows[t.row_id], t)
        seconds = self._clock() - started
        self._gauge.stepped(seconds, sum(p.step_tokens for p in progress), len(tokens))

    def _prefilled(self, row: Row, p: RowProgress) -> None:
        if p.is_complete:
            self._scheduler.decoding(row.id)
            self._intake.leave(row.id)
        else:
            self._keeper.keep(row, p.num_cached, is_end=p.done == p.total - 1)
            self._intake.prefilled(row, p.num_cached)
        self._events.append(Prefilled(row.id, p.done, p.total))

    def _decoded(self, row: Row, t: RowToken) -> None:
        fault = row.fault()
        if fault is not None:
            self._batch.remove(row.id)
            self._fail(row, FailureCode.BAD_REQUEST, fault)
            return
        if t.finish == "fault":
            message = _NOT_FINITE + (_DROPPED if self._keeper.drop(row) else "")
            _log.error("%s: %s", row.id, message)
            self._fail(row, FailureCode.ENGINE, message)
            return
        if row.first_token_at is None:
            self._events.append(Started(row.id, row.start(self._clock())))
        row.emitted.append(t.token)
        if t.finish != "stop":
            self._events.append(Token(row.id, t.token))
        if t.finish is None:
            self._keeper.keep(row, t.num_cached, is_end=False)
            return
        self._finish(row, FinishReason(t.finish))  # first: what follows may fail
        if t.final is not None:
            self._keeper.keep(row, t.num_cached, is_end=True, final=t.final)

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

    def _recover(self) -> None:
        """Rebuild the batch; rows in work run again from their tokens, each at most once more.

        What is ready or held took no part in what failed.
        """
        self._batch.reset()
        again: list[str] = []
        for row in list(self._rows.values()):
            is_apart = self._scheduler.stage(row.id) in (Stage.WAITING, Stage.READY)
            if is_apart or self._intake.is_held(row.id):
                continue
            if row.attempts >= _MAX_ATTEMPTS:
                self._fail(row, FailureCode.CRASH, "the engine failed twice on this request")
                continue
            self._keeper.release(row)
            self._intake.leave(row.id)
            row.restart()
            again.append(row.id)
        self._scheduler.requeue(again)
