"""The three figures that lead: uncached tokens per turn, TTFT in its parts, disk bytes in a day.

The limits between good, watch and bad are here only; `docs/guide/views.md` and the alert rules
repeat them. Knows nothing about colours or terminals.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from omlx.cli.view.status import ClientTurns, Status
from omlx.units import format_duration, format_size

# Tokens. Real coding agents need about 2,800 a turn where every hit is exact to the token, and
# 4,750 with blocks of 4,096.
UNCACHED_GOOD, UNCACHED_WATCH = 4_000, 10_000
# Seconds, of the median.
TTFT_GOOD_S, TTFT_WATCH_S = 2.0, 10.0
# Bytes. A drive that may be written 600 TB within five years may be written 329 GB a day.
WRITTEN_GOOD_BYTES, WRITTEN_WATCH_BYTES = 100 * 10**9, 330 * 10**9
# Of the disk tier's budget. Beyond the whole, what is stored today is gone tomorrow.
EVICTED_GOOD, EVICTED_WATCH = 0.25, 1.0

_MAX_PIECES = 5
_LEAST_PART = 0.01  # of the whole; smaller parts are not named


class Verdict(Enum):
    """What a figure means."""

    GOOD = "good"
    WATCH = "watch"
    BAD = "bad"

    @classmethod
    def of(cls, value: float, good: float, watch: float) -> "Verdict":
        """The verdict on a value that should be low; a limit itself is still within."""
        return cls.GOOD if value <= good else cls.WATCH if value <= watch else cls.BAD


_ORDER = (Verdict.BAD, Verdict.WATCH, Verdict.GOOD)


@dataclass(frozen=True, slots=True)
class Piece:
    """A few words on one value; `verdict` is None where there is nothing to judge."""

    text: str
    verdict: Verdict | None = None

    def __str__(self) -> str:
        return self.text if self.verdict is None else f"{self.text} {self.verdict.value}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One of the three: `pieces` in the order of their weight, `note` on all of them."""

    name: str
    label: str
    pieces: tuple[Piece, ...]
    note: str = ""

    @property
    def verdict(self) -> Verdict | None:
        """The worst of the pieces'; None where none is judged."""
        found = {piece.verdict for piece in self.pieces}
        return next((verdict for verdict in _ORDER if verdict in found), None)

    @property
    def text(self) -> str:
        """All of it on one line, without the label."""
        shown = [*map(str, self.pieces[:_MAX_PIECES])]
        if len(self.pieces) > _MAX_PIECES:
            shown.append(f"{len(self.pieces) - _MAX_PIECES} more")
        whole = ", ".join(shown)
        return f"{whole} ({self.note})" if self.note else whole


def figures(status: Status) -> tuple[Figure, Figure, Figure]:
    """The three, as far as they are known."""
    return _uncached(status), _ttft(status), _disk(status)


def lead_text(status: Status) -> list[tuple[str, str]]:
    """Label and text of each, for plain columns."""
    return [(figure.label, figure.text) for figure in figures(status)]


def lead_json(status: Status) -> dict[str, object]:
    """The three with their verdicts, for machines; bytes, seconds, tokens, null is not known."""
    uncached, ttft, disk = figures(status)
    day = status.last_day
    return {
        uncached.name: {
            "verdict": _word(uncached.verdict),
            "mean": status.uncached_mean,
            "clients": [
                {
                    "client": one.client,
                    "turns": one.turns,
                    "mean": one.mean,
                    "verdict": _word(_of_client(one)),
                }
                for one in _worst_first(day.clients)
            ],
        },
        ttft.name: {
            "verdict": _word(ttft.verdict),
            "p50": status.ttft_p50_s,
            "p95": status.ttft_p95_s,
            "mean_parts": dict(status.ttft_parts_s),
        },
        disk.name: {
            "verdict": _word(disk.verdict),
            "covered_s": day.covered_s,
            "written_bytes": day.written_bytes,
            "evicted_bytes": day.evicted_bytes,
        },
    }


def _uncached(status: Status) -> Figure:
    pieces = [
        Piece(f"{one.client or 'unknown'} {one.mean:,.0f}", _of_client(one))
        for one in _worst_first(status.last_day.clients)
    ]
    if not pieces:
        pieces = [Piece("no turns yet")]
    return Figure("uncached_per_turn", "uncached/turn", tuple(pieces))


def _worst_first(clients: Sequence[ClientTurns]) -> list[ClientTurns]:
    """Those that want attention, then those with most turns."""
    return sorted(
        (one for one in clients if one.turns),
        key=lambda one: (_ORDER.index(_of_client(one)), -one.turns, one.client),
    )


def _of_client(one: ClientTurns) -> Verdict:
    return Verdict.of(one.mean, UNCACHED_GOOD, UNCACHED_WATCH)


def _ttft(status: Status) -> Figure:
    p50, p95 = status.ttft_p50_s, status.ttft_p95_s
    if p50 is None:
        return Figure("ttft_s", "TTFT", (Piece("no answers yet"),))
    pieces = [Piece(f"p50 {format_duration(p50)}", Verdict.of(p50, TTFT_GOOD_S, TTFT_WATCH_S))]
    if p95 is not None:
        pieces.append(Piece(f"p95 {format_duration(p95)}"))
    parts = list(_largest(status))
    return Figure("ttft_s", "TTFT", tuple(pieces), note=" + ".join(parts))


def _largest(status: Status) -> Iterator[str]:
    """The parts of the mean TTFT that matter, the largest first."""
    parts = sorted(status.ttft_parts_s.items(), key=lambda part: -part[1])
    whole = sum(seconds for _, seconds in parts)
    for name, seconds in parts:
        if seconds > _LEAST_PART * whole:
            yield f"{name.replace('_', '-')} {format_duration(seconds)}"


def _disk(status: Status) -> Figure:
    day, budget = status.last_day, status.disk.budget_bytes
    written = Verdict.of(day.written_bytes, WRITTEN_GOOD_BYTES, WRITTEN_WATCH_BYTES)
    evicted = Verdict.of(day.evicted_bytes, EVICTED_GOOD * budget, EVICTED_WATCH * budget)
    pieces = (
        Piece(f"{format_size(day.written_bytes)} written", written),
        Piece(f"{format_size(day.evicted_bytes)} evicted", evicted),
    )
    return Figure("disk_day", "disk/day", pieces, note=f"in {format_duration(day.covered_s)}")


def _word(verdict: Verdict | None) -> str | None:
    return None if verdict is None else verdict.value
