"""Counts and times of requests, for Prometheus and for the status page.

Knows nothing about how requests are served. Any thread may use it.
"""

import threading
from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, generate_latest

from omlx.server.enginemetrics import EngineCollector
from omlx.server.figures import EngineView, TokenTotals, Totals
from omlx.server.idle import Outcome
from omlx.server.instruments import NUM_MODELS, Instruments
from omlx.server.labels import Labels
from omlx.server.servermetrics import ServerCollector
from omlx.server.session import Course
from omlx.stats import Recent

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_ANSWERS = ("stop", "length", "repetition")
_NONE = TokenTotals()


def _no_losses() -> int:
    """Where no journal is kept."""
    return 0


class Metrics:
    """Watches requests; `engines` gives the engines' figures when they are asked for, `num_lost`
    how many requests the journal lacks."""

    def __init__(
        self,
        engines: Callable[[], Iterable[EngineView]],
        num_lost: Callable[[], int] = _no_losses,
    ) -> None:
        self._lock = threading.Lock()
        self._ttft = Recent()
        self._active = 0
        self._waiting = 0
        self._outcomes = {"finished": 0, "failed": 0, "aborted": 0}
        self._turns = 0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._tokens: dict[str, TokenTotals] = {}
        self.registry = CollectorRegistry()
        models = Labels(NUM_MODELS)
        self.registry.register(ServerCollector(self.totals, models, num_lost))
        self.registry.register(EngineCollector(engines, models))
        self._counts = Instruments(self.registry, models)

    def opened(self, course: Course) -> None:
        """A request was submitted to its engine (mutates)."""
        with self._lock:
            self._active += 1
            self._waiting += 1

    def admitted(self, course: Course) -> None:
        """A request left the queue (mutates)."""
        usage, model = course.usage, course.model_id
        with self._lock:
            self._waiting -= 1
            self._turns += 1
            self._prompt_tokens += usage.prompt
            self._cached_tokens += usage.cached
        self._counts.admitted(model, usage.prompt, course.cached_memory, course.cached_disk)
        self._counts.turn(course.caller.client, usage.prompt - usage.cached)
        if course.admitted is not None:
            self._counts.waited(model, course.admitted - course.arrived, None)

    def gap(self, course: Course, seconds: float) -> None:
        """A token of an answer came so long after the one before (mutates)."""
        self._counts.gap(course.model_id, seconds)

    def closed(self, course: Course) -> None:
        """A request is over, one way or the other (mutates)."""
        outcome = "finished" if course.outcome in _ANSWERS else course.outcome
        ttft_s = None if course.first_token is None else course.first_token - course.arrived
        model, tokens = course.model_id, tokens_of(course)
        with self._lock:
            self._active -= 1
            self._waiting -= course.admitted is None
            self._outcomes[outcome] += 1
            self._tokens[model] = self._tokens.get(model, _NONE) + tokens
            if ttft_s is not None:
                self._ttft.add(ttft_s)
        self._counts.closed(model, course.outcome)
        self._counts.spent(model, course.caller.client, course.caller.key, tokens)
        self._counts.waited(model, None, ttft_s)
        whole_s = None if course.ended is None else course.ended - course.arrived
        self._counts.took(model, whole_s, course.parts.by_name() if course.parts else {})

    def changed(self, model: str, changes: Mapping[str, int]) -> None:
        """A prompt was given a stable form (mutates)."""
        self._counts.changed(model, changes)

    def rerendered(self, model: str, outcome: str, num_tokens: int) -> None:
        """A next prompt was computed, with so many tokens that were not cached (mutates)."""
        is_done = outcome == Outcome.DONE.value
        self._counts.rerendered(model, outcome, num_tokens if is_done else 0)

    def error_sent(self, status: int) -> None:
        """A request got an error as its answer, or as the end of one (mutates)."""
        self._counts.error_sent(status)

    def moved(self, model: str, written: int, evicted: int) -> None:
        """The engine of a model has written and evicted so many bytes on disk (mutates)."""
        self._counts.moved(model, written, evicted)

    def totals(self) -> Totals:
        """The figures of all requests so far."""
        with self._lock:
            return Totals(
                active=self._active,
                waiting=self._waiting,
                **self._outcomes,
                ttft_p50_s=self._ttft.percentile(0.5),
                ttft_p95_s=self._ttft.percentile(0.95),
                turns=self._turns,
                prompt_tokens=self._prompt_tokens,
                cached_tokens=self._cached_tokens,
                tokens=dict(self._tokens),
            )

    def exposition(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)


def tokens_of(course: Course) -> TokenTotals:
    """The tokens of a request that is over; one that never left the queue took none."""
    if course.admitted is None:
        return _NONE
    return TokenTotals(
        turns=1,
        prompt=course.prompt_tokens,
        cached_memory=course.cached_memory,
        cached_disk=course.cached_disk,
        computed=course.computed,
        generated=course.generated,
    )
