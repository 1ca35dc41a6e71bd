"""Plain text in columns, the same in a terminal and in a file.

Knows nothing about what the columns hold.
"""

from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]], *, right: Sequence[int] = (), indent: str = "") -> str:
    """Rows padded to columns two spaces apart; those in `right` end flush. Nothing is cut."""
    width: dict[int, int] = {}
    for row in rows:
        for idx, cell in enumerate(row):
            width[idx] = max(width.get(idx, 0), len(cell))
    lines: list[str] = []
    for row in rows:
        cells = [
            cell.rjust(width[idx]) if idx in right else cell.ljust(width[idx])
            for idx, cell in enumerate(row)
        ]
        lines.append((indent + "  ".join(cells)).rstrip())
    return "\n".join(lines)


def count(number: int, noun: str) -> str:
    """A number with its noun: "1 block", "3,072 tokens"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
