"""The store at work: what each tier holds, what went in and out, which tokens it gave.

Knows nothing about where a status comes from or when it is shown.
"""

from collections import deque
from dataclasses import dataclass, fields

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from omlx.cli.view.palette import ACCENT, BAD, QUIET
from omlx.cli.view.rows import text_line
from omlx.cli.view.status import Moves, Status
from omlx.cli.view.text import count
from omlx.units import format_size

SPAN_S = 10.0


@dataclass(frozen=True, slots=True)
class Flow:
    """What happened within so many seconds; tokens are prompt tokens that were hits."""

    seconds: float = 0.0
    moves: Moves = Moves()
    memory_tokens: int = 0
    disk_tokens: int = 0


class Flows:
    """Tells what changed over the last ten seconds, from one status after the other."""

    def __init__(self) -> None:
        self._kept: deque[tuple[float, Moves, int, int]] = deque()

    def add(self, status: Status, now: float) -> Flow:
        """Take in a status (mutates); what happened since the oldest within the span."""
        memory, disk = (int(status.total(f"cached_{tier}_tokens")) for tier in ("memory", "disk"))
        newest = (now, status.moves, memory, disk)
        if self._kept and _is_anew(self._kept[-1], newest):
            self._kept.clear()
        self._kept.append(newest)
        while len(self._kept) > 2 and self._kept[1][0] <= now - SPAN_S:
            self._kept.popleft()
        since, moves, memory_before, disk_before = self._kept[0]
        return Flow(
            now - since, _minus(status.moves, moves), memory - memory_before, disk - disk_before
        )


def store_table(status: Status, flow: Flow) -> RenderableType:
    """Both tiers, a line each; what is new within the span stands behind a plus."""
    moves, new = status.moves, flow.moves
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style=QUIET)
    for title in ("tier", "blocks", "bytes", "hits in tokens", "in", "out"):
        justify = "left" if title == "tier" else "right"
        table.add_column(title, justify=justify, no_wrap=True, overflow="ellipsis")
    for name, tier, hits, come, gone in (
        (
            "memory",
            status.memory,
            _sum(status.total("cached_memory_tokens"), flow.memory_tokens),
            _sum(moves.stored, new.stored, "stored"),
            _sum(moves.evicted_memory, new.evicted_memory, "evicted"),
        ),
        (
            "disk",
            status.disk,
            _sum(status.total("cached_disk_tokens"), flow.disk_tokens),
            _sum(moves.written, new.written, "written"),
            _sum(moves.evicted_disk, new.evicted_disk, "evicted"),
        ),
    ):
        table.add_row(name, f"{tier.blocks:,}", format_size(tier.bytes), hits, come, gone)
    return table


def moving_line(status: Status, flow: Flow) -> Text:
    """How fast bytes go to the disk and come from it, and what waits or went wrong."""
    seconds = flow.seconds or 1.0
    moves, waiting = status.moves, status.writes.dirty_bytes + status.writes.queued_bytes
    line = text_line(
        f"written {format_size(flow.moves.bytes_written / seconds)}/s, "
        f"read {format_size(flow.moves.bytes_read / seconds)}/s, "
        f"{format_size(waiting)} to be written"
    )
    if moves.dropped:
        line.append(f", {count(moves.dropped, 'write')} dropped", BAD)
    if moves.bad:
        line.append(f", {count(moves.bad, 'bad file')}", BAD)
    return line


def store_words(status: Status) -> str:
    """The same as a few words, counted since the engines started."""
    moves = status.moves
    return (
        f"written {count(moves.written, 'block')} ({format_size(moves.bytes_written)}), "
        f"read {moves.read:,}, evicted {moves.evicted_memory:,} from memory and "
        f"{moves.evicted_disk:,} from disk"
    )


def _sum(whole: float, new: int, word: str = "") -> Text:
    text = Text(f"{int(whole):,}" + (f" {word}" if word else ""))
    if new > 0:
        text.append(f" +{new:,}", ACCENT)
    return text


def _minus(moves: Moves, before: Moves) -> Moves:
    return Moves(*(getattr(moves, f.name) - getattr(before, f.name) for f in fields(Moves)))


def _is_anew(before: tuple[float, Moves, int, int], now: tuple[float, Moves, int, int]) -> bool:
    """Whether some engine counts from 0 again: then there is nothing to compare with."""
    gone = _minus(now[1], before[1])
    return (
        now[2] < before[2]
        or now[3] < before[3]
        or any(getattr(gone, f.name) < 0 for f in fields(Moves))
    )
