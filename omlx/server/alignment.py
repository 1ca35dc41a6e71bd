"""Finds in a rendered prompt the very text that a reply's tokens spell, whole or from its start.

Knows nothing about where tokens are kept. Where a template prints a reply in other words than the
model's, only what comes before the first difference is found, if anything.
"""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol

from omlx.models.segments import Segment, Splice

_ANCHOR_CHARS = 64
_MAX_TRIES = 32  # of places in a reply's text where what the template prints of it may begin
_MAX_CUTS = 256  # of places where a reply may be cut
_EDGE_CHARS = 32  # more than special tokens have
_UNFINISHED = 3  # most tokens that can be a part of one character without its end


class Tokenizer(Protocol):
    """What is needed of a model's text side; see omlx.server.context.ModelText."""

    @property
    def identity(self) -> str: ...
    def encode(self, text: str) -> list[int]: ...
    def spelt(self, ids: Iterable[int]) -> list[bytes] | None: ...
    def is_special(self, text: str) -> bool: ...


@dataclass(frozen=True, slots=True)
class Known:
    """A reply's tokens and the text that they spell; `place` tells what it was the reply to."""

    place: bytes
    text: str
    segment: Segment


def known(text: Tokenizer, place: bytes, ids: Sequence[int]) -> Known | None:
    """A reply's tokens with what they spell; None where that is not known to the byte.

    Tokens of a last character that is not finished are left out.
    """
    spelt = text.spelt(ids)
    if spelt is None or not all(spelt):
        return None
    for length in range(len(spelt), max(len(spelt) - _UNFINISHED - 1, 0), -1):
        try:
            whole = b"".join(spelt[:length]).decode()
        except UnicodeDecodeError:
            continue
        ends = array("I", accumulate(map(_num_chars, spelt[:length])))
        starts = array("I", map(_start, spelt[:length], (0, *ends[:-1])))
        return Known(place, whole, Segment(array("I", ids[:length]), starts, ends))
    return None


def _num_chars(spelt: bytes) -> int:
    """How many characters begin in a token."""
    return len(spelt) if spelt.isascii() else sum(byte & 0xC0 != 0x80 for byte in spelt)


def _start(spelt: bytes, before: int) -> int:
    """The character that a token begins with or in, after so many that have begun."""
    return before - (spelt[0] & 0xC0 == 0x80)


class Aligner:
    """Looks for replies in one prompt after the other; for one thread."""

    def __init__(self, text: Tokenizer) -> None:
        self._text = text
        self._ends: tuple[str, ...] = ()  # special tokens that follow replies

    def find(self, prompt: str, core: str, at: int, reply: Known) -> Splice | None:
        """The stretch of `prompt` that a reply's tokens are, whose `core` is printed at `at`."""
        anchor = core[:_ANCHOR_CHARS]
        if not anchor or not prompt.startswith(anchor, at):
            return None
        match = _match(prompt, anchor, at, reply.text)
        if match is None and reply.text.startswith(" "):
            reply = _without_space(reply)
            match = _match(prompt, anchor, at, reply.text)
            if match is not None and not self._adds_space(prompt, *match):
                return None
        if match is None:
            return None
        start, shared = match
        whole = start + len(reply.text)
        if shared == len(reply.text) and self._may_end(prompt, whole):
            return Splice(start, whole, reply.segment)
        return self._cut(prompt, start, reply, (at - start + len(core), shared))

    def _cut(self, prompt: str, start: int, reply: Known, limits: tuple[int, int]) -> Splice | None:
        """The longest beginning of a reply that can be taken, within the characters `shared`.

        It ends with the text `after` which calls begin, or before a space.
        """
        after, shared = limits
        segment = reply.segment
        last = bisect_right(segment.starts, shared) - 1
        for idx in range(last, max(last - _MAX_CUTS, 0), -1):
            char = segment.starts[idx]
            if char != after and not reply.text[char : char + 1].isspace():
                continue
            is_within = char < segment.ends[idx - 1]
            if is_within or not self._may_end(prompt, start + char):
                continue
            part = Segment(segment.ids[:idx], segment.starts[:idx], segment.ends[:idx])
            return Splice(start, start + char, part)
        return None

    def _may_end(self, prompt: str, end: int) -> bool:
        """Whether what follows spells itself when it is encoded by itself.

        Some tokenizers put a space before a text; what a special token begins is none.
        """
        return prompt.startswith(self._ends, end) or self._spells_itself(
            prompt[end : end + _EDGE_CHARS]
        )

    def _adds_space(self, prompt: str, start: int, length: int) -> bool:
        """Whether a space comes before a text where it is encoded after what is before it."""
        edge = prompt[start : start + min(length, _EDGE_CHARS)]
        ids = self._text.encode(prompt[max(start - _EDGE_CHARS, 0) : start] + edge)
        return b"".join(self._text.spelt(ids) or ()).endswith(f" {edge}".encode())

    def _spells_itself(self, edge: str) -> bool:
        at = 0
        for spelt in self._text.spelt(self._text.encode(edge)) or ():
            token = spelt.decode("utf-8", "replace")
            if self._text.is_special(token):
                self._ends += () if at else (token,)
                break
            if not edge.encode().startswith(spelt, at):
                return False
            at += len(spelt)
        return True


def _without_space(reply: Known) -> Known:
    """A reply without the space that its text begins with, but with its tokens."""
    starts, ends = (
        array("I", (max(edge - 1, 0) for edge in edges))
        for edges in (reply.segment.starts, reply.segment.ends)
    )
    segment = Segment(reply.segment.ids, starts, ends)
    return Known(reply.place, reply.text[1:], segment)


def _match(prompt: str, anchor: str, at: int, text: str) -> tuple[int, int] | None:
    """Where in a prompt a reply's text may begin, and how much of it is there: the best match."""
    found: tuple[int, int] | None = None
    offset = text.find(anchor)
    for _ in range(_MAX_TRIES):
        if not 0 <= offset <= at:
            break
        start = at - offset
        shared = num_shared(prompt, start, text)
        if shared == len(text):
            return start, shared
        if found is None and shared > offset:
            found = start, shared
        offset = text.find(anchor, offset + 1)
    return found


def num_shared(prompt: str, start: int, text: str) -> int:
    """How many characters of a text stand in a prompt from `start` on."""
    if prompt.startswith(text, start):
        return len(text)
    low, high = 0, len(text)
    while high - low > 1:
        middle = (low + high) // 2
        if prompt.startswith(text[low:middle], start + low):
            low = middle
        else:
            high = middle
    return low
