"""Small running statistics.

Knows nothing about what is measured; one thread at a time may use an object.
"""

import math
from collections import Counter, deque


class Recent:
    """The last `capacity` observations, plus the count and sum of all ever made."""

    def __init__(self, capacity: int = 1024) -> None:
        self._values: deque[float] = deque(maxlen=capacity)
        self.count = 0
        self.total = 0.0

    def add(self, value: float) -> None:
        """Record one observation (mutates)."""
        self._values.append(value)
        self.count += 1
        self.total += value

    def values(self) -> list[float]:
        """The observations still held, oldest first."""
        return list(self._values)

    def percentile(self, q: float) -> float | None:
        """The nearest-rank percentile, q in 0..1, of those held; None without any."""
        if not self._values:
            return None
        ordered = sorted(self._values)
        rank = max(1, math.ceil(q * len(ordered)))
        return ordered[min(rank, len(ordered)) - 1]

    def mean(self) -> float | None:
        """The mean of those held; None without any."""
        return sum(self._values) / len(self._values) if self._values else None


class LastDay:
    """Sums by name over the last 24 hours, to a quarter of an hour.

    Names beyond `max_names` in a quarter count as `OTHER`. Times are seconds on any one clock.
    """

    OTHER = "other"
    DAY_S = 86400.0
    _BUCKET_S = 900.0

    def __init__(self, now: float, *, max_names: int = 64) -> None:
        self._began = now
        self._max_names = max_names
        self._buckets: deque[tuple[int, dict[str, Counter[str]]]] = deque()

    def add(self, now: float, name: str, **amounts: int) -> None:
        """Add amounts of a name (mutates)."""
        number = int(now // self._BUCKET_S)
        if not self._buckets or self._buckets[-1][0] != number:
            self._buckets.append((number, {}))
            self._forget(now)
        sums = self._buckets[-1][1]
        if name not in sums and len(sums) >= self._max_names:
            name = self.OTHER
        sums.setdefault(name, Counter()).update(amounts)

    def sums(self, now: float) -> dict[str, Counter[str]]:
        """The amounts of each name; forgets what is older than a day (mutates)."""
        self._forget(now)
        whole: dict[str, Counter[str]] = {}
        for _, sums in self._buckets:
            for name, amounts in sums.items():
                whole.setdefault(name, Counter()).update(amounts)
        return whole

    def covered_s(self, now: float) -> float:
        """Over how much of the last day it has counted."""
        return max(0.0, min(now - self._began, self.DAY_S))

    def _forget(self, now: float) -> None:
        first = int((now - self.DAY_S) // self._BUCKET_S)
        while self._buckets and self._buckets[0][0] <= first:
            self._buckets.popleft()
