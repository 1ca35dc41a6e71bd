"""Which request runs next, which prompt computes next, and who has to leave: pure policy.

Knows nothing about mlx, caches or text; of time only what its clock says.

A more urgent class comes first, and waiting makes a request more urgent. Within a class the tenant
that has had fewest tokens comes first, and of a tenant's requests the one that arrived first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from omlx.engine.request import RequestClass
from omlx.engine.shares import Shares
from omlx.engine.turns import Entry, Stage, Turns

_RANKS = {RequestClass.INTERACTIVE: 0, RequestClass.NORMAL: 1, RequestClass.BATCH: 2}
_OLDEST_EVERY = 64  # one admission in so many is for who has waited longest, whoever that is
_MOST_PREEMPTIONS = 4  # of one request, so that it ends
_BATCH_SHARE = 0.75  # of the queue, so that it is never full for those who have no time


_RUNNING = (Stage.READY, Stage.PREFILLING, Stage.DECODING)  # can leave without a loss


@dataclass(frozen=True, slots=True)
class Limits:
    """How many requests may be in work, how many may wait, after how long a wait a request counts
    as one class more urgent."""

    max_active: int
    max_waiting: int
    ageing_s: float = 30.0


def always_fits(lengths: Sequence[int]) -> bool:
    """What a scheduler asks that is not told about memory."""
    return True


class Scheduler:
    """Moves requests from WAITING over LOADING and READY into the batch, and out of it again."""

    def __init__(
        self,
        limits: Limits,
        clock: Callable[[], float],
        fits: Callable[[Sequence[int]], bool] = always_fits,
    ) -> None:
        """`fits` says whether there is memory for requests of so many tokens each."""
        self._limits = limits
        self._clock = clock
        self._fits = fits
        self._entries: dict[str, Entry] = {}
        self._shares = Shares()
        self._turns = Turns(limits.ageing_s)
        self._num_arrived = self._num_admitted = 0
        self._is_short = False  # the next one has no memory yet

    def enqueue(
        self,
        request_id: str,
        request_class: RequestClass = RequestClass.NORMAL,
        *,
        tenant: str = "",
        num_tokens: int = 1,
    ) -> bool:
        """Put a request of so many prompt tokens in the queue; False when the queue is full."""
        most = self._limits.max_waiting
        if request_class is RequestClass.BATCH:
            most -= int(most * (1 - _BATCH_SHARE))
        queued = self._queued()
        if len(queued) >= most + max(0, self._free()):
            return False
        self._shares.enter(tenant, is_waiting=any(e.tenant == tenant for e in queued))
        number, self._num_arrived = self._num_arrived, self._num_arrived + 1
        rank, now = _RANKS[request_class], self._clock()
        self._entries[request_id] = Entry(request_id, rank, tenant, num_tokens, number, now)
        return True

    def _queued(self) -> list[Entry]:
        return [e for e in self._entries.values() if e.is_queued]

    def _free(self) -> int:
        return self._limits.max_active - (len(self._entries) - len(self._queued()))

    def _next(self, queued: Sequence[Entry]) -> Entry:
        now = self._clock()
        oldest = min(queued, key=lambda e: e.number)
        is_old = now - oldest.queued_at >= self._limits.ageing_s
        if is_old and self._num_admitted % _OLDEST_EVERY == _OLDEST_EVERY - 1:
            return oldest
        urgent = min(queued, key=lambda e: (e.level(now, self._limits.ageing_s), e.number))
        same_class = [e for e in queued if e.rank == urgent.rank]
        return min(same_class, key=lambda e: (*self._shares.order(e.tenant), e.number))

    def admit(self) -> list[str]:
        """Requests that leave the queue now, to be looked up in the cache; they become LOADING.

        They stay so while they are held for what another computes. One that has no memory yet
        holds up those behind it, or it would wait for ever.
        """
        admitted: list[str] = []
        self._is_short = False
        while self._free() > 0 and (queued := self._queued()):
            entry = self._next(queued)
            is_alone = len(queued) == len(self._entries)
            if not is_alone and not self._fits([*self.lengths(), entry.num_tokens]):
                self._is_short = True
                break
            self._admit(entry)
            admitted.append(entry.id)
        return admitted

    def _admit(self, entry: Entry) -> None:
        self._num_admitted += 1
        self._shares.serve(entry.tenant)
        self._shares.charge(entry.tenant, entry.num_tokens)
        entry.waited_s += self._clock() - entry.queued_at
        entry.stage = Stage.LOADING

    def loaded(self, request_id: str, num_uncached: int) -> None:
        """The cache has answered: so many tokens are left to prefill."""
        entry = self._entries[request_id]
        self._shares.charge(entry.tenant, num_uncached - entry.num_tokens)
        entry.stage = Stage.READY
        entry.num_left = num_uncached - 1  # the last one starts the decoding

    def choose(self, room: int) -> list[str]:
        """Whose prompts compute in the next step, so many tokens in all.

        Those among them that were READY become PREFILLING: they have to be put in the batch. The
        first one gets the room; others come with it if all that they lack fits in.
        """
        candidates = [
            e
            for e in self._entries.values()
            if e.stage is Stage.READY or (e.stage is Stage.PREFILLING and e.num_left)
        ]
        chosen: list[str] = []
        is_first = True
        for entry in self._turns.order(candidates, self._clock()):
            if is_first or entry.num_left <= room:
                chosen.append(entry.id)
                room -= min(entry.num_left, room)
                is_first = is_first and not entry.num_left
                entry.stage = Stage.PREFILLING
        return chosen

    def computed(self, num_left: Mapping[str, int]) -> int:
        """So many prompt tokens of these requests are still to be computed before the last; by how
        many that is fewer."""
        num_begun = 0
        for request_id, left in num_left.items():
            num_begun += self._entries[request_id].num_left - left
            self._entries[request_id].num_left = left
        return num_begun

    def decoding(self, request_id: str) -> None:
        """The prompt is done."""
        self._entries[request_id].stage = Stage.DECODING

    def decoded(self, request_id: str) -> None:
        """A token of a request was generated."""
        entry = self._entries[request_id]
        entry.num_decoded += 1
        self._shares.charge(entry.tenant, 1)

    def inherit(self, request_id: str, *, of: str) -> None:
        """Another request waits for what this one computes: it is as urgent as that."""
        entry, other = self._entries.get(request_id), self._entries[of]
        if entry is not None:
            entry.rank = min(entry.rank, other.rank)

    def victim(self) -> str | None:
        """Who has to leave so that a more urgent request can come in: the least urgent, and of
        those the one that came last. None if nobody has to."""
        queued = self._queued()
        if not queued or (self._free() > 0 and not self._is_short):
            return None
        now, most_urgent = self._clock(), min(e.rank for e in queued)
        found = [
            (e.level(now, self._limits.ageing_s), e.number, e.id)
            for e in self._entries.values()
            if e.stage in _RUNNING and e.num_preemptions < _MOST_PREEMPTIONS
        ]
        level, _, request_id = max(found, default=(0, 0, ""))
        return request_id if level > most_urgent else None

    def last_come(self) -> str | None:
        """Who has to leave when memory is short: the least urgent row, but never the only one."""
        now = self._clock()
        rows = [e for e in self._entries.values() if e.stage in _RUNNING]
        if len(rows) < 2:
            return None
        return max(rows, key=lambda e: (e.level(now, self._limits.ageing_s), e.number)).id

    def lengths(self) -> list[int]:
        """How many tokens each request in work has."""
        return [e.num_tokens + e.num_decoded for e in self._entries.values() if not e.is_queued]

    def preempt(self, request_id: str, num_tokens: int) -> None:
        """Put a request that was in work back in its place in the queue, as one of so many tokens
        to prefill."""
        entry = self._entries[request_id]
        entry.num_preemptions += 1
        entry.num_tokens, entry.num_decoded = num_tokens, 0
        self._put_back(entry, Stage.PREEMPTED)

    def requeue(self, request_ids: Sequence[str]) -> None:
        """Put requests that were in work in their places in the queue again."""
        for request_id in request_ids:
            self._put_back(self._entries[request_id], Stage.WAITING)

    def _put_back(self, entry: Entry, stage: Stage) -> None:
        entry.stage = stage
        entry.queued_at = self._clock()
        entry.num_left = 0

    def can_proceed(self) -> bool:
        """Whether a request could be admitted or started right now."""
        is_ready = any(e.stage is Stage.READY for e in self._entries.values())
        return is_ready or bool(not self._is_short and self._free() > 0 and self._queued())

    def remove(self, request_id: str) -> None:
        """The request is over, in whatever stage."""
        entry = self._entries.pop(request_id, None)
        if entry is not None:
            self._shares.leave(entry.tenant)

    def stage(self, request_id: str) -> Stage | None:
        """Where a request is; None when unknown."""
        entry = self._entries.get(request_id)
        return entry.stage if entry is not None else None

    def count(self, *stages: Stage) -> int:
        """How many requests are in any of these stages."""
        return sum(1 for e in self._entries.values() if e.stage in stages)
