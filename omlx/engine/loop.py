"""The engine loop: requests in, events out, one step of the batch at a time.

Knows nothing about text, HTTP or how a batch computes; it holds no mlx object itself.
All of it runs on the engine thread; other threads reach it through the inbox.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from omlx.cache.lookup import Hit
from omlx.engine.batch import RowInput, RowProgress, RowToken
from omlx.engine.gauge import Gauge
from omlx.engine.inbox import Inbox
from omlx.engine.keeper import Keeper
from omlx.engine.request import (
    Admitted,
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
from omlx.engine.sampling import Sampling, problem
from omlx.engine.scheduler import Scheduler, Stage

_log = logging.getLogger("omlx.engine.loop")
_IDLE_S = 0.5  # how long an idle loop sleeps at most: upkeep and figures stay fresh
_MAX_ATTEMPTS = 2


class RowBatch(Protocol):
    """What the loop needs of a batch; see omlx.engine.batch.Batch."""

    def __len__(self) -> int: ...
    def insert(self, row: RowInput) -> None: ...
    def remove(self, row_id: str) -> None: ...
    def step(self) -> tuple[list[RowProgress], list[RowToken]]: ...
    def reset(self) -> None: ...


class EngineLoop:
    """Owns the rows of one model; any thread may submit, abort and stop."""

    def __init__(
        self,
        batch: RowBatch,
        keeper: Keeper,
        scheduler: Scheduler,
        *,
        inbox: Inbox,
        make_sampling: Callable[[Row], Sampling],
        emit: Callable[[Sequence[Event]], None],
        gauge: Gauge,
        prefill_chunk: int,
        num_vocab: int,
        clock: Callable[[], float],
    ) -> None:
        self._batch = batch
        self._keeper = keeper
        self._scheduler = scheduler
        self._make_sampling = make_sampling
        self._emit = emit
        self._gauge = gauge
        self._prefill_chunk = prefill_chunk
        self._num_vocab = num_vocab
        self._clock = clock
        self._inbox = inbox
        self._rows: dict[str, Row] = {}
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
        for request_id in self._scheduler.admit():
            self._look_up(self._rows[request_id])
        for request_id in self._scheduler.start_prefills():
            self._insert(self._rows[request_id])
        if len(self._batch):
            self._step()
        upkeep_s = self._keeper.tick(is_busy=len(self._batch) > 0)
        self._wait_s = _IDLE_S if upkeep_s is None else min(upkeep_s, _IDLE_S)
        self._gauge.sample(self._scheduler)
        self._flush_events()

    def _has_work(self) -> bool:
        return len(self._batch) > 0 or self._scheduler.can_proceed()

    def _flush_events(self) -> None:
        if self._events:
            events, self._events = self._events, []
            self._emit(events)

    def _submit(self, request: EngineRequest, arrived: float) -> None:
        assert request.id not in self._rows, "request ids are unique"
        wrong = _problem(request, self._num_vocab)
        if self._stopping.is_set():
            refused = FailureCode.ENGINE, "the engine is ending"
        elif wrong:
            refused = FailureCode.BAD_REQUEST, wrong
        elif not self._scheduler.enqueue(request.id):
            refused = FailureCode.OVERLOADED, "too many requests are waiting"
        else:
            self._rows[request.id] = Row(request, arrived)
            return
        self._events.append(Failed(request.id, *refused))

    def _look_up(self, row: Row) -> None:
        row.admitted_at = self._clock()
        attempt = row.attempts
        self._keeper.look_up(
            row.tokens, lambda hit: self._loaded(row, hit) if row.attempts == attempt else None
        )

    def _loaded(self, row: Row, hit: Hit) -> None:
        if self._scheduler.stage(row.id) is not Stage.LOADING:
            return  # aborted meanwhile
        row.load(hit, self._clock())
        self._scheduler.loaded(row.id, len(row.tokens) - hit.num_tokens)

    def _insert(self, row: Row) -> None:
        hit = row.hit
        assert hit is not None
        row.insert_at = self._clock()
        caches = self._keeper.restore(row)
        row.restored_at = self._clock()
        row.sampling = self._make_sampling(row)
        if row.prefill_at is None:  # not a row that runs again
            row.prefill_at = self._clock()
            row.cached_memory, row.cached_disk = hit.from_memory, hit.from_disk
            self._events.append(Admitted(row.id, hit.from_memory, hit.from_disk, row.trail()))
            self._gauge.admitted(len(row.tokens), hit.from_memory, hit.from_disk)
        size = self._prefill_chunk
        self._batch.insert(_as_input(row, row.sampling, hit.num_tokens, caches, size))

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
        else:
            self._keeper.keep(row, p.num_cached, is_end=p.done == p.total - 1)
        self._events.append(Prefilled(row.id, p.done, p.total))

    def _decoded(self, row: Row, t: RowToken) -> None:
        fault = row.fault()
        if fault is not None:
            self._batch.remove(row.id)
            self._fail(row, FailureCode.BAD_REQUEST, fault)
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
        del self._rows[row.id]

    def _recover(self) -> None:
        """Rebuild the batch; rows in work run again from their tokens, each at most once more."""
        self._batch.reset()
        again: list[str] = []
        for row in list(self._rows.values()):
            if self._scheduler.stage(row.id) is Stage.WAITING:
                continue
            if row.attempts >= _MAX_ATTEMPTS:
                self._fail(row, FailureCode.ENGINE, "the engine failed twice on this request")
                continue
            row.restart()
            again.append(row.id)
        self._scheduler.requeue(again)


def _problem(request: EngineRequest, num_vocab: int) -> str:
    """Why a request can't be run at all; empty if it can."""
    if not request.tokens:
        return "the prompt is empty"
    if request.max_tokens < 1:
        return "max_tokens must be at least 1"
    if not (min(request.tokens) >= 0 and max(request.tokens) < num_vocab):
        return f"a token id lies outside the vocabulary of {num_vocab}"
    return problem(request.sampling)


def _as_input(
    row: Row, sampling: Sampling, num_hit: int, caches: list[Any] | None, prefill_chunk: int
) -> RowInput:
    tokens = row.tokens
    return RowInput(
        row_id=row.id,
        prefix=tokens[:num_hit],
        segments=_segments(tokens, num_hit, prefill_chunk),
        caches=caches,
        max_tokens=row.request.max_tokens - len(row.emitted),
        sampling=sampling,
        stop=row.request.stop,
        emitted=tuple(row.emitted),
    )


def _segments(tokens: Sequence[int], num_hit: int, prefill_chunk: int) -> list[Sequence[int]]:
    """What is left to prefill, cut so that steps end on the grid of prefill chunks.

    A run that starts in the middle then computes the same chunks as one from the start.
    """
    last = len(tokens) - 1
    grid = min(num_hit + -num_hit % prefill_chunk, last)
    cuts = [num_hit, grid, last, last + 1]
    return [tokens[a:b] for a, b in zip(cuts, cuts[1:], strict=False) if b > a]
