"""Gives a request a stable form: what is the same for the model becomes the same text.

Knows nothing about templates or tokens. What a user, a tool or the model said is never touched.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import chain, count

from omlx.models.messages import Message, texts_of
from omlx.server.generation import Generation, content
from omlx.server.toolorder import FirstSeen, in_first_order
from omlx.server.volatile import without_attribution, without_countdown, without_session
from omlx.settings.prompts import Prompt


class Rule(Enum):
    """What can have been done to a prompt; the values are in metrics and in the journal."""

    ATTRIBUTION = "attribution"
    COUNTDOWN = "countdown"
    SESSION = "session"
    SYSTEM_FIRST = "system_first"
    TOOL_ORDER = "tool_order"
    LEDGER = "ledger"  # of replies that were spliced; see omlx.server.ledger


Changes = Mapping[str, int]
_ANSWERING = ("assistant", "tool")


@dataclass(frozen=True, slots=True)
class Canonical:
    """A request in its stable form; `changes` counts what was done, by the value of a rule."""

    generation: Generation
    changes: Changes = field(default_factory=dict[str, int])


def canonical(
    generation: Generation, rules: Prompt, first_seen: FirstSeen | None, *, salt: str = ""
) -> Canonical:
    """The stable form of a request; `salt` is of those with whom it shares orders of tools."""
    if generation.prompt is not None:
        return Canonical(generation)
    reader = _Reader(generation, rules)
    made = reader.read()
    if rules.system_first:
        made = _system_first(made, reader.changes)
    if rules.tool_order and first_seen is not None and made.tools:
        made = _in_order(made, first_seen, salt, reader.changes)
    return Canonical(made, {rule.value: num for rule, num in reader.changes.items()})


def num_leading(messages: Sequence[Message]) -> int:
    """How many messages open the conversation as its system."""
    others = (idx for idx, message in enumerate(messages) if message["role"] != "system")
    return next(others, len(messages))


def as_note(text: str) -> Message:
    """A system text as a marked message of the user's, which every template has a place for."""
    return {"role": "user", "content": f"<system-reminder>\n{text}\n</system-reminder>"}


def _system_first(generation: Generation, changes: Counter[Rule]) -> Generation:
    """System messages of the first turn before what the user says in it: they are the same in
    another conversation. Those of later turns stay where they are."""
    messages = generation.messages
    num_head = num_leading(messages)
    answers = (idx for idx, message in enumerate(messages) if message["role"] in _ANSWERING)
    turn = range(num_head, next(answers, len(messages)))
    num_early = sum(messages[idx]["role"] == "system" for idx in turn)
    if not num_early:
        return generation
    changes[Rule.SYSTEM_FIRST] += num_early
    moved = sorted(turn, key=lambda idx: messages[idx]["role"] != "system")
    order = [*range(num_head), *moved, *range(turn.stop, len(messages))]
    places = generation.places or range(len(messages))
    return replace(
        generation,
        messages=[messages[idx] for idx in order],
        places=[places[idx] for idx in order],
    )


def _in_order(
    generation: Generation, first_seen: FirstSeen, salt: str, changes: Counter[Rule]
) -> Generation:
    ordered = in_first_order(generation.tools, first_seen, salt)
    if ordered is None:
        return generation
    changes[Rule.TOOL_ORDER] += ordered.num_changed
    places = generation.tool_places or range(len(generation.tools))
    places = [places[idx] for idx in ordered.indices]
    return replace(generation, tools=ordered.tools, tool_places=places)


class _Reader:
    """Goes through the messages of one request once, and notes what changes."""

    def __init__(self, generation: Generation, rules: Prompt) -> None:
        self.changes: Counter[Rule] = Counter()
        self._generation = generation
        self._rules = rules
        self._sessions: list[str] = []
        self._session_block = 0

    def read(self) -> Generation:
        """The request without what is volatile; the same where there is none (mutates)."""
        generation = self._generation
        num_head = num_leading(generation.messages)
        places = generation.places or range(len(generation.messages))
        blocks = chain(
            generation.system_places, count(max(generation.system_places, default=-1) + 1)
        )
        kept: list[tuple[int, Message]] = []
        kept_blocks: list[int] = []
        can_move = self._rules.session_last and num_head < len(generation.messages)
        for idx, (place, message) in enumerate(zip(places, generation.messages, strict=True)):
            if idx == num_head and self._sessions:
                kept.append((-1, as_note("\n\n".join(self._sessions))))
                kept_blocks.append(self._session_block)
            if message["role"] != "system":
                kept.append((place, message))
            elif idx >= num_head:
                left = self._late(message)
                kept += [] if left is None else [(place, left)]
            else:
                texts = [(next(blocks), text) for text in texts_of(message)]
                left = self._head(message, texts, kept_blocks, can_move=can_move)
                kept += [] if left is None else [(place, left)]
        if not self.changes or not kept:
            self.changes.clear()
            return generation
        return replace(
            generation,
            messages=[message for _, message in kept],
            places=[place for place, _ in kept],
            system_places=kept_blocks,
        )

    def _head(
        self,
        message: Message,
        texts: Sequence[tuple[int, str]],
        kept_blocks: list[int],
        *,
        can_move: bool,
    ) -> Message | None:
        """A message of the system; None where nothing of it is left (mutates)."""
        left: list[str] = []
        for block, text in texts:
            stable = self._stable(text, block, can_move=can_move)
            if stable or not text:
                left.append(stable)
                kept_blocks.append(block)
        return _with_texts(message, [text for _, text in texts], left)

    def _stable(self, text: str, block: int, *, can_move: bool) -> str:
        if self._rules.drop_attribution:
            without = without_attribution(text)
            self._note(Rule.ATTRIBUTION, int(without != text))
            text = without
        if can_move:
            text, session = without_session(text)
            if session:
                self._note(Rule.SESSION, 1)
                self._session_block = block
                self._sessions.append(session)
        return self._counted(text)

    def _late(self, message: Message) -> Message | None:
        """A system message in the middle; None where it only counts down (mutates)."""
        texts = texts_of(message)
        left = [text for text in map(self._counted, texts) if text]
        return _with_texts(message, texts, left) if left else None if any(texts) else message

    def _counted(self, text: str) -> str:
        if not self._rules.drop_countdown:
            return text
        text, num = without_countdown(text)
        self._note(Rule.COUNTDOWN, num)
        return text

    def _note(self, rule: Rule, num: int) -> None:
        if num:
            self.changes[rule] += num


def _with_texts(message: Message, texts: Sequence[str], left: Sequence[str]) -> Message | None:
    """The message with the texts that are left; the same where they are all there."""
    if list(left) == list(texts):
        return message
    return {**message, "content": content(list(left))} if left else None
