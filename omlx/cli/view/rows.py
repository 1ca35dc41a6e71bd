"""Rows that several pictures have: a title, judged figures, meters and curves with a label.

Knows nothing about which picture they are in.
"""

from collections.abc import Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from omlx.cli.view.drawn import Curve, Meter
from omlx.cli.view.lead import Figure
from omlx.cli.view.palette import QUIET, WATCH, of_verdict
from omlx.cli.view.status import Status
from omlx.units import format_duration, format_size

_METER, _LEAST_METER = 30, 6
_CURVE, _LEAST_CURVE = 40, 4
_LABEL = 13
_USAGE = 24  # what stands behind a meter

Row = tuple[str, RenderableType]


def title_line(status: Status) -> Text:
    """Which server it is, and for how long it has run."""
    title = text_line(f"omlx {status.version}", "bold")
    title.append(f"  {status.address}  up {format_duration(status.uptime_s)}", "not bold")
    if status.is_draining:
        title.append("  draining", WATCH)
    return title


def text_line(text: str, style: str = "") -> Text:
    """One line, cut where the terminal ends."""
    return Text(text, style=style, overflow="ellipsis", no_wrap=True)


def labelled(rows: Sequence[Row]) -> Table:
    """Values below each other with their labels before them."""
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style=QUIET, no_wrap=True, min_width=_LABEL)
    grid.add_column(no_wrap=True, overflow="ellipsis")
    for label, value in rows:
        grid.add_row(label, value)
    return grid


def judged(figure: Figure, *, has_note: bool = True) -> Text:
    """A figure with its verdicts."""
    line = text_line("")
    for idx, piece in enumerate(figure.pieces):
        line.append("   " if idx else "")
        line.append(piece.text)
        if piece.verdict is not None:
            line.append(f" {piece.verdict.value}", of_verdict(piece.verdict))
    if figure.note and has_note:
        line.append(f"   {figure.note}", QUIET)
    return line


def hit_rate_row(status: Status, rates: Sequence[float], width: int) -> Row:
    """The share of prompt tokens that were hits, of all requests and from one to the next."""
    rate = "-" if status.hit_rate is None else f"{status.hit_rate * 100:.1f} %"
    return "hit rate", with_curve(text_line(rate), rates, width, top=1.0)


def tier_rows(status: Status, width: int) -> list[Row]:
    """How full both tiers are."""
    return [
        ("memory", use_of(status.memory.bytes, status.memory.budget_bytes, width)),
        ("disk", use_of(status.disk.bytes, status.disk.budget_bytes, width)),
    ]


def with_curve(
    text: Text, values: Sequence[float], width: int, *, top: float | None = None
) -> RenderableType:
    """A text with the curve of its values behind it, where there is room for one."""
    room = min(_CURVE, width - _LABEL - text.cell_len - 4)
    if not values or room < _LEAST_CURVE:
        return text
    row = Table.grid(padding=(0, 2, 0, 0))
    row.add_row(text, Curve(values, room, top))
    return row


def use_of(num_bytes: int, whole_bytes: int, width: int) -> RenderableType:
    """So much of a whole as a bar, where there is room for one, and in numbers."""
    usage = f"{format_size(num_bytes)} of {format_size(whole_bytes)}"
    room = min(_METER, width - _LABEL - _USAGE - 4)
    if room < _LEAST_METER:
        return text_line(usage)
    row = Table.grid(padding=(0, 2, 0, 0))
    row.add_column(width=room)
    row.add_column(no_wrap=True, overflow="ellipsis")
    row.add_row(Meter(num_bytes, whole_bytes, room), text_line(usage))
    return row
