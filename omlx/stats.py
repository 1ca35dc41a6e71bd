"""Small running statistics.

Knows nothing about what is measured; one thread at a time may use an object.
"""

import math
from collections import deque


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
