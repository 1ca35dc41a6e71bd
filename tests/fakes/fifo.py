"""A scheduler that computes prompts in the order in which they came, one after the other."""

from collections.abc import Sequence
from typing import Any

from omlx.engine.scheduler import Scheduler
from omlx.engine.turns import Entry, Turns


class _InOrder(Turns):
    def order(self, candidates: Sequence[Entry], now: float) -> list[Entry]:
        return sorted(candidates, key=lambda e: e.number)


class Fifo(Scheduler):
    """The baseline: nobody passes anybody."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._turns = _InOrder(1.0)
