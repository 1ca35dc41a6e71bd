"""Plain text in columns, the same in a terminal and in a file.

Knows nothing about what the columns hold.
"""

import unicodedata
from collections.abc import Sequence

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
_MAX_CHARS = 1000
_WIDE = ("W", "F")


def columns(rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), indent: str = "") -> str:
    """Rows padded to columns two spaces apart; those in `right` end flush. Nothing is cut."""
    width: dict[int, int] = {}
    for row in rows:
        for idx, cell in enumerate(row):
            width[idx] = max(width.get(idx, 0), cells_of(cell))
    lines: list[str] = []
    for row in rows:
        cells = [_padded(cell, width[idx], is_right=idx in right) for idx, cell in enumerate(row)]
        lines.append((indent + "  ".join(cells)).rstrip())
    return "\n".join(lines)


def count(number: int, noun: str) -> str:
    """A number with its noun: "1 block", "3,072 tokens"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def harmless(text: str) -> str:
    """A text on one line without what a terminal acts on, such as escapes or marks of direction."""
    return "".join(
        char if char.isprintable() else " " if char.isspace() else _REPLACEMENT
        for char in text[:_MAX_CHARS]
    )


def cells_of(text: str) -> int:
    """How many columns of a terminal a text takes: none for a mark, two for a wide character."""
    if text.isascii():
        return len(text)
    return sum(0 if unicodedata.combining(char) else 2 if _is_wide(char) else 1 for char in text)


def _is_wide(char: str) -> bool:
    return unicodedata.east_asian_width(char) in _WIDE


def _padded(cell: str, width: int, *, is_right: bool) -> str:
    pad = " " * (width - cells_of(cell))
    return pad + cell if is_right else cell + pad
