"""When the spare engine process is started: its imports take seconds, which requests feel.

Knows nothing about processes or models.
"""

import logging
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from omlx.engine.lifecycle import EngineHealth
from omlx.engine.request import EngineState
from omlx.errors import OmlxError

_log = logging.getLogger("omlx.engine.spares")
_IDLE_S = 5.0  # without any request: who has just started the server asks it something at once
_LONGEST_S = 120.0  # where requests never pause, the next load or crash needs it all the same
_STARTING = (EngineState.STARTING, EngineState.LOADING)


class Spare(Protocol):
    """What is needed of a spawner; see omlx.engine.spawn.Spawner."""

    def has_spare(self) -> bool: ...
    def refill(self) -> None: ...


class Watched(Protocol):
    """What is needed of an engine; see omlx.engine.supervisor.SupervisedEngine."""

    def state(self) -> EngineState: ...
    def health(self) -> EngineHealth: ...


@dataclass(slots=True)
class Spares:
    """Has a spare started once nobody would wait for its imports; the pool's thread only."""

    spawner: Spare | None
    _wanted_at: float | None = None

    def turn(self, engines: Collection[Watched], now: float) -> None:
        """Start one if it is time (mutates); where that can't be, there will be no more of them."""
        states = [engine.state() for engine in engines]
        is_loading = any(state in _STARTING for state in states)
        if self.spawner is None or is_loading or EngineState.READY not in states:
            return
        if self.spawner.has_spare():
            self._wanted_at = None
            return
        self._wanted_at = now if self._wanted_at is None else self._wanted_at
        ready = [e for e, state in zip(engines, states, strict=True) if state is EngineState.READY]
        is_idle = all(_is_idle(engine.health()) for engine in ready)
        if not is_idle and now - self._wanted_at < _LONGEST_S:
            return
        self._wanted_at = None
        try:
            self.spawner.refill()
        except (OmlxError, OSError) as error:
            _log.warning("no spare engine process can be started: %s", error)
            self.spawner = None


def _is_idle(health: EngineHealth) -> bool:
    return health.idle_s is not None and health.idle_s >= _IDLE_S
