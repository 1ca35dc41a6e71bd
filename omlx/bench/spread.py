"""Medians, percentiles and ratios, each with its spread.

Knows nothing about what is measured. Values are plain floats; nothing here mutates.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# The 97.5 % points of Student's t for 1 to 30 degrees of freedom.
_STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
    2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
    2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
_NORMAL = 1.95996


@dataclass(frozen=True, slots=True)
class Spread:
    """What samples come to, all in their own unit; `count` is how many there are (at least 1)."""

    count: int
    median: float
    least: float
    most: float
    mean: float
    p50: float
    p95: float
    p99: float


@dataclass(frozen=True, slots=True)
class Interval:
    """A geometric mean of ratios (no unit) and its two-sided 95 % interval.

    With one pair nothing is known of the spread: `low95` is 0 and `high95` None, no upper bound.
    """

    ratio: float
    low95: float
    high95: float | None
    pairs: int

    @property
    def is_decided(self) -> bool:
        """Whether 1 lies outside of the interval."""
        return self.low95 > 1 or (self.high95 is not None and self.high95 < 1)


def percentile(samples: Sequence[float], share: float) -> float:
    """The nearest-rank percentile: the least sample that `share` (0 to 1) of all don't exceed."""
    if not samples:
        raise ValueError("no samples, so no percentile")
    if not 0 <= share <= 1:
        raise ValueError(f"a percentile's share is 0 to 1, not {share}")
    ordered = sorted(samples)
    # A share such as 0.95 is no exact binary fraction: 0.95 × 20 must be rank 19, not 20.
    rank = math.ceil(round(share * len(ordered), 9))
    return ordered[max(rank, 1) - 1]


def spread(samples: Sequence[float]) -> Spread:
    """Count, median, extremes, mean and percentiles of at least one finite sample; ValueError."""
    if not samples:
        raise ValueError("no samples, so no spread")
    if not all(map(math.isfinite, samples)):
        raise ValueError("samples must be finite numbers")
    least, most = min(samples), max(samples)
    return Spread(
        count=len(samples),
        median=statistics.median(samples),
        least=least,
        most=most,
        mean=min(max(statistics.fmean(samples), least), most),  # rounding must not leave the range
        p50=percentile(samples, 0.50),
        p95=percentile(samples, 0.95),
        p99=percentile(samples, 0.99),
    )


def student(freedom: int) -> float:
    """The 97.5 % point of Student's t with so many degrees of freedom (at least 1)."""
    if freedom < 1:
        raise ValueError("Student's t needs at least one degree of freedom")
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    z = _NORMAL  # the first terms of the expansion of Cornish and Fisher
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def interval(ratios: Sequence[float]) -> Interval:
    """The geometric mean of positive ratios, its interval by Student's t on their logarithms."""
    if not ratios:
        raise ValueError("no ratios, so no interval")
    if not all(ratio > 0 and math.isfinite(ratio) for ratio in ratios):
        raise ValueError("ratios must be positive, finite numbers")
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.fmean(logs)
    if len(logs) == 1:
        return Interval(ratios[0], 0.0, None, 1)
    half = student(len(logs) - 1) * statistics.stdev(logs) / math.sqrt(len(logs))
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half), len(ratios))


def paired_ratio(a: Sequence[float], b: Sequence[float]) -> Interval:
    """a / b, round by round: both hold one positive sample of each round, in the same order."""
    if len(a) != len(b):
        raise ValueError(f"paired rounds need as many samples on each side, not {len(a)}, {len(b)}")
    if not all(value > 0 for value in (*a, *b)):
        raise ValueError("a ratio needs positive samples on both sides")
    return interval([x / y for x, y in zip(a, b, strict=True)])
