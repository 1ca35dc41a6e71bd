"""Explains a miss: where a prompt leaves a stored sequence, in which part, and what changed there.

Knows nothing about where the sequences come from; pure, without mlx or files.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from os.path import commonprefix

from omlx.cache.changes import Change, classify
from omlx.cache.hashing import TokenArray, common_prefix
from omlx.storage.entry import Part, PartKind, Span

_CONTEXT_TOKENS = 64
_CONTEXT_CHARS = 120
_WINDOW_TOKENS = 4096
# A shorter text may well come twice in a conversation.
_LEAST_TELLING_CHARS = 8

Spell = Callable[[Sequence[int]], str]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A sequence of tokens, as far as it is known, and its parts; no parts: they are not known."""

    tokens: TokenArray
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first token that differs, and what is around it on both sides.

    `part` is what changed: a part of ours, or of theirs where it was removed; None is the
    template's text. `counterpart` is what stands there in the other prompt, where that is known.
    """

    token_idx: int
    part: Part | None
    counterpart: Part | None
    change: Change
    before: str
    ours: str
    theirs: str

    @property
    def place(self) -> str:
        """The part in words."""
        return "the template" if self.part is None else str(self.part)


def place_of(spans: Sequence[Span], token_idx: int) -> str:
    """Where a token lies, in words."""
    found = _part_at(spans, token_idx)
    if found is not None:
        return str(found.part)
    later = [span for span in spans if span.start > token_idx]
    return f"the template before {later[0].part}" if later else "the template"


def diverge(ours: Prompt, theirs: Prompt, spell: Spell) -> Divergence | None:
    """Where and how a prompt leaves another sequence; None if one only continues the other."""
    at = common_prefix(ours.tokens, theirs.tokens)
    if at >= min(len(ours.tokens), len(theirs.tokens)):
        return None
    comparison = _Comparison(ours, theirs, spell)
    own, other = comparison.parts_at(at)
    change = comparison.change(at, own, other)
    part, counterpart = (span.part if span else None for span in (own, other))
    if change is Change.REMOVED and counterpart is not None:
        part, counterpart = counterpart, part
    before, own_text, other_text = _around(ours.tokens, theirs.tokens, at, spell)
    return Divergence(
        token_idx=at,
        part=part or counterpart,
        counterpart=counterpart if part else None,
        change=change,
        before=before,
        ours=own_text,
        theirs=other_text,
    )


def _part_at(spans: Iterable[Span], token_idx: int) -> Span | None:
    return next((span for span in spans if span.start <= token_idx < span.end), None)


def _around(ours: TokenArray, theirs: TokenArray, at: int, spell: Spell) -> tuple[str, str, str]:
    """The text before the place where they differ, to the character, and what follows it."""
    start, end = max(0, at - _CONTEXT_TOKENS), at + _CONTEXT_TOKENS
    own, other = spell(ours[start:end].tolist()), spell(theirs[start:end].tolist())
    num_same = len(commonprefix([own, other]))
    before = own[max(0, num_same - _CONTEXT_CHARS) : num_same]
    return before, own[num_same:][:_CONTEXT_CHARS], other[num_same:][:_CONTEXT_CHARS]


class _Comparison:
    """Two prompts, compared by their parts where those are known, else by the text itself."""

    def __init__(self, ours: Prompt, theirs: Prompt, spell: Spell) -> None:
        self._ours = ours
        self._theirs = theirs
        self._spell = spell

    def parts_at(self, at: int) -> tuple[Span | None, Span | None]:
        """What stands on both sides at the first token that differs."""
        ours, theirs = self._ours.spans, self._theirs.spans
        own, other = _part_at(ours, at), _part_at(theirs, at)
        if not ours or not theirs:
            return own, other
        near = own or _near(ours, at, other), other or _near(theirs, at, own)
        is_within = own is not None or other is not None
        return near if is_within or self._are_different(*near) else (None, None)

    def change(self, at: int, own: Span | None, other: Span | None) -> Change:
        """What happened there."""
        if own is not None and other is not None:
            return self._by_parts(own, other)
        known = own or other
        return self._by_text(known.start if known else max(0, at - _CONTEXT_TOKENS))

    def _are_different(self, own: Span | None, other: Span | None) -> bool:
        """Whether the next parts differ, so that it is not the template's text that changed."""
        if own is None or other is None:
            return own is not other
        is_same_text = self._text(self._ours, own) == self._text(self._theirs, other)
        return own.part != other.part or not is_same_text

    def _by_text(self, start: int) -> Change:
        end = start + _WINDOW_TOKENS
        return classify(
            self._spell(self._theirs.tokens[start:end].tolist()),
            self._spell(self._ours.tokens[start:end].tolist()),
        )

    def _by_parts(self, own: Span, other: Span) -> Change:
        new, old = self._text(self._ours, own), self._text(self._theirs, other)
        if not _is_same_tool(own.part, other.part):
            comes_later = self._is_after(other, old, self._ours, own)
            came_later = self._is_after(own, new, self._theirs, other)
            if comes_later or came_later:
                if comes_later and came_later:
                    return Change.ORDER
                return Change.INSERTED if comes_later else Change.REMOVED
        if own.part.kind is not other.part.kind:
            later = [span for span in self._ours.spans if span.start > own.start]
            goes_on = any(span.part.kind is other.part.kind for span in later)
            return Change.INSERTED if goes_on else Change.REMOVED
        return classify(old, new)

    def _is_after(self, part: Span, text: str, prompt: Prompt, place: Span) -> bool:
        """Whether a part of one prompt comes after a place in the other."""
        later = [span for span in prompt.spans if span.start > place.start]
        if part.part.kind is PartKind.TOOL:
            return any(_is_same_tool(span.part, part.part) for span in later)
        return len(text) >= _LEAST_TELLING_CHARS and any(
            span.part.kind is part.part.kind and self._text(prompt, span) == text
            for span in later
            if abs((span.end - span.start) - (part.end - part.start)) <= 2
        )

    def _text(self, prompt: Prompt, span: Span) -> str:
        return self._spell(prompt.tokens[span.start : span.end].tolist()).strip()


def _is_same_tool(a: Part, b: Part) -> bool:
    return a.kind is b.kind is PartKind.TOOL and a.name == b.name


def _near(spans: Sequence[Span], at: int, other: Span | None) -> Span | None:
    """The part that stands where there is only the template's text.

    It is the one that just ended, if the other prompt is still in it there; else the next one.
    """
    ended = [span for span in spans if span.end <= at]
    if ended and other is not None and ended[-1].part == other.part:
        return ended[-1]
    return next((span for span in spans if span.start >= at), None)


class Section(Enum):
    """What a user thinks of a prompt as."""

    SYSTEM = "system"
    TOOLS = "tools"
    HISTORY = "history"
    NEW_INPUT = "new input"


@dataclass(frozen=True, slots=True)
class SectionRow:
    """How many tokens a section has, and how many of them were or would be cached."""

    section: Section
    num_tokens: int
    num_cached: int

    @property
    def num_uncached(self) -> int:
        """The rest."""
        return self.num_tokens - self.num_cached


def tabulate(spans: Sequence[Span], num_tokens: int, num_cached: int) -> list[SectionRow]:
    """The tokens of a prompt by section; text of the template counts to the part after it."""
    sizes = dict.fromkeys(Section, 0)
    cached = dict.fromkeys(Section, 0)
    newest = _first_new_message(spans)
    edges = [(_section(span.part, newest), span.end) for span in spans]
    start = 0
    for section, end in [*edges, (Section.NEW_INPUT, num_tokens)]:
        sizes[section] += max(0, end - start)
        cached[section] += max(0, min(end, num_cached) - start)
        start = max(start, end)
    return [SectionRow(section, sizes[section], cached[section]) for section in Section]


def _first_new_message(spans: Sequence[Span]) -> int:
    """The message after the last one of the assistant's that was answered."""
    messages = [span.part for span in spans if span.part.kind is PartKind.MESSAGE]
    answered = [part.idx for part in messages[:-1] if part.name == "assistant"]
    return max(answered, default=-1) + 1


def _section(part: Part, newest: int) -> Section:
    match part.kind:
        case PartKind.SYSTEM:
            return Section.SYSTEM
        case PartKind.TOOL:
            return Section.TOOLS
        case PartKind.MESSAGE:
            return Section.NEW_INPUT if part.idx >= newest else Section.HISTORY
