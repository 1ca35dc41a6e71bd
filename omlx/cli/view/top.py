"""The picture of `omlx top`: the three figures, both tiers, the requests that run, the engines.

Knows nothing about where a frame comes from or when it is shown.
"""

from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from omlx.cli.view.engines import engine_rows, engines_table, remarks
from omlx.cli.view.lead import figures
from omlx.cli.view.palette import QUIET, WATCH
from omlx.cli.view.requests import requests_table
from omlx.cli.view.rows import (
    Row,
    hit_rate_row,
    judged,
    labelled,
    text_line,
    tier_rows,
    title_line,
    use_of,
    with_curve,
)
from omlx.cli.view.running import RunningRequest
from omlx.cli.view.status import Status
from omlx.cli.view.tables import WIDE
from omlx.cli.view.text import count
from omlx.cli.view.trend import Trend

_STATES = (("queued", "waiting"), ("prefill", "prefilling"), ("decode", "decoding"))
_FIXED = 6  # lines: two headings, two headers, two empty ones
_BOUNDLESS = 10**6


@dataclass(frozen=True, slots=True)
class Frame:
    """What there is to show at one moment; `note` says what is wrong with the connection."""

    status: Status
    running: tuple[RunningRequest, ...] = ()
    trend: Trend = Trend()
    note: str = ""


def render(frame: Frame, *, width: int, height: int | None = None) -> RenderableType:
    """The whole picture; what `height` lines have no room for is counted."""
    head = [title_line(frame.status)]
    if frame.note:
        head.append(text_line(frame.note, f"bold {WATCH}"))
    lead, num_lines = _figures(frame, width)
    tail = remarks(frame.status)
    num_engines, num_running = len(engine_rows(frame.status)), max(1, len(frame.running))
    room = _BOUNDLESS if height is None else height - _FIXED - len(head) - num_lines - len(tail)
    for_engines = min(num_engines, max(1, room // 3, room - num_running))
    for_requests = max(1, room - for_engines)
    return Group(
        *head,
        lead,
        "",
        _heading(frame),
        *requests_table(frame.running, width=width, room=for_requests),
        "",
        *engines_table(frame.status, width=width, room=for_engines),
        *tail,
    )


def _figures(frame: Frame, width: int) -> tuple[RenderableType, int]:
    """The figures, in two columns where there is room, and how many lines they take."""
    is_wide = width >= WIDE
    inner = width // 2 - 1 if is_wide else width
    left, right = _lead_rows(frame, inner), _use_rows(frame, inner)
    if not is_wide:
        return labelled(left + right), len(left) + len(right)
    whole = Table.grid(expand=True, padding=(0, 2, 0, 0))
    whole.add_column(ratio=1)
    whole.add_column(ratio=1)
    whole.add_row(labelled(left), labelled(right))
    return whole, max(len(left), len(right))


def _lead_rows(frame: Frame, width: int) -> list[Row]:
    uncached, ttft, disk = figures(frame.status)
    return [
        (uncached.label, judged(uncached)),
        (ttft.label, with_curve(judged(ttft, has_note=False), frame.trend.ttft_s, width)),
        ("TTFT parts", text_line(ttft.note, QUIET)),
        (disk.label, judged(disk)),
    ]


def _use_rows(frame: Frame, width: int) -> list[Row]:
    status = frame.status
    rows = [hit_rate_row(status, frame.trend.hit_rates, width), *tier_rows(status, width)]
    if status.machine_bytes:
        used = max(0, status.machine_bytes - status.available_bytes)
        rows.append(("machine", use_of(used, status.machine_bytes, width)))
    return rows


def _heading(frame: Frame) -> Text:
    states = [one.state for one in frame.running]
    now = ", ".join(f"{states.count(state)} {word}" for state, word in _STATES if state in states)
    line = text_line(count(len(states), "request") if states else "no requests", "bold")
    line.append(f": {now}" if now else "", "not bold")
    status = frame.status
    over = f"; {status.finished:,} done, {status.failed:,} failed, {status.aborted:,} aborted"
    line.append(over, "not bold")
    return line
