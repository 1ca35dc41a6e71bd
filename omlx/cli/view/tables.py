"""A table of values by columns, one line each, cut where a terminal ends.

Knows nothing about the values.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.console import RenderableType
from rich.table import Table

from omlx.cli.view.palette import QUIET

Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class Column(Generic[Value]):
    """A title and what stands below it; a wide one takes the room that is left."""

    title: str
    cell: Callable[[Value], RenderableType]
    is_right: bool = False
    is_wide: bool = False
    min_width: int | None = None
    max_width: int | None = None


WIDE, NARROW = 120, 64  # columns of a terminal, from which on there is more to see
_MAX_WIDE, _LEAST_WIDE, _OTHERS = 48, 14, 112


def table(columns: Sequence[Column[Value]], values: Iterable[Value], *, width: int) -> Table:
    """The table with a header; in a wide terminal no wider than it need be."""
    is_wide = width >= WIDE
    most = min(_MAX_WIDE, max(_LEAST_WIDE, width - _OTHERS))
    drawn = Table(
        box=None, expand=not is_wide, pad_edge=False, padding=(0, 2, 0, 0), header_style=QUIET
    )
    for column in columns:
        drawn.add_column(
            column.title,
            justify="right" if column.is_right else "left",
            ratio=1 if column.is_wide and not is_wide else None,
            min_width=column.min_width,
            max_width=most if column.is_wide and is_wide else column.max_width,
            no_wrap=True,
            overflow="ellipsis",
        )
    for value in values:
        drawn.add_row(*(column.cell(value) for column in columns))
    return drawn
