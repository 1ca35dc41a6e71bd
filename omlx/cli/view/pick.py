"""Has the user pick one of several lines on a terminal.

Knows nothing about what the lines mean.
"""

from collections.abc import Sequence
from typing import TextIO

from rich.console import Console
from rich.prompt import IntPrompt


def pick(
    lines: Sequence[str], *, console: Console | None = None, answers: TextIO | None = None
) -> int:
    """The index of the line that was picked; the first is the default."""
    console = console or Console(stderr=True)
    for idx, line in enumerate(lines, 1):
        console.print(f"{idx:3}  {line}", highlight=False, markup=False)
    prompt = IntPrompt("model", console=console, choices=[str(n + 1) for n in range(len(lines))])
    prompt.show_choices = False
    return prompt(default=1, stream=answers) - 1
