"""Makes the messages of a trace: text by a seed that grows, forks and shrinks as the trace's does.

Knows nothing about servers. A token of the trace is a word, of words that most vocabularies hold
whole; chat templates and tokenizers add to that, and the server says how much.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from omlx.bench.trace import Trace, TraceRequest, common_length

_ROUNDING = 1e-9
_REWRITTEN_RUNS = 2

SYSTEM, USER, ASSISTANT = "system", "user", "assistant"


@dataclass(frozen=True, slots=True)
class Said:
    """One message; its text has `num_tokens` words unless it is a reply, which can't be cut."""

    role: str
    text: str
    num_tokens: int
    is_reply: bool = False

    def cut(self, num_tokens: int) -> "Said | None":
        """The message with its first words only; None where nothing of it is left."""
        if num_tokens >= self.num_tokens:
            return self
        if num_tokens <= 0 or self.is_reply:
            return None
        text = " ".join(self.text.split(" ", num_tokens)[:num_tokens])
        return replace(self, text=text, num_tokens=num_tokens)


@dataclass(frozen=True, slots=True)
class Turn:
    """One request as it is to be sent, sizes in tokens of the scaled trace.

    The prompt has `num_prompt` tokens, of which the last `num_new` are in no earlier prompt of the
    conversation at their place; `num_reply` (at least 1) is how long the trace's answer is.
    """

    at_s: float
    said: tuple[Said, ...]
    num_prompt: int
    num_new: int
    num_reply: int

    def messages(self) -> list[dict[str, str]]:
        """The messages of a chat body."""
        return [{"role": one.role, "content": one.text} for one in self.said]


def most_messages(trace: Trace, num_turns: int) -> int:
    """How many messages a prompt of the first turns can have at most."""
    return 2 * min(num_turns, len(trace.requests)) + 1


class Conversation:
    """One agent's turns, made one after the other.

    `scale` (0 to 1) is applied to all positions in prompts, so that what was a common prefix stays
    one at any scale. Two conversations of different `seed` share nothing but by chance.
    """

    def __init__(self, trace: Trace, *, words: Sequence[str], scale: float, seed: str) -> None:
        self._trace = trace
        self._words = words
        self._scale = scale
        self._seed = seed
        self._turns: list[Turn] = []
        self._tails = [self._tail(idx) for idx in range(len(trace.requests))]

    @property
    def num_turns(self) -> int:
        """How many turns the trace has."""
        return len(self._trace.requests)

    def next_turn(self, reply: str = "", num_reply: int = 0) -> Turn:
        """The next turn (mutates); AssertionError after the last one.

        A reply of so many tokens takes the place of the trace's, if the last request's prompt
        goes on in this one; the words that the trace has beyond its end are the user's then.
        """
        idx = len(self._turns)
        request = self._trace.requests[idx]
        total = self._total(request)
        parent, shared = self._parent(idx, total)
        said = _first(self._turns[parent].said, shared) if parent is not None else []
        shared = sum(one.num_tokens for one in said)
        is_direct = parent is not None and parent == idx - 1 and self._goes_on(parent, shared)
        said += self._new(idx, shared, said, (reply, num_reply) if is_direct else ("", 0), parent)
        turn = Turn(
            at_s=request.at_s,
            said=tuple(_joined(said)),
            num_prompt=total,
            num_new=total - shared,
            num_reply=max(1, self._at(request.num_reply)),
        )
        self._turns.append(turn)
        return turn

    def _goes_on(self, parent: int, shared: int) -> bool:
        """Whether a prompt is kept but for its end, where agents put reminders and marks."""
        end = self._at(_REWRITTEN_RUNS * self._trace.id_tokens) + 1
        return shared + end >= self._turns[parent].num_prompt

    def _new(
        self,
        idx: int,
        start: int,
        before: Sequence[Said],
        reply: tuple[str, int],
        parent: int | None,
    ) -> list[Said]:
        """What a request has beyond token `start`: the answer to its parent, then the user."""
        total = self._total(self._trace.requests[idx])
        made: list[Said] = []
        if parent is None or before[-1].role == SYSTEM:
            end = min(self._at(self._trace.num_head), total - 1)
            if end > start:
                made.append(self._said(SYSTEM, idx, start, end))
        elif before[-1].role == USER:
            num_old = min(self._at(self._trace.requests[parent].num_reply), total - start - 1)
            text, num_tokens = reply
            if text and 0 < num_tokens < total - start:
                made.append(Said(ASSISTANT, text, num_tokens, is_reply=True))
            elif num_old > 0:
                made.append(self._said(ASSISTANT, idx, start, start + num_old))
        start += sum(one.num_tokens for one in made)
        return [*made, self._said(USER, idx, start, total)]

    def _said(self, role: str, idx: int, start: int, end: int) -> Said:
        return Said(role, " ".join(self._spoken(idx, start, end)), end - start)

    def _spoken(self, idx: int, start: int, end: int) -> list[str]:
        """The words [start, end) of a prompt; the same for the same id at the same place."""
        ids, size = self._trace.requests[idx].ids, self._trace.id_tokens
        spoken: list[str] = []
        place = max(0, int(start / (size * self._scale)) - 1)
        while start < end:
            low = self._at(place * size)
            is_tail = place >= len(ids)
            high = end if is_tail else min(end, self._at((place + 1) * size))
            if high > start:
                name = self._tails[idx] if is_tail else ids[place]
                spoken += self._by_name(name, high - low)[start - low :]
                start = high
            place += 1
        return spoken

    def _by_name(self, name: int, number: int) -> list[str]:
        """The first words of a run; a longer run begins as a shorter one of the same name."""
        source = random.Random(f"{self._seed}|{self._trace.name}|{name}")
        return source.choices(self._words, k=number)

    def _parent(self, idx: int, total: int) -> tuple[int | None, int]:
        """The earlier request that a prompt shares the most with, and how many tokens that is.

        At least one token is left for the user's message that ends the prompt.
        """
        best: tuple[int, int] | None = None
        for earlier in range(idx):
            shared = min(self._shared(earlier, idx), total - 1)
            if shared > 0 and (best is None or shared >= best[0]):
                best = shared, earlier
        return (None, 0) if best is None else (best[1], best[0])

    def _shared(self, earlier: int, later: int) -> int:
        """How many tokens two prompts begin with in common."""
        a, b = self._trace.requests[earlier], self._trace.requests[later]
        number, size = common_length(a.ids, b.ids), self._trace.id_tokens
        whole = self._at(number * size)
        names = [
            request.ids[number] if number < len(request.ids) else self._tails[idx]
            for idx, request in ((earlier, a), (later, b))
        ]
        if names[0] != names[1]:
            return whole
        least = min(self._total(a), self._total(b))
        if number == len(a.ids) == len(b.ids):  # two tails of one name, however long
            return least
        return min(least, self._at((number + 1) * size))

    def _tail(self, idx: int) -> int:
        """The name of what comes after a prompt's last id.

        It begins as the next prompt goes on, where that one has the same ids up to there.
        """
        requests = self._trace.requests
        own = requests[idx].ids
        following = requests[idx + 1].ids if idx + 1 < len(requests) else ()
        if len(following) > len(own) and following[: len(own)] == own:
            return following[len(own)]
        return -1 - idx

    def _total(self, request: TraceRequest) -> int:
        return max(2, self._at(request.num_prompt))

    def _at(self, position: int) -> int:
        """A position of the trace, scaled."""
        return math.floor(position * self._scale + _ROUNDING)


def _first(said: Sequence[Said], num_tokens: int) -> list[Said]:
    """The messages that hold the first tokens, the last of them cut."""
    kept: list[Said] = []
    for one in said:
        left = one.cut(num_tokens)
        if left is None:
            break
        kept.append(left)
        num_tokens -= left.num_tokens
    return kept


def _joined(said: Sequence[Said]) -> list[Said]:
    """Messages of one role that follow each other as one: many templates want turns."""
    made: list[Said] = []
    for one in said:
        last = made[-1] if made else None
        if last is not None and last.role == one.role:
            text = f"{last.text} {one.text}"
            made[-1] = Said(one.role, text, last.num_tokens + one.num_tokens)
        else:
            made.append(one)
    return made
