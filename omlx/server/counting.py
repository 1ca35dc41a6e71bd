"""Who counts the requests of one server, and the bytes of its engines: each is told of everything.

Knows nothing about how requests are served. For the loop's thread, but what it holds.
"""

from collections.abc import Callable, Sequence

from omlx.server.context import ServerContext
from omlx.server.diskmeter import DiskMeter
from omlx.server.figures import EngineView
from omlx.server.lastday import LastDayFigures
from omlx.server.metrics import Metrics
from omlx.server.recorder import Recorder
from omlx.server.session import Course
from omlx.server.turns import Turns


class Counting:
    """The metrics, the figures of the last day and the journal, which therefore agree."""

    def __init__(self, context: ServerContext, engines: Callable[[], Sequence[EngineView]]) -> None:
        self._engines = engines
        self._disk = DiskMeter()
        self.recorder = Recorder(
            context.journal,
            clock=context.clock,
            wall=context.wall,
            has_cache=context.settings.cache.is_on,
        )
        self.metrics = Metrics(engines, lambda: self.recorder.num_lost)
        self.day = LastDayFigures(context.clock)
        self.turns = Turns(context.wall)

    def admitted(self, course: Course) -> None:
        """A request left the queue (mutates)."""
        self.metrics.admitted(course)
        self.day.admitted(course)

    def closed(self, course: Course) -> None:
        """A request is over (mutates)."""
        self.metrics.closed(course)
        self.day.closed(course)
        self.turns.closed(course)
        self.recorder.record(course)

    def count_disk(self) -> None:
        """Note what engines have written and evicted since the last call (mutates)."""
        moved = self._disk.take(self._engines())
        for model_id, tally in moved.items():
            self.metrics.moved(model_id, tally.written_bytes, tally.evicted_bytes)
            self.day.moved(tally.written_bytes, tally.evicted_bytes)
        if moved:
            self.recorder.moved(moved)
