"""How an engine's loop shows that it lives: what it takes up, how many turns it has made, and when.

Knows nothing about who listens, or about what a turn does.
"""

import time
from collections.abc import Callable


class Pulse:
    """Written on the engine thread, read by any; `on_work` is called on the engine thread."""

    def __init__(
        self,
        on_work: Callable[[str], None],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_work = on_work
        self._clock = clock
        self._turned_at = clock()
        self.num_turns = 0

    def took_up(self, request_id: str) -> None:
        """A request is worked on from now on."""
        self._on_work(request_id)

    def turned(self) -> None:
        """The loop has made a turn, with a step of the batch or idle (mutates)."""
        self.num_turns += 1
        self._turned_at = self._clock()

    @property
    def age_s(self) -> float:
        """How long the last turn is over; an idle loop makes one every half second."""
        return self._clock() - self._turned_at
