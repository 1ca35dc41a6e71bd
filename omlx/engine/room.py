"""What has to leave so that a model can be loaded: pure policy.

Knows nothing about processes or time; it is told who was used when.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from omlx.units import format_size


@dataclass(frozen=True, slots=True)
class RoomLimits:
    """How many models may be loaded, and how many bytes of weights; None is no limit."""

    max_loaded: int | None = None
    max_bytes: int | None = None

    def allow(self, num_loaded: int, num_bytes: int) -> bool:
        """Whether so much may be loaded at the same time."""
        has_count = self.max_loaded is None or num_loaded <= self.max_loaded
        return has_count and (self.max_bytes is None or num_bytes <= self.max_bytes)


@dataclass(frozen=True, slots=True)
class Resident:
    """A model that takes up room; one that is leaving still does."""

    model_id: str
    weight_bytes: int
    used_at: float
    is_pinned: bool = False
    is_busy: bool = False
    is_leaving: bool = False


class Verdict(Enum):
    """What to do about a model that is wanted."""

    LOAD = "load"
    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Room:
    """The verdict; with WAIT those that leave now, and those that do once they are not busy."""

    verdict: Verdict
    leave_now: tuple[str, ...] = ()
    leave_later: tuple[str, ...] = ()
    reason: str = ""


def make_room(
    model_id: str, weight_bytes: int, residents: Sequence[Resident], limits: RoomLimits
) -> Room:
    """How a model gets in: the least recently used leave first, those in use only if they must."""
    if limits.allow(len(residents) + 1, _bytes(residents) + weight_bytes):
        return Room(Verdict.LOAD)
    staying = [r for r in residents if not r.is_leaving]
    movable = sorted(
        (r for r in staying if not r.is_pinned), key=lambda r: (r.is_busy, r.used_at, r.model_id)
    )
    leaving: list[Resident] = []
    while not limits.allow(len(staying) + 1, _bytes(staying) + weight_bytes):
        if not movable:
            return Room(Verdict.REFUSE, reason=_refusal(model_id, weight_bytes, staying, limits))
        leaving.append(movable.pop(0))
        staying.remove(leaving[-1])
    return Room(
        Verdict.WAIT,
        tuple(r.model_id for r in leaving if not r.is_busy),
        tuple(r.model_id for r in leaving if r.is_busy),
    )


def _bytes(residents: Sequence[Resident]) -> int:
    return sum(resident.weight_bytes for resident in residents)


def _refusal(
    model_id: str, weight_bytes: int, pinned: Sequence[Resident], limits: RoomLimits
) -> str:
    """Why a model can't be loaded even with all others gone that may go."""
    needed = f"the model {model_id!r} can't be loaded: its weights take {format_size(weight_bytes)}"
    allowed: list[str] = []
    if limits.max_bytes is not None:
        allowed.append(f"{format_size(limits.max_bytes)} of weights (engine.memory_limit)")
    if limits.max_loaded is not None:
        allowed.append(f"models.max_loaded = {limits.max_loaded}")
    taken = ""
    if pinned:
        names = ", ".join(resident.model_id for resident in pinned)
        taken = f", of which pinned models ({names}) take {format_size(_bytes(pinned))}"
    return f"{needed}, the limit is {' and '.join(allowed)}{taken}"
