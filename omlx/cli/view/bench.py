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
_PLAIN_WIDTH = 160
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
    notes = [Text(f"note: {printable(note)}", style="yellow") for note in report.notes]
    return Group(*parts, *([Text(), *notes] if notes else []))


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


def _measures(measures: Sequence[Measure], *, is_wide: bool) -> RenderableType:
    """A row for each measure; what all of them have in common stands in the title."""
    first = measures[0]
    keys = tuple(dict.fromkeys(key for measure in measures for key in measure.case))
    columns = {key: [value_text(measure.case.get(key)) for measure in measures] for key in keys}
    columns["side"] = [printable(measure.side) for measure in measures]
    columns["process"] = [measure.label.process.value for measure in measures]
    columns["prefix"] = [measure.label.start.value for measure in measures]
    columns["at once"] = [str(measure.label.concurrency) for measure in measures]
    kept, common = _split(columns)
    unit = "" if first.unit == "bytes" else f" ({first.unit})"
    table = _table()
    for name in kept:
        is_number = all(text.replace(",", "").isdigit() for text in columns[name])
        table.add_column(name, justify="right" if is_number else "left", no_wrap=not is_wide)
    table.add_column("median", justify="right", no_wrap=True)
    table.add_column("range", justify="right", no_wrap=True)
    for name in ("p95", "p99") if is_wide or first.name == "itl" else ():
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("n", justify="right", no_wrap=True)
    for idx, measure in enumerate(measures):
        cells = [Text(columns[name][idx]) for name in kept]
        table.add_row(*cells, *_figures(measure, has_tail=is_wide or first.name == "itl"))
    return _titled(f"{_NAMES.get(first.name, first.name)}{unit}", common, table)


def _split(columns: dict[str, list[str]]) -> tuple[list[str], str]:
    """The columns that differ from row to row, and the others in words."""
    kept = [name for name, texts in columns.items() if len(set(texts)) > 1]
    rest = {name: texts[0] for name, texts in columns.items() if name not in kept}
    words = {"process": "{} process", "prefix": "prefix: {}", "at once": "{} at once"}
    shown = [words.get(name, name + " {}").format(text) for name, text in rest.items() if text]
    return kept, ", ".join(shown)


def _figures(measure: Measure, *, has_tail: bool) -> list[Text]:
    if not measure.samples:
        return [Text("-")] * (4 if has_tail else 2) + [Text("0")]
    found, unit = measure.spread(), measure.unit
    one = figure(found.least, unit), figure(found.most, unit)
    cells = [Text(figure(found.median, unit), style="bold")]
    cells.append(Text("-" if found.count == 1 else "–".join(one)))
    if has_tail:
        is_enough = found.count >= _PERCENTILES_FROM
        cells += [Text(figure(v, unit) if is_enough else "-") for v in (found.p95, found.p99)]
    return [*cells, Text(str(found.count))]


def _ratios(ratios: Sequence[Ratio]) -> RenderableType:
    keys = tuple(dict.fromkeys(key for ratio in ratios for key in ratio.case))
    columns = {key: [value_text(ratio.case.get(key)) for ratio in ratios] for key in keys}
    columns = {"figure": [_NAMES.get(ratio.name, ratio.name) for ratio in ratios], **columns}
    kept, common = _split(columns)
    table = _table()
    for name in kept:
        table.add_column(name)
    table.add_column("sides")
    for name in ("ratio", "interval", "pairs"):
        table.add_column(name, justify="right", no_wrap=True)
    for idx, ratio in enumerate(ratios):
        found = ratio.interval
        table.add_row(
            *(Text(columns[name][idx]) for name in kept),
            Text(printable(f"{ratio.side} / {ratio.base}")),
            Text(f"{found.ratio:.3f}", style="bold" if found.is_decided else ""),
            Text("?" if found.high95 is None else f"{found.low95:.3f}–{found.high95:.3f}"),
            Text(str(found.pairs)),
        )
    return _titled("ratios", f"{common}, 95 % interval of paired rounds", table)


def _checks(checks: Sequence[Check]) -> RenderableType:
    table = _table()
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
    return _titled("checks", "", table)


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1),
                 collapse_padding=True)  # fmt: skip


def _titled(title: str, common: str, table: Table) -> RenderableType:
    head = Text()
    head.append("\n" + title, style="bold")
    head.append(f"  {common}" if common else "", style="dim")
    return Group(head, table)


def figure(value: float, unit: str) -> str:
    """A figure of a unit: bytes as sizes, whole tokens without a fraction."""
    if unit == "bytes":
        return format_size(value)
    if unit == "bytes/s":
        return f"{format_size(value)}/s"
    if unit == "tokens":
        return f"{value:,.0f}"
    return number(value)


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
    return f"{value:.3f}" if size >= 0.1 or not size else f"{value:.3g}"


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
