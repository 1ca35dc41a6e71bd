"""What becomes of rows whose step has raised: they run again, or end if they are to blame.

Knows nothing about batches or events. Engine thread only.
"""

from collections.abc import Callable

from omlx.engine.admission import Admission, is_shortage
from omlx.engine.intake import Intake
from omlx.engine.keeper import Keeper
from omlx.engine.pacer import Pacer
from omlx.engine.request import FailureCode
from omlx.engine.row import Row
from omlx.engine.scheduler import Scheduler
from omlx.engine.turns import Stage

_MAX_ATTEMPTS = 2
_MAX_SHORT = 32  # more than it takes until a row is alone in the smallest steps
_APART = (Stage.WAITING, Stage.PREEMPTED, Stage.READY)
_TWICE = "the engine failed twice on this request"
_NO_MEMORY = (
    "the engine found no memory for this request, even alone and in the smallest steps; a shorter "
    "prompt or a smaller `cache.memory_size` leaves more"
)


class Recovery:
    """Puts rows back in the queue; `fail` ends one with a message."""

    def __init__(
        self,
        keeper: Keeper,
        scheduler: Scheduler,
        intake: Intake,
        *,
        pacer: Pacer,
        admission: Admission,
        fail: Callable[[Row, FailureCode, str], None],
    ) -> None:
        self._keeper = keeper
        self._scheduler = scheduler
        self._intake = intake
        self._pacer = pacer
        self._admission = admission
        self._fail = fail

    def put_back(self, row: Row, *, is_excused: bool) -> None:
        """Let a row begin again from its tokens; `is_excused` if it did not fail (mutates)."""
        self._keeper.release(row)
        self._intake.leave(row.id)
        row.restart(is_excused=is_excused)

    def run_again(self, error: Exception, room: int) -> None:
        """After a step of `room` prompt tokens has raised: rows in work run again, each at most
        once more (mutates).

        What is ready or held took no part in what failed. Where memory was short, the rows run
        again in smaller steps and fewer at a time; only one that was alone is to blame for it.
        """
        is_short = is_shortage(error)
        can_help = is_short and self._learn_shortage(room)
        again: list[str] = []
        for row in list(self._intake.rows.values()):
            is_apart = self._scheduler.stage(row.id) in _APART
            if is_apart or self._intake.is_held(row.id):
                continue
            row.num_short += can_help
            is_excused = can_help and row.num_short < _MAX_SHORT
            if row.attempts >= _MAX_ATTEMPTS and not is_excused:
                why = (FailureCode.ENGINE, _NO_MEMORY) if is_short else (FailureCode.CRASH, _TWICE)
                self._fail(row, *why)
                continue
            self.put_back(row, is_excused=is_excused)
            again.append(row.id)
        self._scheduler.requeue(again)

    def _learn_shortage(self, room: int) -> bool:
        """Take smaller steps, and fewer rows; whether that can change anything."""
        lengths = self._scheduler.lengths()
        self._admission.failed(lengths)
        return self._pacer.shrink(room) or len(lengths) > 1
