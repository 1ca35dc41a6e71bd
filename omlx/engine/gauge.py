"""The figures of a running engine, published twice a second and when a request is over.

Knows nothing about who reads them.
"""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace

from omlx.engine.pulse import Pulse
from omlx.engine.request import CacheFigures, EngineSnapshot, MemoryUse, StartFigures
from omlx.engine.scheduler import Scheduler
from omlx.engine.turns import Stage

_INTERVAL_S = 0.5
_SMOOTHING = 0.3  # weight of the newest rate


def no_prefills(num_tokens: int, seconds: float) -> None:
    """What a model without a cache makes of its prefill rate."""


def no_use(lengths: Sequence[int]) -> MemoryUse:
    """The use of memory where nobody knows it."""
    return MemoryUse()


def no_cache() -> CacheFigures:
    """The figures of a model without a cache."""
    return CacheFigures()


class Gauge:
    """Counts what the loop reports and hands a snapshot to `publish`."""

    def __init__(
        self,
        publish: Callable[[EngineSnapshot], None],
        *,
        cache_figures: Callable[[], CacheFigures],
        cache_note: str,
        clock: Callable[[], float],
        prefilled: Callable[[int, float], None] = no_prefills,
        memory_use: Callable[[Sequence[int]], MemoryUse] = no_use,
        pulse: Pulse | None = None,
    ) -> None:
        """`prefilled` gets the tokens and the seconds of each step that prefills, `memory_use` how
        many tokens each row in work has."""
        self._publish = publish
        self._prefilled = prefilled
        self._memory_use = memory_use
        self._cache_figures = cache_figures
        self._cache_note = cache_note
        self._clock = clock
        self._pulse = pulse
        self._life = secrets.token_hex(4)
        self._next_at = 0.0
        self._start = StartFigures()
        self._finished = self._failed = self._generated = self._preemptions = 0
        self._prompt = self._from_memory = self._from_disk = 0
        self._prefill_rate = self._decode_rate = 0.0

    def started(self, start: StartFigures) -> None:
        """The engine can take requests; what that took (mutates)."""
        self._start = start

    def took_up(self, request_id: str) -> None:
        """A request leaves the queue: from now on it is worked on."""
        if self._pulse is not None:
            self._pulse.took_up(request_id)

    def admitted(self, prompt_tokens: int, from_memory: int, from_disk: int) -> None:
        """A request left the queue with so many tokens from the cache."""
        self._prompt += prompt_tokens
        self._from_memory += from_memory
        self._from_disk += from_disk

    def stepped(self, seconds: float, prefilled: int, decoded: int) -> None:
        """One step of the batch: tokens prefilled and decoded in so many seconds."""
        self._generated += decoded
        if seconds <= 0:
            return
        if prefilled:
            self._prefilled(prefilled, seconds)
            self._prefill_rate = _smooth(self._prefill_rate, prefilled / seconds)
        elif decoded:
            self._decode_rate = _smooth(self._decode_rate, decoded / seconds)

    def preempted(self) -> None:
        """A request had to leave the batch for another."""
        self._preemptions += 1

    def finished(self, *, failed: bool) -> None:
        """A request is over: its client must see figures that count it."""
        self._next_at = 0.0
        if failed:
            self._failed += 1
        else:
            self._finished += 1

    def sample(self, scheduler: Scheduler) -> None:
        """A turn of the loop is over: publish the figures if the last ones are old."""
        if self._pulse is not None:
            self._pulse.turned()
        now = self._clock()
        if now < self._next_at:
            return
        self._next_at = now + _INTERVAL_S
        self.publish(scheduler)

    def publish(self, scheduler: Scheduler) -> None:
        """Publish the figures as they are now."""
        cache = self._cache_figures()
        self._publish(
            EngineSnapshot(
                waiting=scheduler.count(Stage.WAITING, Stage.PREEMPTED),
                loading=scheduler.count(Stage.LOADING, Stage.READY),
                prefilling=scheduler.count(Stage.PREFILLING),
                decoding=scheduler.count(Stage.DECODING),
                finished_requests=self._finished,
                failed_requests=self._failed,
                generated_tokens=self._generated,
                preemptions=self._preemptions,
                decode_tokens_per_s=self._decode_rate,
                prefill_tokens_per_s=self._prefill_rate,
                cache_note=self._cache_note,
                memory_use=self._memory_use(scheduler.lengths()),
                start=self._start,
                memory=cache.memory,
                disk=cache.disk,
                snapshots=cache.snapshots,
                writes=cache.writes,
                counters=replace(
                    cache.counters,
                    prompt_tokens=self._prompt,
                    cached_memory_tokens=self._from_memory,
                    cached_disk_tokens=self._from_disk,
                ),
                life=self._life,
            )
        )


def _smooth(rate: float, newest: float) -> float:
    return rate + _SMOOTHING * (newest - rate) if rate else newest
