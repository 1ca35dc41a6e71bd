"""Several servers side by side: a column each, with how far the first is ahead of the others.

Knows nothing about how they were measured.
"""

from dataclasses import dataclass, replace

from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from omlx.bench.result import Label, Measure, Ratio, Report, Value
from omlx.cli.view.bench import number, printable
from omlx.cli.view.bench import render as render_rest
from omlx.units import format_size

_PLAIN_WIDTH = 100
_TITLES = {
    "ready start": "ready",
    "ready restart": "ready again",
    "started restart": "start to first token",
    "ttft cold": "TTFT, nothing known",
    "ttft again": "TTFT, same again",
    "ttft more": "TTFT, it goes on",
    "ttft swapped": "TTFT, tools swapped",
    "ttft restart": "TTFT, restarted",
    "ttft agent": "TTFT, agent's turn",
    "ttft streams": "TTFT",
    "rate streams": "rate",
    "memory memory": "memory",
}


@dataclass(frozen=True, slots=True)
class _Figure:
    """A row: one figure under one label and case."""

    name: str
    unit: str
    label: Label
    case: tuple[tuple[str, Value], ...]

    @property
    def title(self) -> str:
        """What readers call it."""
        of = dict(self.case).get("of")
        shown = _TITLES.get(f"{self.name} {of}", f"{self.name} ({of})")
        at_once = self.label.concurrency
        is_stream = of == "streams"
        return f"{shown}, {at_once} at once" if is_stream and at_once > 1 else shown


def print_comparison(report: Report, console: Console | None = None) -> None:
    """Print it on stdout, as wide as the terminal; plain where that is none."""
    console = console or Console()
    if not console.is_terminal:
        console = Console(file=console.file, width=_PLAIN_WIDTH, color_system=None)
    console.print(render(report, width=console.width), highlight=False)


def render(report: Report, *, width: int) -> RenderableType:
    """A table with a column for each side; machine, faults and notes around it."""
    rest = render_rest(replace(report, measures=(), ratios=()), width=width)
    return Group(_table(report), rest)


def _table(report: Report) -> Table:
    sides = [*report.sides]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column("median; × omlx is ahead" if sides[:1] == ["omlx"] else "median; × ahead")
    for side in sides:
        table.add_column(Text(printable(side)), justify="right")
    for figure in dict.fromkeys(map(_figure, report.measures)):
        cells = [_cell(report, figure, side) for side in sides]
        table.add_row(Text(printable(figure.title)), *cells)
    return table


def _figure(measure: Measure) -> _Figure:
    return _Figure(measure.name, measure.unit, measure.label, tuple(measure.case.items()))


def _cell(report: Report, figure: _Figure, side: str) -> Text:
    """The median, and below it the ratio with its interval; bold where that is decided."""
    found = [one for one in report.measures if one.side == side and _figure(one) == figure]
    if not found or not found[0].samples:
        return Text("-")
    cell = Text(_value(found[0].spread().median, figure.unit))
    ratio = _ratio(report, figure, side)
    if ratio is not None:
        interval = ratio.interval
        style = "dim"
        if interval.is_decided:
            style = "green" if interval.ratio > 1 else "bold yellow"
        cell.append(f"\n{interval.ratio:.2f}×", style=style)
        if interval.high95 is not None:
            cell.append(f" {interval.low95:.2f}–{interval.high95:.2f}", style="dim")
    return cell


def _ratio(report: Report, figure: _Figure, side: str) -> Ratio | None:
    """How far the first side is ahead of this one; None for the first side itself."""
    if side == next(iter(report.sides)):
        return None
    for ratio in report.ratios:
        key = (ratio.name, ratio.label, tuple(ratio.case.items()))
        if key == (figure.name, figure.label, figure.case) and side in (ratio.side, ratio.base):
            return ratio
    return None


def _value(value: float, unit: str) -> str:
    match unit:
        case "s":
            return f"{number(value)} s" if value >= 1 else f"{number(value * 1000)} ms"
        case "bytes":
            return format_size(value)
        case "tokens/s":
            return f"{number(value)}/s"
        case _:
            return number(value)
