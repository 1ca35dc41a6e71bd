"""Text that comes in pieces, read as if it were whole: look ahead, take up to a mark, wait.

Knows nothing about calls or dialects; a reader is a generator that yields None to wait for more.
"""

from collections.abc import Callable, Generator
from typing import TypeVar

from omlx.server.parse.marks import Marks
from omlx.server.parse.said import CallArguments, Said

T = TypeVar("T")
# A reader: yields what is said, or None when it needs more text; returns what it found.
Steps = Generator[Said | None, None, T]
# A part of one that says nothing itself.
Waits = Generator[None, None, T]
# Between two marks; more than templates write, and little enough to be held.
_SPACE_LIMIT = 64


class Source:
    """The text of one answer: a place up to which it was taken, and one further on for looking.

    Every method except `feed` and `end` is for readers; those that wait are generators.
    """

    def __init__(self) -> None:
        self._text = ""
        self._taken = 0
        self._look = 0
        self.at = 0
        self.is_ended = False
        self._is_cut = False

    @property
    def is_over(self) -> bool:
        """The text has ended, and not because a limit cut it."""
        return self.is_ended and not self._is_cut

    def feed(self, text: str) -> None:
        """Take more text (mutates)."""
        self._text = self._text[self._taken :] + text
        self._look -= self._taken
        self._taken = 0

    def end(self, *, is_cut: bool) -> None:
        """No more text will come (mutates)."""
        self.is_ended, self._is_cut = True, is_cut

    def commit(self) -> str:
        """Take, and return, what was looked at (mutates)."""
        text = self._text[self._taken : self._look]
        self.at += len(text)
        self._taken = self._look
        return text

    def skip(self, size: int) -> None:
        """Take `size` characters that were seen (mutates)."""
        self._look = self._taken + size
        self.commit()

    def rewind(self) -> None:
        """Look again from the place up to which the text was taken (mutates)."""
        self._look = self._taken

    def mark(self) -> int:
        """How far was looked; to come `back` to."""
        return self._look - self._taken

    def back(self, mark: int) -> None:
        """Look again from a place that `mark` told (mutates)."""
        self._look = self._taken + mark

    def step(self, marks: Marks, *, is_last: bool) -> tuple[str, str | None]:
        """Take what is certain before the first mark; if it is there, look past it (mutates).

        `is_last`: the end of the text is no beginning of a mark.
        """
        found = marks.find(self._text, self._taken)
        if found:
            end = found[0]
        elif is_last:
            end = len(self._text)
        else:
            end = marks.unsure_from(self._text, self._taken)
        self._look = end
        text = self.commit()
        if found:
            self._look += len(found[1])
        return text, found[1] if found else None

    def literal(self, marks: Marks) -> Waits[str | None]:
        """Look past one of the marks if one is here."""
        while True:
            for mark in marks.all:
                if self._text.startswith(mark, self._look):
                    self._look += len(mark)
                    return mark
            rest = self._text[self._look : self._look + 64]
            if self.is_over or not any(mark.startswith(rest) for mark in marks.all):
                return None
            yield None

    def space(self) -> Waits[bool]:
        """Look past white space; False where there is too much of it."""
        start = self._look - self._taken
        while True:
            while self._look < len(self._text) and self._text[self._look].isspace():
                if self._look - self._taken - start >= _SPACE_LIMIT:
                    return False
                self._look += 1
            if self._look < len(self._text) or self.is_over:
                return True
            yield None

    def upto(self, marks: Marks, limit: int) -> Waits[tuple[str, str] | None]:
        """Look past at most `limit` characters and the mark after them; return both."""
        while True:
            found = marks.find(self._text, self._look)
            if found and found[0] - self._look <= limit:
                text = self._text[self._look : found[0]]
                self._look = found[0] + len(found[1])
                return text, found[1]
            if found or self.is_over or len(self._text) - self._look > limit + 64:
                return None
            yield None

    def past(self, marks: Marks) -> Waits[str | None]:
        """Take everything up to a mark, look past that; None if the text ends before."""
        while True:
            _, mark = self.step(marks, is_last=self.is_over)
            if mark or self.is_over:
                return mark
            yield None

    def some(self, size: int) -> Waits[str]:
        """Look past `size` characters, or what there is if the text ends before."""
        while len(self._text) - self._look < size and not self.is_over:
            yield None
        start = self._look
        self._look = min(start + size, len(self._text))
        return self._text[start : self._look]

    def blank(self) -> Waits[str]:
        """Take white space, however much of it there is."""
        taken: list[str] = []
        while True:
            rest = self._text[self._taken : self._taken + _SPACE_LIMIT]
            size = len(rest) - len(rest.lstrip())
            self.skip(size)
            taken.append(rest[:size])
            if size < len(rest) or (not rest and self.is_over):
                return "".join(taken)
            if not rest:
                yield None

    def word(self, stops: frozenset[str], limit: int) -> Waits[str]:
        """Take characters up to one of `stops`, at most `limit`."""
        while True:
            end = self._taken
            while end < len(self._text) and self._text[end] not in stops:
                if end - self._taken >= limit:
                    break
                end += 1
            if end < len(self._text) or self.is_over:
                self._look = end
                return self.commit()
            yield None


class Reading:
    """A `Parser` made of a reader."""

    def __init__(self, read: Callable[[Source], Steps[None]]) -> None:
        self._source = Source()
        self._steps = read(self._source)

    def add(self, text: str) -> list[Said]:
        """Take more text, return what is certain (mutates)."""
        if not text:
            return []
        self._source.feed(text)
        return self._run()

    def finish(self, *, is_cut: bool) -> list[Said]:
        """Return what was held back, once the text has ended (mutates)."""
        self._source.end(is_cut=is_cut)
        return self._run()

    def _run(self) -> list[Said]:
        said: list[Said] = []
        for one in self._steps:
            if one is None:
                break
            if not (isinstance(one, CallArguments) and not one.text):
                said.append(one)
        return said
