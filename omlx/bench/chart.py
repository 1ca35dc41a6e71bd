"""Bars as SVG, with the range of the samples on each.

Knows nothing about reports; every text is escaped.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH = 960
_ROW = 26
_TOP = 24
_LABEL_SHARE = 0.34
_VALUE_WIDTH = 90
_CHAR = 6.9  # of the font in the page, on average
_MAX_ROWS = 40


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar: its length is `value`, a line goes from `least` to `most`; none is negative."""

    label: str
    value: float
    least: float
    most: float
    shown: str


def bars(rows: Sequence[Bar], *, unit: str) -> str:
    """A chart of horizontal bars from 0 on; at most 40 of them are drawn."""
    rows = rows[:_MAX_ROWS]
    longest = max(len(row.label) for row in rows) * _CHAR + 12
    left = min(max(longest, 60.0), _WIDTH * _LABEL_SHARE)
    room = _WIDTH - left - _VALUE_WIDTH
    most = max(max(row.value, row.most) for row in rows) or 1.0
    height = _TOP + len(rows) * _ROW + 4
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(unit)}">',
        f'<text class="dim" x="{left:.1f}" y="15">{escape(unit)}, median and range</text>',
        f'<line class="axis" x1="{left:.1f}" y1="{_TOP}" x2="{left:.1f}" y2="{height}"/>',
    ]
    for idx, row in enumerate(rows):
        parts.append(_bar(row, _TOP + idx * _ROW, left, room / most))
    return "".join([*parts, "</svg>\n"])


def _bar(row: Bar, top: float, left: float, scale: float) -> str:
    middle = top + _ROW / 2
    width = max(row.value * scale, 1.0)
    low, high = left + row.least * scale, left + row.most * scale
    after = max(left + width, high) + 8
    label = _cut(row.label, int((left - 10) / _CHAR))
    return (
        f"<g><title>{escape(row.label)}: {escape(row.shown)}</title>"
        f'<text x="{left - 8:.1f}" y="{middle + 4:.1f}" text-anchor="end">{escape(label)}</text>'
        f'<rect class="bar" x="{left:.1f}" y="{top + 5:.1f}" width="{width:.1f}" '
        f'height="{_ROW - 10}" rx="2"/>'
        f'<line class="range" x1="{low:.1f}" y1="{middle:.1f}" x2="{high:.1f}" y2="{middle:.1f}"/>'
        f'<text x="{after:.1f}" y="{middle + 4:.1f}">{escape(row.shown)}</text></g>'
    )


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: max(most - 1, 1)] + "…"
