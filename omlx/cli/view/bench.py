"""What a bench measured as tables for a terminal, and its progress as a bar.

Knows nothing about how it was measured.
"""

from collections.abc import Sequence

from rich import box
from rich.console import Console, Group, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from omlx.bench.result import Check, Measure, Ratio, Report, Value
from omlx.bench.step import Step
from omlx.cli.view.progress import EnteredProgress
from omlx.units import format_size

WIDE = 120
_PLAIN_WIDTH = 100
_PERCENTILES_FROM = 20  # with fewer samples a p95 is just the most
_NAMES = {
    "ttft": "TTFT",
    "itl": "ITL",
    "prefill": "prefill",
    "decode": "decode",
}


def print_report(report: Report, console: Console | None = None) -> None:
    """Print the tables on stdout, as wide as the terminal; plain where that is none."""
    console = console or Console()
    if not console.is_terminal:
        console = Console(file=console.file, width=_PLAIN_WIDTH, color_system=None)
    console.print(render(report, width=console.width), highlight=False)


def render(report: Report, *, width: int) -> RenderableType:
    """All of a report: a table for each figure, then ratios, checks and notes."""
    is_wide = width >= WIDE
    parts: list[RenderableType] = [_head(report)]
    for name in dict.fromkeys(measure.name for measure in report.measures):
        parts.append(_measures(report.find(name), is_wide=is_wide))
    if report.ratios:
        parts.append(_ratios(report.ratios))
    if report.checks:
        parts.append(_checks(report.checks))
    parts += [Text(f"note: {printable(note)}", style="yellow") for note in report.notes]
    return Group(*parts)


def _head(report: Report) -> Text:
    head = Text()
    head.append(f"omlx bench {report.kind}", style="bold")
    head.append(f"  {printable(report.model)}\n")
    machine = report.machine
    facts = [
        str(machine.get("processor") or machine.get("system") or ""),
        f"{machine.get('cores')} cores",
        format_size(float(machine.get("memory_bytes") or 0)),
        f"omlx {machine.get('omlx')}",
        f"mlx {machine.get('mlx') or '-'}",
        f"seed {report.seed}",
    ]
    head.append(printable(", ".join(fact for fact in facts if fact)), style="dim")
    return head


def _measures(measures: Sequence[Measure], *, is_wide: bool) -> Table:
    first = measures[0]
    title = f"{_NAMES.get(first.name, first.name)} ({first.unit})"
    table = _table(title)
    keys = tuple(dict.fromkeys(key for measure in measures for key in measure.case))
    has_sides = any(measure.side for measure in measures)
    for name in [*keys, *(["side"] if has_sides else []), "process", "prefix"]:
        table.add_column(name, no_wrap=True)
    for name in ("at once", "median", "least–most"):
        table.add_column(name, justify="right", no_wrap=True)
    if is_wide:
        for name in ("p95", "p99", "samples"):
            table.add_column(name, justify="right", no_wrap=True)
    for measure in measures:
        cells = [value_text(measure.case.get(key)) for key in keys]
        cells += [printable(measure.side)] if has_sides else []
        label = measure.label
        cells += [label.process.value, label.start.value, str(label.concurrency)]
        table.add_row(*map(Text, cells), *_figures(measure, is_wide=is_wide))
    return table


def _figures(measure: Measure, *, is_wide: bool) -> list[Text]:
    if not measure.samples:
        return [Text("-")] * (5 if is_wide else 2)
    found = measure.spread()
    spread = f"{number(found.least)}–{number(found.most)}"
    cells = [Text(number(found.median), style="bold"), Text(spread)]
    if is_wide:
        has_tail = found.count >= _PERCENTILES_FROM
        cells += [Text(number(value) if has_tail else "-") for value in (found.p95, found.p99)]
        cells.append(Text(str(found.count)))
    return cells


def _ratios(ratios: Sequence[Ratio]) -> Table:
    table = _table("ratios (95 % interval of paired rounds)")
    table.add_column("figure", no_wrap=True)
    table.add_column("case")
    table.add_column("sides")
    for name in ("ratio", "interval", "pairs"):
        table.add_column(name, justify="right", no_wrap=True)
    for ratio in ratios:
        found = ratio.interval
        high = "?" if found.high95 is None else f"{found.high95:.3f}"
        case = ", ".join(f"{key} {value_text(value)}" for key, value in ratio.case.items())
        table.add_row(
            Text(_NAMES.get(ratio.name, ratio.name)),
            Text(case),
            Text(printable(f"{ratio.side} / {ratio.base}")),
            Text(f"{found.ratio:.3f}", style="bold" if found.is_decided else ""),
            Text(f"{found.low95:.3f}–{high}"),
            Text(str(found.pairs)),
        )
    return table


def _checks(checks: Sequence[Check]) -> Table:
    table = _table("checks")
    table.add_column("check", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    table.add_column("reason")
    for check in checks:
        word, style = {
            True: ("pass", "green"),
            False: ("FAIL", "bold red"),
            None: ("not checked", "yellow"),
        }[check.is_passed]
        table.add_row(Text(check.name), Text(word, style=style), Text(printable(check.reason)))
    return table


def _table(title: str) -> Table:
    return Table(
        title=Text(title, style="bold"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
    )


def number(value: float) -> str:
    """A figure with three digits that count, or all of those before the point."""
    size = abs(value)
    if size >= 1000:
        return f"{value:,.0f}"
    if size >= 100:
        return f"{value:.0f}"
    if size >= 10:
        return f"{value:.1f}"
    if size >= 1:
        return f"{value:.2f}"
    return f"{value:.4g}" if size >= 0.001 or not size else f"{value:.1e}"


def value_text(value: Value) -> str:
    """A value of a case: numbers with commas, what is missing as a dash."""
    if value is None:
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return printable(str(value))


def printable(text: str) -> str:
    """A text that may come from elsewhere, without what a terminal would obey."""
    return "".join(c if c.isprintable() or c == " " else "�" for c in text)


class StepBar(EnteredProgress):
    """Shows the steps of a bench on stderr while it is entered; call it with each."""

    def __init__(self, title: str, console: Console | None = None) -> None:
        super().__init__(
            TextColumn(title),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            console=console,
        )
        self._task = self._progress.add_task("")

    def __call__(self, step: Step) -> None:
        """Move the bar (mutates)."""
        self._progress.update(
            self._task,
            completed=step.done,
            total=step.total,
            description=printable(step.what),
        )
