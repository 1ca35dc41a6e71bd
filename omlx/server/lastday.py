"""Figures of the last 24 hours: turns by client, bytes written and evicted; and what TTFT was of.

Knows nothing about who shows them. Any thread may use it.
"""

import threading
from collections.abc import Callable, Iterable

from omlx.engine.request import CacheCounters
from omlx.server.metrics import EngineView
from omlx.server.session import Course
from omlx.stats import LastDay, Recent
from omlx.storage.entry import TtftParts

_WRITTEN, _EVICTED = "written", "evicted"
SAMPLE_S = 5.0  # what an engine did after its last sample and before its end is not counted


class LastDayFigures:
    """Counts from its making on; `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._clients = LastDay(clock())
        self._disk = LastDay(clock())
        self._before: dict[str, CacheCounters] = {}
        self._parts: dict[str, Recent] = {}

    def admitted(self, course: Course) -> None:
        """A request left the queue (mutates)."""
        usage = course.usage
        with self._lock:
            self._clients.add(
                self._clock(),
                course.caller.client,
                turns=1,
                prompt=usage.prompt,
                cached=usage.cached,
            )

    def closed(self, course: Course) -> None:
        """A request is over (mutates)."""
        if course.parts is not None:
            with self._lock:
                self._add_parts(course.parts)

    def sample(self, engines: Iterable[EngineView]) -> None:
        """Add what engines wrote and evicted since the last call (mutates)."""
        with self._lock:
            for engine in engines:
                counters = engine.snapshot.counters
                before = self._before.get(engine.model_id, CacheCounters())
                self._before[engine.model_id] = counters
                if _is_anew(counters, before):
                    before = CacheCounters()
                written = counters.bytes_written - before.bytes_written
                evicted = counters.bytes_evicted - before.bytes_evicted
                if written or evicted:
                    self._disk.add(self._clock(), "", **{_WRITTEN: written, _EVICTED: evicted})

    def last_day(self) -> dict[str, object]:
        """The clients with most turns first, and the bytes; plain values."""
        now = self._clock()
        with self._lock:
            clients, disk = self._clients.sums(now), self._disk.sums(now).get("", {})
            covered_s = self._disk.covered_s(now)
        ranked = sorted(clients.items(), key=lambda item: (-item[1]["turns"], item[0]))
        return {
            "covered_s": covered_s,
            "written_bytes": disk.get(_WRITTEN, 0),
            "evicted_bytes": disk.get(_EVICTED, 0),
            "clients": [
                {
                    "client": name,
                    "turns": sums["turns"],
                    "prompt_tokens": sums["prompt"],
                    "cached_tokens": sums["cached"],
                    "uncached_mean": (sums["prompt"] - sums["cached"]) / sums["turns"],
                }
                for name, sums in ranked
            ],
        }

    def ttft_parts_s(self) -> dict[str, float]:
        """The mean of each part, over the last thousand or so answers; they sum to the mean."""
        with self._lock:
            return {name: recent.mean() or 0.0 for name, recent in self._parts.items()}

    def _add_parts(self, parts: TtftParts) -> None:
        for name, seconds in parts.by_name().items():
            self._parts.setdefault(name, Recent()).add(seconds)


def _is_anew(counters: CacheCounters, before: CacheCounters) -> bool:
    """Whether a new process counts, which does so from 0."""
    return (
        counters.blocks_stored < before.blocks_stored
        or counters.bytes_written < before.bytes_written
        or counters.bytes_evicted < before.bytes_evicted
    )
