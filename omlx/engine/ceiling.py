"""One limit of memory for several engines: what each of them may use now.

Knows nothing about processes or time. Sizes are bytes.

Weights come first, then rows in work, rows that wait, and caches, which are cut from the largest
down. An engine gets more only when those that have to give it up have done so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from omlx.engine.request import EngineSnapshot

_STEADY = 100  # changes of less than one part in so many of the ceiling are not told
_GROWTH = 16  # a cache can ask for one part in so many of the ceiling more than it holds


@dataclass(frozen=True, slots=True)
class Claim:
    """What one engine takes.

    `least_bytes` is never taken from it, `needed_bytes` has its rows in work, `wanted_bytes` those
    that wait as well, `used_bytes` what is needed and its cache; `beside_bytes` is what its process
    holds beyond that. `told_bytes` is the last limit that it has heard of, None for one that has
    not reported yet.
    """

    model_id: str
    least_bytes: int
    needed_bytes: int
    wanted_bytes: int
    used_bytes: int
    beside_bytes: int = 0
    told_bytes: int | None = None


def claim_of(
    model_id: str, least_bytes: int, snapshot: EngineSnapshot | None, *, is_leaving: bool = False
) -> Claim:
    """What an engine takes by its latest figures; before there are any, the least that was
    estimated. One that is leaving gives nothing up before it has gone."""
    if snapshot is None:
        return Claim(model_id, least_bytes, least_bytes, least_bytes, least_bytes)
    use = snapshot.memory_use
    least = use.least_bytes or least_bytes
    needed = max(least, use.needed_bytes)
    used = needed + use.cache_bytes + snapshot.writes.queued_bytes
    if is_leaving:
        least = needed = used
    return Claim(
        model_id,
        least,
        needed,
        max(needed, use.wanted_bytes),
        used,
        beside_bytes=max(0, use.process_bytes - used),
        told_bytes=use.told_bytes,
    )


def split(claims: Sequence[Claim], ceiling_bytes: int) -> dict[str, int]:
    """What each engine should have: in all the ceiling, or what can't be taken from them if that is
    more."""
    shares = {c.model_id: c.least_bytes for c in claims}
    growth = ceiling_bytes // _GROWTH
    for asked in (
        {c.model_id: c.needed_bytes for c in claims},
        {c.model_id: c.wanted_bytes for c in claims},
        {c.model_id: max(c.used_bytes, c.wanted_bytes) + growth for c in claims},
        {c.model_id: ceiling_bytes for c in claims},
    ):
        left = ceiling_bytes - sum(shares.values())
        more = {i: max(0, asked[i] - shares[i]) for i in shares}
        for model_id, given in level(more, left).items():
            shares[model_id] += given
    return shares


def level(asked: Mapping[str, int], left: int) -> dict[str, int]:
    """Divide what is left: whoever asks for little gets it, the others get the same."""
    given: dict[str, int] = {}
    left = max(0, left)
    for number, model_id in enumerate(sorted(asked, key=lambda i: (asked[i], i))):
        given[model_id] = min(asked[model_id], left // (len(asked) - number))
        left -= given[model_id]
    return given


@dataclass(slots=True)
class _Told:
    """The last limit that an engine was sent, and the largest that may still be in force."""

    sent: int
    most: int


class Ceiling:
    """Knows what each engine was told; `limit_bytes` is None where nobody knows the machine.

    `reserve_bytes` is what the limit leaves of the memory, for what processes hold beside arrays.
    """

    def __init__(self, limit_bytes: int | None, reserve_bytes: int = 0) -> None:
        self._limit = limit_bytes
        self._reserve = reserve_bytes
        self._told: dict[str, _Told] = {}

    def begin(self, new: Claim, others: Sequence[Claim]) -> int | None:
        """A process of a model starts (mutates); its limit, None for none."""
        if self._limit is None:
            return None
        taken = sum(self._taken(c) for c in others)
        shares = split([*others, new], self._limit)
        limit = max(new.least_bytes, min(shares[new.model_id], self._limit - taken))
        self._told[new.model_id] = _Told(limit, limit)
        return limit

    def turn(self, claims: Sequence[Claim], joining: Claim | None = None) -> dict[str, int]:
        """The limits that have changed, for the engines that there are and the one that is to be
        loaded (mutates)."""
        if self._limit is None:
            return {}
        self._note(claims)
        beside = sum(c.beside_bytes for c in claims)
        ceiling = self._limit - max(0, beside - self._reserve)
        shares = split([*claims, *([joining] if joining else [])], ceiling)
        changed: dict[str, int] = {}
        for claim in claims:
            self._lower(claim, shares[claim.model_id], changed, is_exact=joining is not None)
        taken = sum(map(self._taken, claims)) + (joining.least_bytes if joining else 0)
        for claim in claims:
            left = self._limit - (taken - self._taken(claim))
            before = self._taken(claim)
            self._raise(claim, min(shares[claim.model_id], left), changed)
            taken += self._taken(claim) - before
        return changed

    def admits(self, claims: Sequence[Claim], joining: Claim) -> bool:
        """Whether the weights of a model have room now: caches have shrunk, rows have ended
        (mutates)."""
        if self._limit is None:
            return True
        self._note(claims)
        least = sum(c.least_bytes for c in claims)
        taken = sum(map(self._taken, claims))
        return taken <= max(self._limit - joining.least_bytes, least)

    def excess(self, claims: Sequence[Claim], *, is_waiting: bool) -> int:
        """How much more than there is the rows of all engines need, with those that wait; 0 where
        each has what it needs."""
        asked = {c.model_id: c.wanted_bytes if is_waiting else c.needed_bytes for c in claims}
        is_short = any(asked[i] > told.sent for i, told in self._told.items() if i in asked)
        if self._limit is None or not is_short:
            return 0
        return max(0, sum(asked.values()) - self._limit)

    def _note(self, claims: Sequence[Claim]) -> None:
        """Forget engines that are gone, and limits that are in force no more."""
        here = {c.model_id for c in claims}
        self._told = {i: told for i, told in self._told.items() if i in here}
        for claim in claims:
            told = self._told.get(claim.model_id)
            if told is not None and self._has_heard(claim, told):
                told.most = told.sent

    @staticmethod
    def _has_heard(claim: Claim, told: _Told) -> bool:
        """What is sent while a model loads is heard before its first request."""
        return claim.told_bytes is None or claim.told_bytes == told.sent

    def _taken(self, claim: Claim) -> int:
        """The most that an engine uses or may come to use by what it was told."""
        told = self._told.get(claim.model_id)
        return max(claim.used_bytes, told.most if told is not None else 0)

    def _lower(self, claim: Claim, share: int, changed: dict[str, int], *, is_exact: bool) -> None:
        told = self._told.get(claim.model_id)
        if told is None or share >= told.sent - (0 if is_exact else self._steady):
            return
        told.sent = changed[claim.model_id] = share
        if claim.told_bytes is None:
            told.most = share

    def _raise(self, claim: Claim, share: int, changed: dict[str, int]) -> None:
        told = self._told.get(claim.model_id)
        if told is None or share <= told.sent or not self._has_heard(claim, told):
            return
        is_enough = told.sent < claim.wanted_bytes <= share
        if is_enough or share > told.sent + self._steady:
            told.sent = told.most = changed[claim.model_id] = share

    @property
    def _steady(self) -> int:
        return (self._limit or 0) // _STEADY
