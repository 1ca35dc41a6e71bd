"""A request's way into the batch: checked, queued, looked up in the cache, put in.

Knows nothing about what becomes of it there. Engine thread only.
"""

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from omlx.cache.lookup import Hit
from omlx.cache.policy import StorePolicy
from omlx.engine.admission import Admission
from omlx.engine.batch import RowInput
from omlx.engine.flights import Flights
from omlx.engine.gauge import Gauge
from omlx.engine.keeper import Keeper
from omlx.engine.request import Admitted, EngineRequest, Event, FailureCode, SamplingParams
from omlx.engine.row import Row
from omlx.engine.sampling import Sampling, problem
from omlx.engine.scheduler import Scheduler


class Inserts(Protocol):
    """What the intake needs of a batch; see omlx.engine.batch.Batch."""

    def insert(self, row: RowInput) -> None: ...


class Intake:
    """Owns the rows of all requests; one that shares a prefix with one before it waits for it."""

    def __init__(
        self,
        batch: Inserts,
        keeper: Keeper,
        scheduler: Scheduler,
        flights: Flights,
        *,
        admission: Admission,
        make_sampling: Callable[[Row], Sampling],
        gauge: Gauge,
        prefill_chunk: int,
        num_vocab: int,
        clock: Callable[[], float],
    ) -> None:
        self._batch = batch
        self._keeper = keeper
        self._scheduler = scheduler
        self._flights = flights
        self._admission = admission
        self._make_sampling = make_sampling
        self._gauge = gauge
        self._prefill_chunk = prefill_chunk
        self._num_vocab = num_vocab
        self._clock = clock
        self.rows: dict[str, Row] = {}

    def enqueue(self, request: EngineRequest, arrived: float) -> tuple[FailureCode, str] | None:
        """Put a request in the queue; why that can't be, else None."""
        assert request.id not in self.rows, "request ids are unique"
        wrong = _problem(request, self._num_vocab) or self._admission.refusal(len(request.tokens))
        if wrong:
            return FailureCode.BAD_REQUEST, wrong
        is_queued = self._scheduler.enqueue(
            request.id,
            request.request_class,
            tenant=request.tenant,
            num_tokens=len(request.tokens),
        )
        if not is_queued:
            return FailureCode.OVERLOADED, "too many requests are waiting"
        row = self.rows[request.id] = Row(request, arrived)
        most = self._admission.most_tokens
        if most is not None:  # an answer ends where its memory does
            row.max_tokens = min(row.max_tokens, max(1, most - len(request.tokens)))
        return None

    @property
    def has_work(self) -> bool:
        """Whether a request could be looked up or started right now."""
        return self._flights.has_woken or self._scheduler.can_proceed()

    def work(self, tell: Callable[[Event], None], room: int) -> list[str]:
        """Look up what leaves the queue now and what was held until now, insert what is next; the
        prompts to compute a piece of now, `room` tokens in all."""
        for request_id in [*self._flights.take_woken(), *self._scheduler.admit()]:
            self._look_up(self.rows[request_id])
        chosen = self._scheduler.choose(room)
        for request_id in chosen:
            if self.rows[request_id].insert_at is None:
                self._insert(self.rows[request_id], tell)
        return chosen

    def _look_up(self, row: Row) -> None:
        row.admitted_at = self._clock()
        self._gauge.took_up(row.id)
        run, tokens = row.num_runs, row.tokens
        self._flights.look_up(
            row.id,
            tokens,
            stops=self._keeper.stops_of(row),
            is_shared=row.request.store is not StorePolicy.OFF,
            salt=row.request.salt,
        )
        salt = row.request.salt
        self._keeper.look_up(tokens, lambda hit: self._found(row, run, hit), salt=salt)

    def _found(self, row: Row, run: int, hit: Hit) -> None:
        if self.rows.get(row.id) is not row or row.num_runs != run:
            return  # aborted or begun anew meanwhile
        if self._flights.found(row.id, hit.chain.tokens, hit.num_tokens):
            row.load(hit, self._clock())
            self._scheduler.loaded(row.id, len(hit.chain.tokens) - hit.num_tokens)
        else:
            row.admitted_at = None  # until it is looked up again, it is as if in the queue
            self._hand_on_class(row.id)

    def _hand_on_class(self, request_id: str) -> None:
        """Those that compute what a request waits for are as urgent as it is."""
        leader = self._flights.leader_of(request_id)
        while leader is not None:
            self._scheduler.inherit(leader, of=request_id)
            leader = self._flights.leader_of(leader)

    def _insert(self, row: Row, tell: Callable[[Event], None]) -> None:
        hit = row.hit
        assert hit is not None
        row.insert_at = self._clock()
        caches = self._keeper.restore(row)
        row.restored_at = self._clock()
        row.sampling = self._make_sampling(row)
        if row.prefill_at is None:  # not a row that runs again
            row.prefill_at = self._clock()
            row.cached_memory, row.cached_disk = hit.from_memory, hit.from_disk
            tell(Admitted(row.id, hit.from_memory, hit.from_disk, row.trail()))
            self._gauge.admitted(len(row.tokens), hit.from_memory, hit.from_disk)
        stops = (hit.num_tokens, *self._keeper.stops_of(row))
        segments = _segments(row.tokens, stops, self._prefill_chunk)
        self._batch.insert(_as_input(row, row.sampling, segments, caches))

    def prefilled(self, row: Row, num_cached: int) -> None:
        """What a prompt has computed so far is kept: those that wait for it may go on."""
        self._flights.kept(row.id, num_cached)

    def leave(self, request_id: str) -> None:
        """A prompt is done, or its request is over or begins anew."""
        self._flights.over(request_id)

    def is_held(self, request_id: str) -> bool:
        """Whether a request waits for what another computes."""
        return self._flights.is_held(request_id)


def _problem(request: EngineRequest, num_vocab: int) -> str:
    """Why a request can't be run at all; empty if it can."""
    if not request.tokens:
        return "the prompt is empty"
    if request.max_tokens < 1:
        return "max_tokens must be at least 1"
    if request.max_tokens <= len(request.emitted):
        return "the answer has all of its max_tokens already"
    known = (*request.tokens, *request.emitted)
    if not (min(known) >= 0 and max(known) < num_vocab):
        return f"a token id lies outside the vocabulary of {num_vocab}"
    return problem(request.sampling) or _token_problem(request.sampling, num_vocab)


def _token_problem(params: SamplingParams, num_vocab: int) -> str:
    if any(not 0 <= token < num_vocab for token, _ in params.logit_bias):
        return f"a token of logit_bias lies outside the vocabulary of {num_vocab}"
    if (params.logprobs or 0) > num_vocab:
        return "logprobs is out of range"
    return ""


def _as_input(
    row: Row, sampling: Sampling, segments: list[Sequence[int]], caches: list[Any] | None
) -> RowInput:
    tokens = row.tokens
    return RowInput(
        row_id=row.id,
        prefix=tokens[: len(tokens) - sum(map(len, segments))],
        segments=segments,
        caches=caches,
        max_tokens=row.max_tokens - len(row.emitted),
        sampling=sampling,
        stop=(*row.request.stop, *sampling.ends),
        emitted=tuple(row.emitted),
    )


def _segments(
    tokens: Sequence[int], stops: Sequence[int], prefill_chunk: int
) -> list[Sequence[int]]:
    """What is left to prefill after the first of `stops`, cut at the others and so that steps
    end on the grid of prefill chunks.

    A run that starts at any of them then computes the same chunks as one from the start.
    """
    start, last = stops[0], len(tokens) - 1
    on_grid = [min(stop + -stop % prefill_chunk, last) for stop in stops]
    cuts = sorted({cut for cut in (*stops, *on_grid, last) if start <= cut <= last} | {last + 1})
    return [tokens[a:b] for a, b in itertools.pairwise(cuts)]
