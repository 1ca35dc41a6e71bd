"""The live requests of an engine as the server knows them, and who is to blame when it dies.

Knows nothing about processes, threads or time.

All rows that were in work at a death are suspects. Each runs again without other suspects or new
requests joining, until it is past the place where the engine died: then only the guilty one is
there when the engine dies again.
"""

import hashlib
import secrets
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from omlx.engine.request import (
    Admitted,
    EngineRequest,
    Event,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    Prefilled,
    RequestStats,
    Started,
    Token,
)

_STRIKES = 2
_MAX_DEATHS = 8  # of those it saw, so that one that kills at a new place each time comes to an end
_TRIAL_TOKENS = 4  # past the place of death; four times as many after each further death
_MAX_QUARANTINED = 4096


@dataclass(slots=True, eq=False)
class Ticket:
    """One live request and what was delivered of its answer.

    `goal` is how many tokens it needs to be above suspicion; None for one that is.
    """

    request: EngineRequest
    emitted: list[int] = field(default_factory=list[int])
    is_submitted: bool = False
    is_working: bool = False
    is_aborted: bool = False
    was_submitted: bool = False
    num_deaths: int = 0
    goal: int | None = None
    was_admitted: bool = False
    was_started: bool = False

    @property
    def resumed(self) -> EngineRequest:
        """The request as the next engine gets it."""
        return replace(self.request, emitted=tuple(self.emitted))

    def finished(self, reason: FinishReason) -> Finished:
        """The last event of one whose engine can't give it any more."""
        size = len(self.request.tokens)
        stats = RequestStats(size, 0, 0, len(self.emitted), 0.0, 0.0, 0.0, 0.0, 0.0)
        return Finished(self.request.id, reason, stats)


class Tickets:
    """The requests of one model, over all the lives of its engine: at most `max_live` of them, also
    while the engine does not read, None for any number."""

    def __init__(self, max_live: int | None = None) -> None:
        self._max_live = max_live
        self._tickets: dict[str, Ticket] = {}
        self._quarantine: dict[bytes, None] = {}

    def __len__(self) -> int:
        return len(self._tickets)

    @property
    def num_submitted(self) -> int:
        """How many the engine has now."""
        return sum(ticket.is_submitted for ticket in self._tickets.values())

    @property
    def num_quarantined(self) -> int:
        """How many prompts are refused."""
        return len(self._quarantine)

    def add(self, request: EngineRequest) -> Failed | None:
        """Take a request (mutates); why it is refused, if it is."""
        if _content(request) in self._quarantine:
            return Failed(
                request.id,
                FailureCode.BAD_REQUEST,
                "this prompt has ended its engine twice and is refused until the server starts "
                "anew - change it, or start the server again",
            )
        if self._max_live is not None and len(self._tickets) >= self._max_live:
            return Failed(request.id, FailureCode.OVERLOADED, "too many requests are waiting")
        sampling = request.sampling
        if sampling.seed is None and sampling.temperature > 0:
            # Another engine has to draw on from where this one was.
            request = replace(request, sampling=replace(sampling, seed=secrets.randbits(63)))
        self._tickets[request.id] = Ticket(request, list(request.emitted))
        return None

    def take_next(self, *, has_room_for_new: bool = True) -> list[EngineRequest]:
        """What the engine gets now (mutates): a suspect alone, else all that it doesn't have."""
        waiting = [t for t in self._tickets.values() if not (t.is_submitted or t.is_aborted)]
        if not waiting:
            return []
        if any(t.is_submitted and t.goal is not None for t in self._tickets.values()):
            return []
        suspects = [t for t in waiting if t.goal is not None]
        chosen = suspects[:1] or [t for t in waiting if t.was_submitted or has_room_for_new]
        for ticket in chosen:
            ticket.is_submitted = ticket.was_submitted = True
        return [ticket.resumed for ticket in chosen]

    def working(self, request_id: str) -> None:
        """The engine has begun with a request (mutates)."""
        ticket = self._tickets.get(request_id)
        if ticket is not None:
            ticket.is_working = True

    def take(self, events: Iterable[Event]) -> list[Event]:
        """Note what the engine says (mutates); the events that a client has not had yet."""
        return [event for event in events if self._is_news(event)]

    def _is_news(self, event: Event) -> bool:
        ticket = self._tickets.get(event.request_id)
        if ticket is None:
            return False
        match event:
            case Admitted():
                is_first, ticket.was_admitted = not ticket.was_admitted, True
                return is_first
            case Started():
                is_first, ticket.was_started = not ticket.was_started, True
                return is_first
            case Prefilled():
                return not ticket.emitted
            case Token():
                ticket.emitted.append(event.token)
                if ticket.goal is not None and len(ticket.emitted) >= ticket.goal:
                    ticket.goal = None
                return True
            case Finished() | Failed():
                del self._tickets[event.request_id]
                return True

    def abort(self, request_id: str) -> tuple[bool, list[Event]]:
        """End a request (mutates); whether the engine has to be told, else its last event."""
        ticket = self._tickets.get(request_id)
        if ticket is None:
            return False, []
        ticket.is_aborted = True
        if ticket.is_submitted:
            return True, []
        del self._tickets[request_id]
        return False, [ticket.finished(FinishReason.ABORT)]

    def bury(self, reason: str) -> list[Event]:
        """The engine has died (mutates); the last events of those for whom that is the end."""
        working = [t for t in self._tickets.values() if t.is_working]
        suspects = [t for t in working if t.goal is not None] or working
        for ticket in suspects:
            ticket.num_deaths += 1
            step = _TRIAL_TOKENS ** min(ticket.num_deaths, _MAX_DEATHS)
            ticket.goal = len(ticket.emitted) + step
        ends: list[Event] = []
        if len(suspects) == 1 and suspects[0].num_deaths >= _STRIKES:
            ends.append(self._convict(suspects[0], reason))
        return ends + self._settle(reason)

    def _convict(self, ticket: Ticket, reason: str) -> Failed:
        """Give the guilty one up and refuse it from now on; the others are above suspicion."""
        del self._tickets[ticket.request.id]
        while len(self._quarantine) >= _MAX_QUARANTINED:
            del self._quarantine[next(iter(self._quarantine))]
        self._quarantine[_content(ticket.request)] = None
        for other in self._tickets.values():
            other.goal = None
            other.num_deaths = 0
        return _given_up(ticket, "twice", reason)

    def _settle(self, reason: str) -> list[Event]:
        """Take back what the dead engine had; the last events of those that need no other one."""
        ends: list[Event] = []
        for request_id, ticket in list(self._tickets.items()):
            ticket.is_submitted = ticket.is_working = False
            end: Event | None = None
            if ticket.is_aborted:
                end = ticket.finished(FinishReason.ABORT)
            elif len(ticket.emitted) >= ticket.request.max_tokens:
                end = ticket.finished(FinishReason.LENGTH)
            elif ticket.num_deaths >= _MAX_DEATHS:
                end = _given_up(ticket, f"{ticket.num_deaths} times", reason)
            if end is not None:
                del self._tickets[request_id]
                ends.append(end)
        return ends

    def take_back(self) -> list[Event]:
        """The engine has ended as it was asked to (mutates); what it had waits for the next one."""
        return self._settle("")

    def fail_all(self, message: str) -> list[Event]:
        """No engine will come (mutates); the last events of all."""
        ends: Sequence[Event] = [
            Failed(request_id, FailureCode.ENGINE, message) for request_id in self._tickets
        ]
        self._tickets.clear()
        return list(ends)


def _content(request: EngineRequest) -> bytes:
    return hashlib.sha256(array("q", request.tokens).tobytes()).digest()


def _given_up(ticket: Ticket, times: str, reason: str) -> Failed:
    message = f"the engine ended {times} while it worked on this request; the last time {reason}"
    return Failed(ticket.request.id, FailureCode.ENGINE, message)
