"""Adds up what engines have written and evicted on disk, over all the processes they had.

Knows nothing about who keeps the sums. For the loop's thread.
"""

from collections.abc import Iterable

from omlx.server.figures import EngineView
from omlx.storage.tally import DiskTally

_NOTHING = DiskTally()


class DiskMeter:
    """Takes the engines' figures now and then, and says what is new in them."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[str, DiskTally]] = {}

    def take(self, engines: Iterable[EngineView]) -> dict[str, DiskTally]:
        """What was moved since the last call, by model id; models without are left out (mutates).

        An engine that was started anew counts from nothing.
        """
        found: dict[str, DiskTally] = {}
        for engine in engines:
            life, counters = engine.snapshot.life, engine.snapshot.counters
            if not life:
                continue  # it has never been loaded
            now = DiskTally(counters.bytes_written, counters.bytes_evicted)
            known, before = self._seen.get(engine.model_id, (life, _NOTHING))
            if known != life:
                before = _NOTHING
            self._seen[engine.model_id] = life, now
            moved = DiskTally(
                now.written_bytes - before.written_bytes, now.evicted_bytes - before.evicted_bytes
            )
            if moved != _NOTHING:
                found[engine.model_id] = moved
        return found
