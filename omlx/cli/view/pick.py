"""Has the user pick one of several lines on a terminal.

Knows nothing about what the lines mean.
"""

from collections.abc import Sequence

from rich.console import Console
from rich.prompt import IntPrompt


def pick(lines: Sequence[str], *, console: Console | None = None) -> int:
    """The index of the line that was picked; the first is the default."""
    console = console or Console(stderr=True)
    for idx, line in enumerate(lines, 1):
        console.print(f"{idx:3}  {line}", highlight=False, markup=False)
    choices = [str(idx) for idx in range(1, len(lines) + 1)]
    return (
        IntPrompt.ask("model", console=console, choices=choices, default=1, show_choices=False) - 1
    )
