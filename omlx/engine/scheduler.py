"""Which request runs next: pure policy, first come first served.

Knows nothing about mlx, caches or time.
"""

from collections import deque
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


@dataclass(frozen=True, slots=True)
class Limits:
    """How many requests may be in work, how many may wait, how many tokens one
    prefill step takes."""

    max_active: int
    max_waiting: int
    prefill_chunk: int


class Scheduler:
    """Moves requests from WAITING over LOADING and READY into the batch."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._waiting: deque[str] = deque()
        self._stages: dict[str, Stage] = {}
        self._ready: dict[str, int] = {}

    def enqueue(self, request_id: str) -> bool:
        """Put a request at the end of the queue; False when the queue is full."""
        if len(self._waiting) >= self._limits.max_waiting + self._free():
            return False
        self._waiting.append(request_id)
        self._stages[request_id] = Stage.WAITING
        return True

    def _free(self) -> int:
        return self._limits.max_active - (len(self._stages) - len(self._waiting))

    def admit(self) -> list[str]:
        """Requests that leave the queue now, to be looked up in the cache; they become LOADING.

        They stay so while they are held for what another computes.
        """
        admitted: list[str] = []
        while self._waiting and self._free() > 0:
            request_id = self._waiting.popleft()
            del self._stages[request_id]  # those in work are in order of admission
            self._stages[request_id] = Stage.LOADING
            admitted.append(request_id)
        return admitted

    def loaded(self, request_id: str, num_uncached: int) -> None:
        """The cache has answered: so many tokens are left to prefill."""
        self._stages[request_id] = Stage.READY
        self._ready[request_id] = num_uncached

    def start_prefills(self) -> list[str]:
        """Ready requests to insert into the batch now; they become PREFILLING.

        In order of admission: the first one, and as many more as share one chunk with it.
        """
        if Stage.PREFILLING in self._stages.values():
            return []
        chosen: list[str] = []
        room = self._limits.prefill_chunk
        for request_id in self._stages:
            num_uncached = self._ready.get(request_id)
            if num_uncached is None:
                continue
            if chosen and num_uncached > room:
                break
            room -= num_uncached
            chosen.append(request_id)
        for request_id in chosen:
            del self._ready[request_id]
            self._stages[request_id] = Stage.PREFILLING
        return chosen

    def requeue(self, request_ids: Sequence[str]) -> None:
        """Put requests that were in work at the head of the queue again, in this order."""
        for request_id in reversed(request_ids):
            self.remove(request_id)
            self._waiting.appendleft(request_id)
            self._stages[request_id] = Stage.WAITING

    def decoding(self, request_id: str) -> None:
        """The prompt is done."""
        self._stages[request_id] = Stage.DECODING

    def can_proceed(self) -> bool:
        """Whether a request could be admitted or started right now."""
        may_start = self._ready and Stage.PREFILLING not in self._stages.values()
        return bool(may_start or (self._waiting and self._free() > 0))

    def remove(self, request_id: str) -> None:
        """The request is over, in whatever stage."""
        if self._stages.pop(request_id, None) is Stage.WAITING:
            self._waiting.remove(request_id)
        self._ready.pop(request_id, None)

    def stage(self, request_id: str) -> Stage | None:
        """Where a request is; None when unknown."""
        return self._stages.get(request_id)

    def count(self, stage: Stage) -> int:
        """How many requests are in a stage."""
        return sum(1 for s in self._stages.values() if s is stage)
