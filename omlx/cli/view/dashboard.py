"""The dashboard of `omlx serve`: a status as a picture for a terminal, or as one plain line.

Knows nothing about where a status comes from or when it is shown.
"""

from collections.abc import Callable, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from omlx.cli.view.drawn import Meter
from omlx.cli.view.palette import BAD, WATCH, of_state
from omlx.cli.view.status import ModelStatus, Status, Tier
from omlx.units import format_duration, format_size

WIDE = 120
_UNKNOWN = "-"

Row = tuple[str, RenderableType]


def render(status: Status, *, width: int, notes: Sequence[str] = ()) -> RenderableType:
    """The whole picture: figures in one panel, in two from 120 columns on, and a row a model."""
    is_wide = width >= WIDE
    bar_width = max(8, min(60, width // (2 if is_wide else 1) - 44))
    left, right = _request_rows(status), _cache_rows(status, bar_width)
    title = _title(status)
    if is_wide:
        figures = Table.grid(expand=True)
        figures.add_column(ratio=1)
        figures.add_column(ratio=1)
        figures.add_row(_panel(title, left), _panel(Text("prefix cache"), right))
    else:
        figures = _panel(title, left + right)
    remarks = [
        Text(f"{model.id}: {text}", style=BAD if text == model.error else WATCH)
        for model in status.models
        for text in (model.error, model.cache_note)
        if text
    ]
    dim = [Text(note, style="dim", overflow="ellipsis", no_wrap=True) for note in notes]
    return Group(figures, _models(status, is_wide=is_wide), *remarks, *dim)


def plain_line(status: Status) -> str:
    """The same figures on one line."""
    counts = ", ".join(f"{name} {number}" for name, number in _counts(status))
    states = ", ".join(f"{model.id} {model.state}" for model in status.models)
    return "; ".join(
        [
            counts,
            f"hit rate {_percent(status.hit_rate)}",
            f"uncached tokens per turn {_rounded(status.uncached_mean)}",
            f"TTFT p50 {_time(status.ttft_p50_s)}, p95 {_time(status.ttft_p95_s)}",
            f"decode {_speed(status.total('decode_tokens_per_s'))}",
            f"memory {_usage(status.memory)}",
            f"disk {_usage(status.disk)}",
            states,
        ]
    )


def _title(status: Status) -> Text:
    title = Text(overflow="ellipsis", no_wrap=True)
    title.append(f"omlx {status.version}", style="bold")
    title.append(f"  {status.address}  up {format_duration(status.uptime_s)}")
    if status.is_draining:
        title.append("  draining", style=WATCH)
    return title


def _panel(title: Text, rows: Sequence[Row]) -> Panel:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column()
    for label, value in rows:
        grid.add_row(label, value)
    return Panel(grid, title=title, title_align="left", box=box.ROUNDED, border_style="dim")


def _counts(status: Status) -> list[tuple[str, int]]:
    return [
        ("waiting", int(status.total("waiting"))),
        ("prefilling", int(status.total("prefilling"))),
        ("decoding", int(status.total("decoding"))),
        ("done", status.finished),
        ("failed", status.failed),
        ("aborted", status.aborted),
    ]


def _request_rows(status: Status) -> list[Row]:
    counts = _counts(status)
    now = "   ".join(f"{number} {name}" for name, number in counts[:3])
    over = "   ".join(f"{number:,} {name}" for name, number in counts[3:])
    prefill = _speed(status.total("prefill_tokens_per_s"))
    decode = _speed(status.total("decode_tokens_per_s"))
    return [
        ("requests", now),
        ("", over),
        ("TTFT", f"p50 {_time(status.ttft_p50_s)}   p95 {_time(status.ttft_p95_s)}"),
        ("speed", f"prefill {prefill}   decode {decode}"),
    ]


def _cache_rows(status: Status, bar_width: int) -> list[Row]:
    return [
        ("hit rate", Text(_percent(status.hit_rate), style="bold")),
        ("uncached", f"{_rounded(status.uncached_mean)} tokens per turn"),
        ("memory", _bar(status.memory, bar_width)),
        ("disk", _bar(status.disk, bar_width)),
    ]


def _bar(tier: Tier, width: int) -> RenderableType:
    bar = Meter(tier.bytes, tier.budget_bytes, width)
    row = Table.grid(padding=(0, 1))
    row.add_column(width=width)
    row.add_column(no_wrap=True)
    row.add_row(bar, _usage(tier))
    return row


_Cell = Callable[[ModelStatus], str]
_WAITING: tuple[str, _Cell] = ("waiting", lambda model: str(model.waiting))
_RATE: tuple[str, _Cell] = ("hit rate", lambda model: _percent(model.hit_rate))
_DECODE: tuple[str, _Cell] = ("decode", lambda model: _speed(model.decode_tokens_per_s))
_NARROW: tuple[tuple[str, _Cell], ...] = (
    _WAITING,
    ("running", lambda model: str(model.prefilling + model.decoding)),
    _RATE,
    _DECODE,
)
_WIDE: tuple[tuple[str, _Cell], ...] = (
    _WAITING,
    ("prefilling", lambda model: str(model.prefilling)),
    ("decoding", lambda model: str(model.decoding)),
    ("done", lambda model: f"{model.finished:,}"),
    _RATE,
    _DECODE,
    ("memory", lambda model: _usage(model.memory)),
)


def _models(status: Status, *, is_wide: bool) -> Table:
    columns = _WIDE if is_wide else _NARROW
    table = Table(box=box.SIMPLE_HEAD, expand=True, pad_edge=False)
    table.add_column("model", ratio=1, overflow="ellipsis", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for name, _ in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for model in status.models:
        state = Text(model.state, style=of_state(model.state))
        table.add_row(Text(model.id), state, *(cell(model) for _, cell in columns))
    return table


def _usage(tier: Tier) -> str:
    return f"{format_size(tier.bytes)} of {format_size(tier.budget_bytes)}"


def _percent(rate: float | None) -> str:
    return _UNKNOWN if rate is None else f"{rate * 100:.1f} %"


def _rounded(number: float | None) -> str:
    return _UNKNOWN if number is None else f"{number:,.0f}"


def _time(seconds: float | None) -> str:
    return _UNKNOWN if seconds is None else format_duration(seconds)


def _speed(tokens_per_s: float) -> str:
    return f"{tokens_per_s:,.1f} tok/s"
