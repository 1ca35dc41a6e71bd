"""Figures of the last 24 hours: turns by client, bytes written and evicted; and what TTFT was of.

Knows nothing about who shows them. Any thread may use it.
"""

import threading
from collections import Counter
from collections.abc import Callable, Mapping

from omlx.server.session import Course
from omlx.stats import LastDay, Recent
from omlx.storage.entry import TtftParts

_MAX_CLIENTS = 64


class LastDayFigures:
    """Counts from its making on; `clock` is in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._clients = LastDay(clock())
        self._disk = LastDay(clock())
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

    def moved(self, written_bytes: int, evicted_bytes: int) -> None:
        """Engines wrote and evicted so much on disk (mutates)."""
        with self._lock:
            self._disk.add(self._clock(), "", written=written_bytes, evicted=evicted_bytes)

    def last_day(self) -> dict[str, object]:
        """The clients with most turns first, and the bytes; plain values."""
        now = self._clock()
        with self._lock:
            clients, disk = self._clients.sums(now), self._disk.sums(now).get("", Counter[str]())
            covered_s = self._disk.covered_s(now)
        ranked = _most(clients)
        return {
            "covered_s": covered_s,
            "written_bytes": disk["written"],
            "evicted_bytes": disk["evicted"],
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


def _most(clients: Mapping[str, Counter[str]]) -> list[tuple[str, Counter[str]]]:
    """Those with most turns first; what there is beyond a limit is one more."""
    ranked = sorted(clients.items(), key=lambda item: (-item[1]["turns"], item[0]))
    shown, rest = ranked[:_MAX_CLIENTS], ranked[_MAX_CLIENTS:]
    if rest:
        named = dict(shown)
        other = named.pop(LastDay.OTHER, Counter())
        shown = [*named.items(), (LastDay.OTHER, sum((one for _, one in rest), other))]
    return shown
