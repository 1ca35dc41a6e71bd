"""A server's cache at work: the dashboard's figures, and the last requests with their misses.

Knows nothing about where a status comes from or when it is shown.
"""

import time
from collections.abc import Callable

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from omlx.cli.view.dashboard import plain_line, render
from omlx.cli.view.status import RecentRequest, Status
from omlx.units import format_duration

_WIDE = 110
_UNKNOWN = "-"
_STYLES = {
    "none": "green",
    "cold": "yellow",
    "diverged": "red",
    "evicted": "magenta",
    "snapshot": "cyan",
}

_Cell = Callable[[RecentRequest], str]


def render_cache(status: Status, *, width: int) -> RenderableType:
    """The whole picture."""
    return Group(render(status, width=width), _requests(status, is_wide=width >= _WIDE))


def cache_line(status: Status) -> str:
    """The same figures on one line, with the newest request at its end."""
    line = plain_line(status)
    if not status.recent:
        return line
    newest = status.recent[0]
    return (
        f"{line}; last: {_uncached(newest)} of {newest.prompt_tokens:,} computed, {_miss(newest)}"
    )


def _requests(status: Status, *, is_wide: bool) -> Table:
    columns: list[tuple[str, _Cell]] = [
        ("memory", lambda one: f"{one.cached_memory:,}"),
        ("disk", lambda one: f"{one.cached_disk:,}"),
        ("uncached", _uncached),
        ("TTFT", lambda one: _UNKNOWN if one.ttft_s is None else format_duration(one.ttft_s)),
    ]
    table = Table(box=box.SIMPLE_HEAD, expand=True, pad_edge=False)
    table.add_column("request", no_wrap=True)
    if is_wide:
        table.add_column("client", no_wrap=True)
        table.add_column("model", ratio=1, overflow="ellipsis", no_wrap=True)
    table.add_column("tokens", justify="right", no_wrap=True)
    for name, _ in columns:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("miss", ratio=1, overflow="ellipsis", no_wrap=True)
    for one in status.recent:
        cells = [time.strftime("%H:%M:%S", time.localtime(one.time))]
        cells += [one.client or _UNKNOWN, one.model] if is_wide else []
        cells += [f"{one.prompt_tokens:,}", *(cell(one) for _, cell in columns)]
        table.add_row(*map(Text, cells), Text(_miss(one), style=_STYLES.get(one.miss, "dim")))
    return table


def _uncached(one: RecentRequest) -> str:
    return f"{one.uncached:,}"


def _miss(one: RecentRequest) -> str:
    is_answer = one.outcome in ("stop", "length")
    words = one.miss + (f" in {one.part}" if one.part else "")
    return words if is_answer else f"{words} ({one.outcome})"
