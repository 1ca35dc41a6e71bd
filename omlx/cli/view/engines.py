"""The engines as a table: which model, what state, which process, how much memory.

Knows nothing about where they come from.
"""

from collections.abc import Callable, Sequence

from rich.console import RenderableType
from rich.text import Text

from omlx.cli.view.palette import BAD, QUIET, WATCH, of_state
from omlx.cli.view.requests import short
from omlx.cli.view.status import ModelStatus, Status
from omlx.cli.view.tables import NARROW, WIDE, Column, table
from omlx.cli.view.text import count
from omlx.units import format_size

_UNKNOWN = "-"
_UNLOADED = "unloaded"
_MAX_REMARKS = 4


def engine_rows(status: Status) -> list[ModelStatus]:
    """The models whose engines are there, or failed."""
    return [model for model in status.models if model.state != _UNLOADED]


def engines_table(status: Status, *, width: int, room: int) -> list[RenderableType]:
    """A heading with what is not loaded, and the table in so many lines and a header."""
    engines = engine_rows(status)
    unloaded = [model.id for model in status.models if model.state == _UNLOADED]
    heading = Text(count(len(engines), "engine"), "bold", overflow="ellipsis", no_wrap=True)
    if unloaded:
        heading.append(f"; not loaded: {', '.join(unloaded)}", "not bold")
    if not engines:
        return [heading]
    num_shown = len(engines) if len(engines) <= room else max(1, room - 1)
    shown: list[RenderableType] = [
        heading,
        table(_columns(width), engines[:num_shown], width=width),
    ]
    if num_shown < len(engines):
        shown.append(Text(f"… {len(engines) - num_shown} more", style=QUIET))
    return shown


def remarks(status: Status) -> list[Text]:
    """What is wrong with models, a line each."""
    found = [
        Text(f"{model.id}: {text}", style, overflow="ellipsis", no_wrap=True)
        for model in status.models
        for text, style in ((model.error, BAD), (model.cache_note, WATCH))
        if text
    ]
    return found[:_MAX_REMARKS]


def _columns(width: int) -> Sequence[Column[ModelStatus]]:
    if width < NARROW:
        return [_MODEL, _STATE, _MEMORY]
    if width < WIDE:
        return [_MODEL, _STATE, _PID, _MEMORY, _ROWS, _DECODE, _RESTARTS]
    return [
        *(_MODEL, _STATE, _PID, _MEMORY, _LIMIT, _ROWS, _PREFILL, _DECODE, _RATE, _BLOCKS),
        _RESTARTS,
    ]


def _text(get: Callable[[ModelStatus], str]) -> Callable[[ModelStatus], RenderableType]:
    return lambda model: Text(get(model) or _UNKNOWN)


def _size(num_bytes: int) -> str:
    return format_size(num_bytes) if num_bytes else ""


def _state(model: ModelStatus) -> RenderableType:
    if model.process.is_stalled:
        return Text("stalled", style=WATCH)
    return Text(model.state, style=of_state(model.state))


def _rows(model: ModelStatus) -> str:
    return f"{model.prefilling + model.decoding}+{model.waiting}"


def _speed(tokens_per_s: float) -> str:
    return f"{short(tokens_per_s)} tok/s" if tokens_per_s else ""


def _rate(model: ModelStatus) -> str:
    return "" if model.hit_rate is None else f"{model.hit_rate * 100:.1f} %"


_MODEL: Column[ModelStatus] = Column("model", _text(lambda model: model.id), is_wide=True)
_STATE: Column[ModelStatus] = Column("state", _state)
_PID = Column("process", _text(lambda m: str(m.process.pid or "")), is_right=True)
_MEMORY = Column("memory", _text(lambda m: _size(m.process.memory_bytes)), is_right=True)
_LIMIT = Column("limit", _text(lambda m: _size(m.process.limit_bytes)), is_right=True)
_ROWS = Column("run+wait", _text(_rows), is_right=True)
_PREFILL = Column("prefill", _text(lambda m: _speed(m.prefill_tokens_per_s)), is_right=True)
_DECODE = Column("decode", _text(lambda m: _speed(m.decode_tokens_per_s)), is_right=True)
_RATE = Column("hit rate", _text(_rate), is_right=True)
_BLOCKS = Column("blocks", _text(lambda m: f"{m.memory.blocks:,}"), is_right=True)
_RESTARTS = Column("restarts", _text(lambda m: f"{m.process.restarts:,}"), is_right=True)
