"""How far a bench is, for whoever shows it.

Knows nothing about terminals.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Step:
    """What is measured now, and how many of all steps are done."""

    what: str
    done: int
    total: int


OnStep = Callable[[Step], None]


def quiet(_: Step) -> None:
    """Where nobody wants to know."""


class Steps:
    """Counts the steps of a bench; call `begin` before each (mutates)."""

    def __init__(self, total: int, on_step: OnStep = quiet) -> None:
        self._total = total
        self._done = -1
        self._on_step = on_step

    def begin(self, what: str) -> None:
        """The next step begins; the one before is done."""
        self._done += 1
        self._on_step(Step(what, min(self._done, self._total), self._total))

    def end(self) -> None:
        """All are done."""
        self._on_step(Step("done", self._total, self._total))
