"""Sizes and durations with units, read and written.

Knows nothing about which settings use them.
"""

import math
import re

_SIZES = {
    "": 1, "b": 1,
    "k": 10**3, "kb": 10**3, "m": 10**6, "mb": 10**6, "g": 10**9, "gb": 10**9,
    "t": 10**12, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip
_DURATIONS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")


def _parse(text: str, units: dict[str, float] | dict[str, int], example: str) -> float:
    match = _NUMBER.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a number with a unit, as in {example}")
    number, unit = match.groups()
    if unit.lower() not in units:
        known = ", ".join(u for u in units if u)
        raise ValueError(f"{text!r} has an unknown unit {unit!r}; known: {known}")
    value = float(number) * units[unit.lower()]
    if not math.isfinite(value) or value > 2**62:
        raise ValueError(f"{text!r} is too large")
    return value


def parse_size(value: str | int) -> int:
    """Bytes of a size such as "8GB" (decimal), "512MiB" (binary) or a plain number; ValueError."""
    if isinstance(value, int):
        if not 0 <= value <= 2**62:
            raise ValueError(f"{value} is not a size")
        return value
    return int(_parse(value, _SIZES, '"8GB" or "512MiB"'))


def parse_duration(value: str | int | float) -> float:
    """Seconds of a duration such as "15m", "2s", "250ms" or a plain number; ValueError."""
    if isinstance(value, str):
        return _parse(value, _DURATIONS, '"15m", "2s" or "250ms"')
    if not 0 <= value <= 2**62:  # also refuses NaN
        raise ValueError(f"{value} is not a duration")
    return float(value)


def format_size(num_bytes: float) -> str:
    """A size for people, decimal units: 1234567 is "1.2 MB"."""
    value = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def format_duration(seconds: float) -> str:
    """A duration for people: 0.0123 is "12 ms", 75 is "1m 15s"."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for size, unit, small_size, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "m")):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // small_size}{small}"
    return f"{whole // 60}m {whole % 60}s"
