"""Tells what a model thinks from what it answers, by the marks around the thinking.

Knows nothing about calls; its result does not depend on how the text was cut.
"""

from dataclasses import dataclass

from omlx.server.parse.jsontext import BLANKS
from omlx.server.parse.marks import Marks
from omlx.server.parse.said import Reasoning, Said, Text


@dataclass(frozen=True, slots=True)
class ReasoningMarks:
    """The marks around thinking; `is_always` is a model that thinks without an opening mark."""

    name: str
    opens: tuple[str, ...]
    closes: tuple[str, ...]
    is_always: bool = False
    # Special tokens inside of marks that are made of several tokens.
    parts: tuple[str, ...] = ()

    def opens_in(self, prompt: str) -> bool:
        """Whether a rendered prompt ends behind an opening mark, so that thinking follows."""
        return self.is_always or prompt.rstrip(BLANKS).endswith(self.opens)


def _pair(name: str, opening: str, closing: str) -> ReasoningMarks:
    return ReasoningMarks(name, (opening,), (closing,))


REASONING = (
    _pair("think", "<think>", "</think>"),
    ReasoningMarks("always_think", ("<think>",), ("</think>",), is_always=True),
    _pair("thinking", "<thinking>", "</thinking>"),
    _pair("cohere", "<|START_THINKING|>", "<|END_THINKING|>"),
    _pair("mistral", "[THINK]", "[/THINK]"),
    _pair("seed", "<seed:think>", "</seed:think>"),
    _pair("longcat", "<longcat_think>", "</longcat_think>"),
    _pair("think_pipes", "<|think:start|>", "<|think:end|>"),
    ReasoningMarks("gemma", ("<|channel>thought",), ("<channel|>",), parts=("<|channel>",)),
    ReasoningMarks(
        "xtml",
        ("<|open|>think<|sep|>",),
        ("<|close|>think<|sep|>",),
        parts=("<|open|>", "<|close|>", "<|sep|>"),
    ),
    ReasoningMarks(
        "granite",
        ("Here is my thought process:", "Here's my thought process:"),
        ("Here is my response:", "Here's my response:"),
    ),
)


class ReasoningSplitter:
    """Splits one answer into Reasoning and Text; white space at the marks is dropped.

    Thinking begins where no text came before it, so that an answer may name the marks.
    """

    def __init__(self, marks: ReasoningMarks, *, is_open: bool = False) -> None:
        self._opens = marks.opens
        self._inside = Marks((*marks.opens, *marks.closes))
        self._outside = Marks(marks.opens)
        self._is_open = is_open or marks.is_always
        # Nothing but white space came since the start or the last mark.
        self._is_blank = True
        self._is_answer = False
        self._drops_blank = self._is_open
        self._held = ""
        self._base = 0
        # White space that is dropped if a mark follows, and where it begins.
        self._gap: list[str] = []
        self._gap_at = 0
        self._out: list[Said] = []

    def add(self, text: str) -> list[Said]:
        """Take more text, return what is certain (mutates)."""
        data, at = self._held + text, 0
        self._held = ""
        while at < len(data):
            if self._is_answer:
                self._out.append(Text(data[at:], self._base + at))
                at = len(data)
            else:
                at = self._inside_of(data, at) if self._is_open else self._before(data, at)
        self._base += len(data) - len(self._held)
        return self._said()

    def finish(self) -> list[Said]:
        """Return what was held back, once the text has ended (mutates)."""
        self._say(self._held, self._base)
        self._held = ""
        if not (self._is_blank and self._drops_blank):
            self._flush_gap()
        return self._said()

    def _said(self) -> list[Said]:
        said, self._out = self._out, []
        return said

    def _before(self, data: str, at: int) -> int:
        """Where an opening mark or the answer can come; blanks before are kept for the answer."""
        start = at
        while start < len(data) and data[start] in BLANKS:
            start += 1
        self._say(data[at:start], self._base + at)
        if start == len(data):
            return start
        found = self._outside.find(data, start)
        if found is not None and found[0] == start:
            self._turn(is_open=True)
            return start + len(found[1])
        if found is None and self._outside.unsure_from(data, start) == start:
            self._held = data[start:]
            return len(data)
        if self._drops_blank:
            self._gap.clear()
        self._flush_gap()
        self._is_answer = True
        return start

    def _inside_of(self, data: str, at: int) -> int:
        found = self._inside.find(data, at)
        if found is None:
            end = self._inside.unsure_from(data, at)
            self._say(data[at:end], self._base + at)
            self._held = data[end:]
            return len(data)
        start, mark = found
        self._say(data[at:start], self._base + at)
        if mark not in self._opens:
            self._turn(is_open=False)
        elif not self._is_blank:
            self._say(mark, self._base + start)
        return start + len(mark)

    def _turn(self, *, is_open: bool) -> None:
        self._gap.clear()
        self._is_open = is_open
        self._is_blank = self._drops_blank = True

    def _say(self, text: str, at: int) -> None:
        """Say text up to its last character that is not white space."""
        body = text.rstrip(BLANKS)
        if body and self._is_blank and self._drops_blank:
            self._gap.clear()
            body = body.lstrip(BLANKS)
            at += len(text.rstrip(BLANKS)) - len(body)
        if body:
            self._is_blank = False
            self._flush_gap()
            self._out.append(Reasoning(body) if self._is_open else Text(body, at))
        rest = text[len(text.rstrip(BLANKS)) :]
        if rest:
            if not self._gap:
                self._gap_at = at + len(body)
            self._gap.append(rest)

    def _flush_gap(self) -> None:
        if self._gap:
            gap = "".join(self._gap)
            self._out.append(Reasoning(gap) if self._is_open else Text(gap, self._gap_at))
            self._gap.clear()
