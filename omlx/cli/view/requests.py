"""The requests that run as a table: whose they are, how far they are, how fast they go.

Knows nothing about where they come from.
"""

from collections.abc import Callable, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from omlx.cli.view.drawn import Meter
from omlx.cli.view.palette import ACCENT, GOOD, QUIET
from omlx.cli.view.running import RunningRequest
from omlx.cli.view.tables import NARROW, WIDE, Column, table
from omlx.units import format_duration

_METER = 8
_STYLES = {"queued": QUIET, "prefill": ACCENT, "decode": GOOD}
_UNKNOWN = "-"


def requests_table(
    running: Sequence[RunningRequest], *, width: int, room: int
) -> list[RenderableType]:
    """The table and how many more there are, in so many lines and a header; the oldest first."""
    if not running:
        return []
    num_shown = len(running) if len(running) <= room else max(1, room - 1)
    shown: list[RenderableType] = [table(_columns(width), running[:num_shown], width=width)]
    if num_shown < len(running):
        shown.append(Text(f"… {len(running) - num_shown} more", style=QUIET))
    return shown


def _columns(width: int) -> list[Column[RunningRequest]]:
    if width < NARROW:
        return [_CLIENT, _STAGE, Column("progress", _progress)]
    middle = [_STAGE, Column("progress", _progress_with_meter, min_width=20)]
    if width < WIDE:
        return [_CLIENT, _MODEL, *middle, _SPEED, _AGE]
    return [_ID, _CLIENT, _MODEL, _DIALECT, *middle, _PROMPT, _CACHED, _TTFT, _SPEED, _AGE]


def _text(get: Callable[[RunningRequest], str]) -> Callable[[RunningRequest], RenderableType]:
    return lambda one: Text(get(one) or _UNKNOWN)


def _stage(one: RunningRequest) -> RenderableType:
    return Text(one.state, style=_STYLES.get(one.state, ""))


def _amount(one: RunningRequest) -> str:
    if one.state == "decode":
        return f"{short(one.generated)} out"
    if one.to_prefill is None:
        return _UNKNOWN
    return f"{short(one.prefilled)}/{short(one.to_prefill)}"


def _progress(one: RunningRequest) -> RenderableType:
    return Text(_amount(one))


def _progress_with_meter(one: RunningRequest) -> RenderableType:
    if one.state != "prefill" or not one.to_prefill:
        return Text(_amount(one))
    row = Table.grid(padding=(0, 1, 0, 0))
    row.add_row(Meter(one.prefilled, one.to_prefill, _METER), Text(_amount(one)))
    return row


def _speed(one: RunningRequest) -> str:
    return "" if one.tokens_per_s is None else f"{short(one.tokens_per_s)} tok/s"


def _first(one: RunningRequest) -> str:
    return "" if one.ttft_s is None else format_duration(one.ttft_s)


def short(number: float) -> str:
    """A number in at most six characters: 1,234, 12.3k, 1.2M."""
    if number < 10:
        return f"{number:.1f}".removesuffix(".0")
    if number < 10_000:
        return f"{number:,.0f}"
    return f"{number / 1e3:.1f}k" if number < 999_950 else f"{number / 1e6:.1f}M"


_CLIENT = Column("client", _text(lambda one: one.client), max_width=14)
_MODEL = Column("model", _text(lambda one: one.model), is_wide=True)
_STAGE = Column("stage", _stage)
_SPEED = Column("speed", _text(_speed), is_right=True)
_AGE = Column("age", _text(lambda one: format_duration(one.age_s)), is_right=True)
_ID = Column("request", _text(lambda one: one.id), max_width=12)
_DIALECT = Column("API", _text(lambda one: one.dialect), max_width=12)
_PROMPT = Column("prompt", _text(lambda one: f"{one.prompt_tokens:,}"), is_right=True)
_CACHED = Column("cached", _text(lambda one: f"{one.cached_tokens:,}"), is_right=True)
_TTFT = Column("TTFT", _text(_first), is_right=True)
