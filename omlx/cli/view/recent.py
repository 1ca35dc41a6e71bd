"""A server's store at work: what it holds, what moves, and the last requests with their misses.

Knows nothing about where a status comes from or when it is shown.
"""

import time
from collections.abc import Callable

from rich.console import Group, RenderableType
from rich.text import Text

from omlx.cli.view.dashboard import plain_line
from omlx.cli.view.engines import remarks
from omlx.cli.view.lead import figures
from omlx.cli.view.palette import ACCENT, BAD, GOOD, QUIET, WATCH
from omlx.cli.view.rows import hit_rate_row, judged, labelled, tier_rows, title_line
from omlx.cli.view.status import RecentRequest, Status
from omlx.cli.view.store import Flow, moving_line, store_table, store_words
from omlx.cli.view.tables import NARROW, WIDE, Column, table
from omlx.cli.view.trend import Trend
from omlx.units import format_duration

_UNKNOWN = "-"
_STYLES = {
    "none": GOOD,
    "cold": WATCH,
    "diverged": BAD,
    "evicted": BAD,
    "snapshot": ACCENT,
}


def render_cache(
    status: Status, *, width: int, flow: Flow | None = None, trend: Trend | None = None
) -> RenderableType:
    """The whole picture; the last requests are at its end, the newest first."""
    flow, trend = flow or Flow(), trend or Trend()
    uncached, _, disk = figures(status)
    rows = [
        (uncached.label, judged(uncached)),
        (disk.label, judged(disk)),
        hit_rate_row(status, trend.hit_rates, width),
        *tier_rows(status, width),
    ]
    return Group(
        title_line(status),
        labelled(rows),
        "",
        store_table(status, flow),
        moving_line(status, flow),
        *remarks(status),
        "",
        table(_columns(width), status.recent, width=width),
    )


def cache_line(status: Status) -> str:
    """The same figures on one line, with the newest request at its end."""
    line = f"{plain_line(status)}; {store_words(status)}"
    if not status.recent:
        return line
    newest = status.recent[0]
    return (
        f"{line}; last: {newest.uncached:,} of {newest.prompt_tokens:,} computed, {_miss(newest)}"
    )


def _columns(width: int) -> list[Column[RecentRequest]]:
    if width < NARROW:
        return [_TIME, _UNCACHED, _MISS]
    if width < WIDE:
        return [_TIME, _TOKENS, _MEMORY, _DISK, _UNCACHED, _TTFT, _MISS]
    return [_TIME, _CLIENT, _MODEL, _TOKENS, _MEMORY, _DISK, _UNCACHED, _OUT, _TTFT, _MISS]


def _text(get: Callable[[RecentRequest], str]) -> Callable[[RecentRequest], RenderableType]:
    return lambda one: Text(get(one) or _UNKNOWN)


def _time_of_day(one: RecentRequest) -> str:
    try:
        return time.strftime("%H:%M:%S", time.localtime(one.time))
    except (ValueError, OverflowError, OSError):  # beyond all years
        return _UNKNOWN


def _miss(one: RecentRequest) -> str:
    is_answer = one.outcome in ("stop", "length")
    words = one.miss + (f" in {one.part}" if one.part else "")
    return words if is_answer else f"{words} ({one.outcome})"


def _styled_miss(one: RecentRequest) -> RenderableType:
    return Text(_miss(one), style=_STYLES.get(one.miss, QUIET))


def _first(one: RecentRequest) -> str:
    return "" if one.ttft_s is None else format_duration(one.ttft_s)


_TIME = Column("request", _text(_time_of_day))
_CLIENT = Column("client", _text(lambda one: one.client), max_width=14)
_MODEL = Column("model", _text(lambda one: one.model), max_width=32)
_TOKENS = Column("tokens", _text(lambda one: f"{one.prompt_tokens:,}"), is_right=True)
_MEMORY = Column("memory", _text(lambda one: f"{one.cached_memory:,}"), is_right=True)
_DISK = Column("disk", _text(lambda one: f"{one.cached_disk:,}"), is_right=True)
_UNCACHED = Column("uncached", _text(lambda one: f"{one.uncached:,}"), is_right=True)
_OUT = Column("out", _text(lambda one: f"{one.generated:,}"), is_right=True)
_TTFT = Column("TTFT", _text(_first), is_right=True)
_MISS = Column("miss", _styled_miss, is_wide=True)
