"""An engine loop over a fake batch and perhaps a cache, whose turns a test takes one by one.

Every event is checked as it comes: order within a request, one last event, nothing after it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from omlx.engine.admission import Admission, Sizes
from omlx.engine.buffers import FreedBuffers
from omlx.engine.flights import Flights, Keeping
from omlx.engine.gauge import Gauge, no_cache
from omlx.engine.inbox import Inbox
from omlx.engine.intake import Intake
from omlx.engine.keeper import Keeper
from omlx.engine.loop import EngineLoop
from omlx.engine.pacer import Pacer
from omlx.engine.request import (
    Admitted,
    EngineRequest,
    EngineSnapshot,
    Event,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    Prefilled,
    Token,
)
from omlx.engine.row import Row
from omlx.engine.sampling import Fault, Sampling
from omlx.engine.scheduler import Limits, Scheduler
from omlx.engine.turns import Stage
from tests.fakes.allocator import FakeAllocator
from tests.fakes.batch import FakeBatch, solo
from tests.fakes.cache import Rig

NUM_VOCAB = 50
NO_SIZES = Sizes()


@dataclass
class Outcome:
    """What came of one request so far."""

    request: EngineRequest
    events: list[Event] = field(default_factory=list)

    @property
    def tokens(self) -> list[int]:
        return [e.token for e in self.events if isinstance(e, Token)]

    @property
    def kinds(self) -> list[str]:
        return [type(e).__name__ for e in self.events]

    @property
    def last(self) -> Finished | Failed | None:
        end = self.events[-1] if self.events else None
        return end if isinstance(end, Finished | Failed) else None

    @property
    def reason(self) -> FinishReason | None:
        return self.last.reason if isinstance(self.last, Finished) else None

    @property
    def code(self) -> FailureCode | None:
        return self.last.code if isinstance(self.last, Failed) else None

    def take(self, event: Event) -> None:
        """Check that `event` may come now, and keep it."""
        assert self.last is None, "an event after the last one"
        if isinstance(event, Admitted):
            assert not self.events
        elif isinstance(event, Prefilled):
            assert 0 < event.done <= event.total
            assert "Admitted" in self.kinds
        elif isinstance(event, Token):
            before = [e for e in self.events if isinstance(e, Prefilled)]
            assert before and before[-1].done == before[-1].total
        self.events.append(event)


class FakeMeter:
    """Steps that take so much memory as a test says."""

    peak_bytes = 0

    def begin(self) -> None: ...

    def end(self) -> int:
        return self.peak_bytes


class LoopRig:
    """Turns are taken by `turn`; `cache` is None for a model that can't be cached."""

    def __init__(
        self,
        *,
        cache: Rig | None = None,
        max_active: int = 3,
        max_waiting: int = 4,
        chunk: int = 8,
        sizes: Sizes = NO_SIZES,
        limit_bytes: int = 1 << 60,
        emit: Callable[[Sequence[Event]], None] | None = None,
        publish: Callable[[EngineSnapshot], None] | None = None,
    ) -> None:
        self.cache = cache
        self.now = 0.0
        self.batch = FakeBatch(chunk=chunk, num_vocab=NUM_VOCAB)
        self.inbox = Inbox()
        self.meter = FakeMeter()
        self.allocator = FakeAllocator()
        self.buffers = FreedBuffers(self.allocator, 0, is_metal=False, clock=self._clock)
        self.admission = admission = Admission(sizes, limit_bytes, clear=self.buffers.release)
        self.scheduler = Scheduler(Limits(max_active, max_waiting), self._clock, admission.fits)
        self.calls: list[list[Event]] = []
        self.snapshots: list[EngineSnapshot] = []
        self.outcomes: dict[str, Outcome] = {}
        self.ids = count()
        keeper = Keeper(self.batch, cache.prefix if cache else None)
        self.gauge = gauge = Gauge(
            publish or self.snapshots.append,
            cache_figures=no_cache,
            cache_note="",
            clock=self._clock,
        )
        intake = Intake(
            self.batch,
            keeper,
            self.scheduler,
            Flights(Keeping(cache.block_size, chunk, cache.codec.can_cut) if cache else None),
            admission=admission,
            make_sampling=self._make_sampling,
            gauge=gauge,
            prefill_chunk=chunk,
            num_vocab=NUM_VOCAB,
            clock=self._clock,
        )
        self.loop = EngineLoop(
            self.batch,
            keeper,
            self.scheduler,
            intake,
            pacer=Pacer(chunk, 0.25),
            admission=admission,
            meter=self.meter,
            buffers=self.buffers,
            inbox=self.inbox,
            emit=emit or self._emit,
            gauge=gauge,
            clock=self._clock,
        )

    def _clock(self) -> float:
        return self.now

    @staticmethod
    def _make_sampling(row: Row) -> Sampling:
        return Sampling(lambda logprobs: logprobs, (), Fault())

    def _emit(self, events: Sequence[Event]) -> None:
        assert events
        self.calls.append(list(events))
        for event in events:
            self.outcomes[event.request_id].take(event)

    def submit(
        self,
        tokens: Sequence[int],
        max_tokens: int = 3,
        stop: Sequence[Sequence[int]] = (),
        **fields: Any,
    ) -> Outcome:
        """Queue a request."""
        stops = tuple(tuple(s) for s in stop)
        request_id = f"r{next(self.ids)}"
        request = EngineRequest(request_id, tuple(tokens), max_tokens, stop=stops, **fields)
        self.outcomes[request.id] = Outcome(request)
        self.loop.submit(request)
        return self.outcomes[request.id]

    def abort(self, outcome: Outcome) -> None:
        """Queue an abort."""
        self.loop.abort(outcome.request.id)

    def stage(self, outcome: Outcome) -> Stage | None:
        """Where a request is."""
        return self.scheduler.stage(outcome.request.id)

    def turn(self, *, has_io: bool = True) -> None:
        """One turn of the loop a second later, after the I/O threads have done theirs."""
        self.now += 1.0
        if self.cache is not None:
            self.cache.clock.now += 1.0
            if has_io:
                self.io()
        self.loop.turn(0.0)
        assert len(self.batch) <= self.batch.most_rows

    def io(self) -> None:
        """Let the I/O threads work and post their answers."""
        assert self.cache is not None
        self.cache.readers.run()
        self.cache.writer.run()
        self.answer()

    def answer(self) -> None:
        """Post what the I/O threads have done."""
        assert self.cache is not None
        jobs, self.cache.inbox[:] = list(self.cache.inbox), []
        for job in jobs:
            self.inbox.post(job)

    def until(self, *outcomes: Outcome, limit: int = 500) -> None:
        """Take turns until these requests are over; all of them without names."""
        left = outcomes or tuple(self.outcomes.values())
        for _ in range(limit):
            if all(outcome.last is not None for outcome in left):
                return
            self.turn()
        raise AssertionError("a request does not end")

    def until_stage(self, outcome: Outcome, stage: Stage, limit: int = 50) -> None:
        """Take turns until a request is in a stage."""
        for _ in range(limit):
            if self.stage(outcome) is stage:
                return
            self.turn()
        raise AssertionError(f"never {stage}")


def assert_as_solo(outcome: Outcome) -> None:
    """The request ended as if it had been alone and undisturbed."""
    request = outcome.request
    new, reason = solo(request.tokens, request.max_tokens, NUM_VOCAB, request.stop)
    assert outcome.reason is FinishReason(reason)
    assert outcome.tokens == (new[:-1] if reason == "stop" else new)
    assert isinstance(outcome.last, Finished)
    assert outcome.last.stats.generated_tokens == len(new)
    assert outcome.last.stats.prompt_tokens == len(request.tokens)
