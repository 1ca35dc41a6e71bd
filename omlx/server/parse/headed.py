"""Reads calls whose name stands before the JSON of their arguments: Mistral's and DeepSeek's.

Knows nothing about the mark before a call.
"""

import re
from enum import Enum, auto

from omlx.server.parse.calls import Arguments, Calls, to_next_event
from omlx.server.parse.frame import Reader
from omlx.server.parse.jsoncalls import JsonCalls
from omlx.server.parse.jsontext import BLANKS, JsonText

TOOL_CALLS, ARGS, CALL_ID = "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"
_TAGS = (TOOL_CALLS, ARGS, CALL_ID)
_MAX_HEAD = 512
_NAME = re.compile(r"[\w.-]")
_FENCED = re.compile(r"\s*(\S+)\s*\n\s*(?:```(?:json)?\s*)?")


class _Place(Enum):
    START = auto()
    NAME = auto()
    TAG = auto()
    ID = auto()
    ARGUMENTS = auto()
    BEHIND = auto()


class MistralCalls:
    """Reads `name[ARGS]{...}`, `name[CALL_ID]id[ARGS]{...}`, several; or JSON calls."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._place = _Place.START
        self._name = ""
        self._head: list[str] = []
        self._tag = ""
        self._json: JsonCalls | None = None
        self._arguments: Arguments | None = None
        # A word behind a call may be the name of another.
        self.is_unsure = False
        self.is_done = False
        self.is_bad = False
        self.hit = ""

    @property
    def is_between(self) -> bool:
        """A call has ended, and there is no sign of another."""
        return self._json.is_between if self._json else self._place is _Place.BEHIND

    def take(self, text: str, at: int) -> int:
        """Take from `at`, no further than one beginning or end of a call (mutates)."""
        return to_next_event(self, self._calls, self._take, text, at)

    def finish(self, *, is_cut: bool) -> None:
        """The text has ended: mend a call that was said, unless it was cut (mutates)."""
        if self._json is not None:
            self._json.finish(is_cut=is_cut)
        elif self._arguments is not None:
            self._arguments.finish(is_cut=is_cut)

    def _take(self, text: str, at: int) -> int:
        if self._json is not None:
            at = self._json.take(text, at)
            self.is_done, self.is_bad = self._json.is_done, self._json.is_bad
            self.hit = self._json.hit
            return at
        if self._arguments is not None:
            return self._take_arguments(self._arguments, text, at)
        if self._place is _Place.TAG:
            return self._take_tag(text[at], at)
        if self._place is _Place.ID:
            return self._take_id(text[at], at)
        if text[at] in BLANKS:
            self._name = self._name or "".join(self._head)
            return at + 1
        return self._take_head(text, at)

    def _take_head(self, text: str, at: int) -> int:
        """Take a name up to what tells that its arguments come."""
        char = text[at]
        if self._place is _Place.START and char in "[{":
            self._json = JsonCalls(self._calls, ends=(TOOL_CALLS,))
        elif char == "[":
            self._name = self._name or "".join(self._head)
            self._tag, self._place = "", _Place.TAG
        elif self._place in (_Place.NAME, _Place.ARGUMENTS) and char == "{":
            self._name = self._name or "".join(self._head)
            self._begin()
        elif _NAME.match(char) and not self._name and self._is_name():
            self._head.append(char)
            self._place = _Place.NAME
            return at + 1
        elif self._place is _Place.BEHIND:
            self.is_done = True
        else:
            self.is_bad = True
        return at

    def _is_name(self) -> bool:
        return self._place is not _Place.ARGUMENTS and len(self._head) < _MAX_HEAD

    def _take_tag(self, char: str, at: int) -> int:
        self._tag += char
        if not any(tag.startswith(self._tag) for tag in _TAGS):
            self.is_bad = True
            return at
        if self._tag in _TAGS:
            if self._tag == TOOL_CALLS:
                self.hit = TOOL_CALLS
                self.is_done, self.is_bad = not self._name, bool(self._name)
            elif not self._name:
                self.is_bad = True
            else:
                self._place = _Place.ARGUMENTS if self._tag == ARGS else _Place.ID
        return at + 1

    def _take_id(self, char: str, at: int) -> int:
        if char == "[":
            self._tag, self._place = "", _Place.TAG
            return at
        return at + 1

    def _begin(self) -> None:
        self._calls.begin(self._name)
        self._arguments = Arguments(self._calls, JsonText(ends=(TOOL_CALLS,)))
        self._name = ""
        self._head.clear()

    def _take_arguments(self, arguments: Arguments, text: str, at: int) -> int:
        at = arguments.take(text, at)
        if arguments.is_done:
            self._arguments = None
            self._place, self.is_unsure = _Place.BEHIND, True
            self.hit, self.is_done = arguments.hit, bool(arguments.hit)
        return at


SEP = "<｜tool▁sep｜>"


class DeepSeekCall:
    """Reads `function<sep>NAME`, a fence and JSON; or, of later models, `NAME<sep>{...}`."""

    def __init__(self, calls: Calls, *, ends: tuple[str, ...]) -> None:
        self._calls, self._ends = calls, ends
        self._head = ""
        self._second = ""
        self._is_second = False
        self._is_begun = False
        self._arguments: Arguments | None = None
        self.is_between = False
        self.is_unsure = False
        self.is_done = False
        self.is_bad = False
        self.hit = ""

    def take(self, text: str, at: int) -> int:
        """Take from `at`, no further than one beginning or end of a call (mutates)."""
        while at < len(text) and not self.is_done and not self.is_bad:
            if self._arguments is not None:
                return self._take_arguments(self._arguments, text, at)
            if self.is_between:
                at = self._take_fence(text[at], at)
            elif self._is_second and text[at] == "{":
                self._begin()
                return at
            else:
                at = self._take_head(text[at], at)
        return at

    def finish(self, *, is_cut: bool) -> None:
        """The text has ended: mend a call that was said, unless it was cut (mutates)."""
        if self._arguments is not None:
            self._arguments.finish(is_cut=is_cut)

    def _take_head(self, char: str, at: int) -> int:
        if self._is_second:
            self._second += char
        elif self._head.endswith(SEP[:-1]) and char == SEP[-1]:
            self._head, self._is_second = self._head[: 1 - len(SEP)], True
        else:
            self._head += char
        part = self._second if self._is_second else self._head
        ended = [mark for mark in self._ends if part.endswith(mark)]
        if ended:
            self.hit = ended[0]
        self.is_bad = bool(ended) or len(part) > _MAX_HEAD
        return at + 1

    def _begin(self) -> None:
        if not self._second.strip():
            name = self._head.strip()
        else:
            found = _FENCED.fullmatch(self._second)
            name = found.group(1) if found else ""
        if not name:
            self.is_bad = True
            return
        self._calls.begin(name)
        self._arguments = Arguments(self._calls, JsonText(ends=self._ends))

    def _take_arguments(self, arguments: Arguments, text: str, at: int) -> int:
        at = arguments.take(text, at)
        if arguments.is_done:
            self._arguments = None
            self.is_between = True
            self.hit, self.is_done = arguments.hit, bool(arguments.hit)
        return at

    def _take_fence(self, char: str, at: int) -> int:
        if char in BLANKS or char in "`}":
            return at + 1
        self.is_done = True
        return at


def mistral_reader(mark: str, calls: Calls) -> Reader:
    """What reads behind Mistral's mark."""
    return MistralCalls(calls)
