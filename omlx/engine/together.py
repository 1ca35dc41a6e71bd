"""Whether rows whose prompt is done wait a little for the prompts that came with it.

Short prompts that come together are all answered sooner so: a step costs nearly the same for one
row and for eight, while beside rows that decode a prompt is computed in small pieces. Engine thread
only.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from omlx.engine.pacer import Pacer
from omlx.engine.row import Row
from omlx.engine.turns import Stage

_LIMIT_S = 2.0  # as long may a first token be held up in all
_SHORT_S = 0.5  # and by a prompt that takes no longer than this
_LOOK_UP_S = 0.05  # or by prompts that are being looked up: what is in memory is found by then
_PAUSE_S = 0.001


class Prompts(Protocol):
    """What is needed of a batch; see omlx.engine.batch.Batch."""

    @property
    def done_ids(self) -> list[str]: ...
    def num_left(self, row_id: str) -> int: ...


class Counts(Protocol):
    """What is needed of a scheduler."""

    def count(self, *stages: Stage) -> int: ...


class Together:
    """Holds up first tokens while nobody's stream runs."""

    def __init__(
        self,
        batch: Prompts,
        scheduler: Counts,
        rows: Mapping[str, Row],
        *,
        pacer: Pacer,
        clock: Callable[[], float],
    ) -> None:
        self._batch = batch
        self._scheduler = scheduler
        self._rows = rows
        self._pacer = pacer
        self._clock = clock
        self._since: float | None = None
        self._most = 0  # prompt tokens of the next step, if it is one to wait for
        self.pause_s = 0.0  # before the next step, where nothing is computed meanwhile

    def room(self, room: int) -> int:
        """Prompt tokens of the next step, of `room` at most: what rows that could decode may wait
        for (mutates)."""
        self._most, self.pause_s = 0, 0.0
        if self._scheduler.count(Stage.DECODING) or not self._batch.done_ids:
            self._since = None
            return room
        now = self._clock()
        self._since = now if self._since is None else self._since
        self._most = self._pacer.within(self._since + _LIMIT_S - now)
        return min(room, self._most) if self._most else room

    def holds(self, chosen: Sequence[str]) -> bool:
        """Whether the rows that could decode wait for a step with the `chosen` prompts, which
        `room` has been asked for (mutates)."""
        if not self._most or self._since is None:
            return False
        if not chosen:
            is_short = self._clock() - self._since < _LOOK_UP_S
            is_held = is_short and self._scheduler.count(Stage.LOADING) > 0
            self.pause_s = _PAUSE_S if is_held else 0.0
            return is_held
        seconds = self._pacer.cost_s(self._batch.num_left(chosen[0]))
        left_s = self._since + _LIMIT_S - self._clock()
        if seconds is None or seconds > min(_SHORT_S, left_s):
            return False
        # A stream that has begun before goes on; and nobody waits for what is less urgent.
        first = self._rows[chosen[0]].request.request_class
        done = [self._rows[row_id] for row_id in self._batch.done_ids]
        return not any(row.emitted or row.request.request_class is not first for row in done)
