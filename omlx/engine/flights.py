"""Prompts on their way that begin alike: one computes what they share, the others wait for that.

Knows nothing about queues, rows or tiers. Engine thread only.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from omlx.cache.hashing import TokenArray, common_prefix, token_array


@dataclass(frozen=True, slots=True)
class Keeping:
    """What a running prompt leaves for others: blocks, its tail, snapshots of recurrent state.

    `snapshot_interval` is None for a model without recurrent layers; `can_cut` says whether the
    first tokens of a block can be used without the rest.
    """

    block_size: int
    prefill_chunk: int
    can_cut: Callable[[int, int], bool]
    snapshot_interval: int | None = None

    def usable(self, flight: "Flight", start: int, shared: int) -> int:
        """How many of its first `shared` tokens a prompt leaves to be taken over, if it is computed
        from token `start` on. An estimate: a look-up says what is really there."""
        last = len(flight.tokens) - 1  # the last token's state comes with the decoding
        shared = min(shared, last)
        if self.snapshot_interval is not None:
            shared = self._last_snapshot(flight, start, shared, self.snapshot_interval)
        rest = shared % self.block_size
        count = min(self.block_size, last - (shared - rest))
        return shared if self.can_cut(count, rest) else shared - rest

    def _last_snapshot(self, flight: "Flight", start: int, shared: int, interval: int) -> int:
        last, chunk = len(flight.tokens) - 1, self.prefill_chunk
        found, before = 0, start
        places = {*flight.stops, last}
        for end in sorted({*range(start - start % chunk + chunk, last, chunk), *places}):
            if end > shared:
                break
            if end > start and (end in places or end - before >= interval):
                found = before = end
        return found

    def kept_at(self, flight: "Flight", position: int) -> int:
        """When the token before `position` of a prompt is kept: with its block or the tail."""
        return min(position + -position % self.block_size, len(flight.tokens) - 1)


@dataclass(slots=True, eq=False)
class Flight:
    """One prompt on its way; others may take over its first `kept` tokens.

    `start` is how many it took from the cache itself, None until that is known; a snapshot is taken
    at each of `stops`. `seen` are those before it, with what they had kept when its
    look-up began; `waits_for` is one of them, and how much that one has to keep.
    Only flights of one `salt` can take over from each other.
    """

    tokens: Sequence[int] | TokenArray
    stops: Sequence[int] = ()
    start: int | None = None
    kept: int = 0
    is_shared: bool = True
    is_over: bool = False
    seen: dict["Flight", int] = field(default_factory=dict["Flight", int])
    waits_for: "tuple[Flight, int] | None" = None
    salt: str = ""


class Flights:
    """The prompts that are looked up or computed, in order of admission.

    One waits only for those before it, so there is always one that waits for none. `keeping` is
    None where nothing is kept: then nobody waits.
    """

    def __init__(self, keeping: Keeping | None) -> None:
        self._keeping = keeping
        self._flights: dict[str, Flight] = {}
        self._woken: set[str] = set()

    def look_up(
        self,
        row_id: str,
        tokens: Sequence[int],
        *,
        stops: Sequence[int] = (),
        is_shared: bool = True,
        salt: str = "",
    ) -> None:
        """A look-up of a prompt begins, for the first time or again; one that is not shared will
        leave nothing (mutates)."""
        if self._keeping is None:
            return
        flight = self._flights.setdefault(
            row_id, Flight(tokens, stops, is_shared=is_shared, salt=salt)
        )
        flight.seen = {}
        for other in self._flights.values():
            if other is flight:
                break
            if other.is_shared and other.salt == flight.salt:
                flight.seen[other] = other.kept

    def found(self, row_id: str, tokens: TokenArray, num_hit: int) -> bool:
        """The look-up has answered (mutates). True: compute the rest. False: one before it computes
        at least a block more of it; let go of the hit and look up again once it is woken."""
        flight = self._flights.get(row_id)
        if flight is None or self._keeping is None:
            return True
        flight.tokens = tokens
        flight.waits_for = self._leader(flight, num_hit, self._keeping)
        flight.seen = {}
        if flight.waits_for is None:
            flight.start = flight.kept = num_hit
            return True
        self._wake()
        return False

    def _leader(self, flight: Flight, num_hit: int, keeping: Keeping) -> tuple[Flight, int] | None:
        """Who leaves most of a prompt that its look-up could not find, and when that is kept."""
        best: tuple[Flight, int] | None = None
        most = num_hit + keeping.block_size - 1
        mine = token_array(flight.tokens)
        for other, kept_then in flight.seen.items():
            other.tokens = token_array(other.tokens)
            shared = min(common_prefix(other.tokens, mine), len(mine) - 1)
            start = num_hit if other.start is None else other.start
            usable = keeping.usable(other, start, shared)
            kept_at = keeping.kept_at(other, usable)
            if usable > most and kept_then < kept_at:
                best, most = (other, kept_at), usable
        return best

    def leader_of(self, row_id: str) -> str | None:
        """Who computes what a prompt waits for; None if it does not wait."""
        flight = self._flights.get(row_id)
        if flight is None or flight.waits_for is None:
            return None
        leader = flight.waits_for[0]
        return next((i for i, other in self._flights.items() if other is leader), None)

    def kept(self, row_id: str, num_cached: int) -> None:
        """So many tokens of a prompt are computed, and stored as far as they can be (mutates)."""
        if self._keeping is None:
            return
        flight = self._flights[row_id]
        is_end = num_cached >= len(flight.tokens) - 1
        flight.kept = num_cached - (0 if is_end else num_cached % self._keeping.block_size)
        self._wake()

    def over(self, row_id: str) -> None:
        """A prompt is done, or its request is gone: nothing more comes of it (mutates)."""
        flight = self._flights.pop(row_id, None)
        if flight is not None:
            flight.is_over = True
            self._woken.discard(row_id)
            self._wake()

    def _wake(self) -> None:
        for row_id, flight in self._flights.items():
            if flight.waits_for is None:
                continue
            leader, kept_at = flight.waits_for
            if leader.is_over or leader.kept >= kept_at:
                flight.waits_for = None
                self._woken.add(row_id)

    @property
    def has_woken(self) -> bool:
        """Whether one that waited can be looked up again."""
        return bool(self._woken)

    def take_woken(self) -> list[str]:
        """Those that waited long enough, in order of admission; each is named once (mutates)."""
        woken, self._woken = self._woken, set()
        return [row_id for row_id in self._flights if row_id in woken]

    def is_held(self, row_id: str) -> bool:
        """Whether a prompt waits for another, or to be looked up again after that."""
        flight = self._flights.get(row_id)
        return flight is not None and (flight.waits_for is not None or row_id in self._woken)
