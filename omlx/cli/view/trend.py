"""How TTFT and hits went from request to request, over those that are over.

Knows nothing about how it is drawn.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from omlx.cli.view.status import RecentRequest

_NUM_KEPT = 240


@dataclass(frozen=True, slots=True)
class Trend:
    """One value for each request that has it, the oldest first: seconds, and shares of 0..1."""

    ttft_s: tuple[float, ...] = ()
    hit_rates: tuple[float, ...] = ()


class Trends:
    """Keeps what a server tells of its last requests for longer than it does."""

    def __init__(self) -> None:
        self._seen: deque[str] = deque(maxlen=2 * _NUM_KEPT)
        self._ttft_s: deque[float] = deque(maxlen=_NUM_KEPT)
        self._hit_rates: deque[float] = deque(maxlen=_NUM_KEPT)

    def add(self, recent: Sequence[RecentRequest]) -> Trend:
        """Take in those that are new, of which the newest come first (mutates); the whole."""
        for one in reversed(recent):
            if one.id in self._seen:
                continue
            self._seen.append(one.id)
            if one.ttft_s is not None:
                self._ttft_s.append(one.ttft_s)
            if one.hit_rate is not None:
                self._hit_rates.append(one.hit_rate)
        return Trend(tuple(self._ttft_s), tuple(self._hit_rates))
