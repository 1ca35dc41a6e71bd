"""When a spare engine process is started."""

from dataclasses import dataclass

from omlx.engine.lifecycle import EngineHealth
from omlx.engine.request import EngineState
from omlx.engine.spares import Spares


@dataclass
class Shown:
    """An engine as the pool sees it."""

    shown: EngineState = EngineState.READY
    idle_s: float | None = None

    def state(self) -> EngineState:
        return self.shown

    def health(self) -> EngineHealth:
        return EngineHealth(True, 1, False, None, False, 0, idle_s=self.idle_s)


LOADING, UNLOADED = Shown(EngineState.LOADING), Shown(EngineState.UNLOADED)
BUSY = Shown()


def idle(seconds: float) -> Shown:
    return Shown(idle_s=seconds)


@dataclass
class Counted:
    num_started: int = 0
    is_there: bool = False
    error: OSError | None = None

    def has_spare(self) -> bool:
        return self.is_there

    def refill(self) -> None:
        if self.error is not None:
            raise self.error
        self.num_started += 1
        self.is_there = True


def test_it_waits_until_nobody_asks_anything() -> None:
    spawner = Counted()
    spares = Spares(spawner)
    spares.turn([LOADING], 0.0)
    spares.turn([idle(0.0)], 1.0)
    spares.turn([BUSY], 2.0)
    spares.turn([idle(60.0), BUSY], 3.0)
    spares.turn([idle(60.0), LOADING], 4.0)
    assert spawner.num_started == 0
    spares.turn([idle(4.9)], 5.0)
    assert spawner.num_started == 0
    spares.turn([idle(5.0), UNLOADED], 5.1)
    assert spawner.num_started == 1
    spares.turn([idle(9.0)], 9.0)
    assert spawner.num_started == 1, "there is one"


def test_requests_that_never_pause_hold_it_up_for_a_while_only() -> None:
    spawner = Counted()
    spares = Spares(spawner)
    spares.turn([BUSY], 10.0)
    spares.turn([BUSY], 129.0)
    assert spawner.num_started == 0
    spares.turn([BUSY], 130.0)
    assert spawner.num_started == 1
    spawner.is_there = False  # taken for a load
    spares.turn([BUSY], 131.0)
    spares.turn([BUSY], 200.0)
    assert spawner.num_started == 1, "the time counts from when it was taken"
    spares.turn([BUSY], 251.0)
    assert spawner.num_started == 2


def test_without_models_or_after_a_failure_there_is_none() -> None:
    spawner = Counted(error=OSError("no processes left"))
    spares = Spares(spawner)
    spares.turn([UNLOADED], 500.0)
    spares.turn([idle(60.0)], 501.0)
    assert spares.spawner is None
    spares.turn([idle(60.0)], 502.0)
    assert spawner.num_started == 0
