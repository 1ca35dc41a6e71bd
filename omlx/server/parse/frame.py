"""Tells text from calls that stand between marks, and hands each call to a reader.

Knows nothing about how a call is written.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from omlx.server.parse.calls import Calls
from omlx.server.parse.join import joined
from omlx.server.parse.jsontext import BLANKS
from omlx.server.parse.marks import Marks
from omlx.server.parse.said import Said, Text


class Reader(Protocol):
    """Reads what stands behind one mark: a call, or several."""

    @property
    def is_done(self) -> bool:
        """Nothing more belongs to it."""
        ...

    @property
    def is_bad(self) -> bool:
        """What it took since the last call is none."""
        ...

    @property
    def is_between(self) -> bool:
        """A call has ended, and there is no sign of another."""
        ...

    @property
    def is_unsure(self) -> bool:
        """What it took since the last call is as likely text."""
        ...

    @property
    def hit(self) -> str:
        """The mark that ended it: taken, but not its own."""
        ...

    def take(self, text: str, at: int) -> int:
        """Take from `at`, no further than one beginning or end of a call, return the place."""
        ...

    def finish(self, *, is_cut: bool) -> None:
        """The text has ended (mutates)."""
        ...


@dataclass(frozen=True)
class Layout:
    """Which marks stand around calls, and what reads behind one; a mark "" is the very start."""

    opens: tuple[str, ...]
    read: Callable[[str, Calls], Reader]
    closes: tuple[str, ...] = ()
    # Marks that mean nothing to a reader of the answer.
    dropped: tuple[str, ...] = ()
    # Characters that open a call without a mark, if the answer begins with one.
    bare: str = ""
    marks: Marks = field(init=False)

    def __post_init__(self) -> None:
        """Prepare the search, once for all answers."""
        marks = Marks((*self.opens, *self.closes, *self.dropped))
        object.__setattr__(self, "marks", marks)


class FrameParser:
    """Parses one answer in which calls have a layout; the result doesn't depend on the cuts."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._calls = Calls()
        self._reader: Reader | None = None
        self._mark = ""
        # What the reader took and was not said: text, should it be no call.
        self._raw: list[str] = []
        # Text that may be the beginning of a mark; `_base` is where it begins in all text.
        self._held = ""
        self._base = 0
        # White space that is dropped if a call follows, and where it begins.
        self._blank: list[str] = []
        self._blank_at = 0
        self._is_start = True
        # A call or a dropped mark came before: white space is dropped.
        self._is_fresh = False
        self._owes_close = False
        self._events_before = 0

    def add(self, text: str) -> list[Said]:
        """Take more text, return what is certain (mutates)."""
        data, at = self._held + text, 0
        self._held = ""
        while at < len(data):
            if self._reader is None:
                at = self._outside(data, at)
            else:
                data, at = self._inside(self._reader, data, at)
        self._base += len(data) - len(self._held)
        return self._said()

    def finish(self, *, is_cut: bool) -> list[Said]:
        """Return what was held back, once the text has ended (mutates)."""
        if self._reader is not None:
            self._finish_reader(self._reader, is_cut=is_cut)
        self._say_text(self._held, self._base)
        self._held = ""
        if not self._is_fresh:
            self._flush_blank()
        return self._said()

    def _said(self) -> list[Said]:
        said = joined(self._calls.out)
        self._calls.out.clear()
        return said

    def _outside(self, data: str, at: int) -> int:
        if self._is_start and self._layout.bare:
            start = at + len(data[at:]) - len(data[at:].lstrip(BLANKS))
            self._say_text(data[at:start], self._base + at)
            if start == len(data):
                return start
            at, self._is_start = start, False
            if data[at] in self._layout.bare:
                self._open("")
                return at
        found = self._layout.marks.find(data, at)
        if found is None:
            end = self._layout.marks.unsure_from(data, at)
            self._say_text(data[at:end], self._base + at)
            self._held = data[end:]
            return len(data)
        start, mark = found
        self._say_text(data[at:start], self._base + at)
        self._take_mark(mark, self._base + start)
        return start + len(mark)

    def _take_mark(self, mark: str, at: int) -> None:
        if mark in self._layout.opens:
            self._open(mark)
        elif mark in self._layout.dropped or self._owes_close:
            self._owes_close = False
            self._drop_blank()
        else:
            self._say_text(mark, at)

    def _open(self, mark: str) -> None:
        self._mark = mark
        self._raw = [mark]
        self._reader = self._layout.read(mark, self._calls)
        self._owes_close = False
        self._events_before = self._calls.num_events

    def _inside(self, reader: Reader, data: str, at: int) -> tuple[str, int]:
        """Let the reader take more; returns the data to go on with, and the place in it."""
        start, num_events = at, self._calls.num_events
        at = reader.take(data, at)
        if self._calls.num_events != num_events:
            self._raw.clear()
            self._drop_blank()
        elif not self._calls.is_open:
            self._raw.append(data[start:at])
        if not (reader.is_done or reader.is_bad):
            return data, at
        self._reader = None
        self._owes_close = self._calls.num_events != self._events_before
        if reader.is_bad:
            raw = "".join(self._raw)
            raw = raw[: len(raw) - len(reader.hit)]
            self._say_text(raw, self._base + at - len(reader.hit) - len(raw))
        if not reader.hit:
            return data, at
        self._base += at - len(reader.hit)
        return reader.hit + data[at:], 0

    def _finish_reader(self, reader: Reader, *, is_cut: bool) -> None:
        is_said = self._calls.is_open or reader.is_between
        reader.finish(is_cut=is_cut)
        self._reader = None
        if is_said:
            self._drop_blank()
        elif is_cut and self._mark and not reader.is_unsure:
            self._blank.clear()
        else:
            raw = "".join(self._raw)
            self._say_text(raw, self._base - len(raw))

    def _say_text(self, text: str, at: int) -> None:
        """Say text up to its last character that is not white space."""
        if self._is_fresh:
            size = len(text)
            text = text.lstrip(BLANKS)
            at += size - len(text)
        body = text.rstrip(BLANKS)
        if body:
            self._is_fresh = False
            self._flush_blank()
            self._calls.out.append(Text(body, at))
        if len(body) < len(text):
            if not self._blank:
                self._blank_at = at + len(body)
            self._blank.append(text[len(body) :])

    def _flush_blank(self) -> None:
        if self._blank:
            self._calls.out.append(Text("".join(self._blank), self._blank_at))
            self._blank.clear()

    def _drop_blank(self) -> None:
        self._blank.clear()
        self._is_fresh = True
