"""Bars and curves of characters; plain ASCII where a terminal has no more.

Knows nothing about what is measured.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.segment import Segment
from rich.style import Style

from omlx.cli.view.palette import ACCENT, QUIET

_LEVELS, _ASCII_LEVELS = "▁▂▃▄▅▆▇█", "_.-:=+*#"


@dataclass(frozen=True, slots=True)
class Meter:
    """`part` of `whole` as a bar of so many columns; the filled and the empty differ in shape."""

    part: float
    whole: float
    width: int
    style: str = ACCENT

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """The bar's two segments."""
        share = min(1.0, max(0.0, self.part / self.whole)) if self.whole > 0 else 0.0
        width = max(0, min(self.width, options.max_width))
        full = int(share * width + 0.5)
        if 0 < share < 1 and width > 1:  # only nothing looks empty, and only all looks full
            full = min(max(full, 1), width - 1)
        filled, empty = ("#", "-") if options.ascii_only else ("━", "╌")
        yield Segment(filled * full, console.get_style(self.style))
        yield Segment(empty * (width - full), Style.parse(QUIET))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """It can be cut to nothing."""
        return Measurement(0, max(0, self.width))


@dataclass(frozen=True, slots=True)
class Curve:
    """The newest of some values, one column each, from 0 to `top`, or to the highest of them."""

    values: Sequence[float]
    width: int
    top: float | None = None
    style: str = ACCENT

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """One segment."""
        width = max(0, min(self.width, options.max_width))
        shown: Sequence[float] = self.values[-width:] if width else ()
        levels = _ASCII_LEVELS if options.ascii_only else _LEVELS
        top = self.top if self.top is not None else max(shown, default=0.0)
        text = "".join(levels[_level(value, top, len(levels))] for value in shown)
        yield Segment(text, console.get_style(self.style))

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        """It can be cut to nothing."""
        return Measurement(0, max(0, min(self.width, len(self.values))))


def _level(value: float, top: float, num_levels: int) -> int:
    if top <= 0:
        return 0
    return min(num_levels - 1, max(0, int(value / top * num_levels)))
