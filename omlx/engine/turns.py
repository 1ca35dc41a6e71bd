"""A request as the scheduler knows it, and which of several prompts computes next.

Knows nothing about mlx, caches, text or clocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Stage(Enum):
    """Where a request is."""

    WAITING = "waiting"
    LOADING = "loading"
    READY = "ready"
    PREFILLING = "prefilling"
    DECODING = "decoding"
    PREEMPTED = "preempted"


_QUEUED = (Stage.WAITING, Stage.PREEMPTED)


@dataclass(slots=True)
class Entry:
    """A request: `rank` is its class, 0 the most urgent; `number` its place by arrival."""

    id: str
    rank: int
    tenant: str
    num_tokens: int
    number: int
    queued_at: float
    waited_s: float = 0.0
    stage: Stage = Stage.WAITING
    num_left: int = 0
    num_decoded: int = 0
    num_preemptions: int = 0

    def level(self, now: float, ageing_s: float) -> int:
        """How urgent it is by its class and all the time that it has waited."""
        waited_s = self.waited_s + (now - self.queued_at if self.is_queued else 0.0)
        return max(0, self.rank - int(waited_s / ageing_s))

    @property
    def is_queued(self) -> bool:
        """Whether it is not in work."""
        return self.stage in _QUEUED


class Turns:
    """In turns the shortest and the oldest of the most urgent prompts come first, and now and then
    the oldest of all: a short prompt passes a long one, and none waits for ever."""

    def __init__(self, ageing_s: float) -> None:
        self._ageing_s = ageing_s
        self._num_turns = 0

    def order(self, candidates: Sequence[Entry], now: float) -> list[Entry]:
        """The candidates of the next step, the first one first (mutates).

        Of prompts that are about as long as each other the oldest counts as the shortest, or both
        would end late.
        """
        if len(candidates) < 2:
            return list(candidates)
        turn = self._num_turns % 4
        self._num_turns += 1

        def place(entry: Entry) -> tuple[int, int, int]:
            level = 0 if turn == 3 else entry.level(now, self._ageing_s)
            length = entry.num_left.bit_length() if turn in (0, 2) else 0
            return level, length, entry.number

        return sorted(candidates, key=place)
