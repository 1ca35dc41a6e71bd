"""Says calls: numbers them, and reads one call that stands as a JSON object.

Knows nothing about the markup around it.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from omlx.server.parse.jsontext import BLANKS, JsonText, unquoted
from omlx.server.parse.said import CallArguments, CallBegan, CallEnded, Said


class Calls:
    """The calls of one answer, as they are said."""

    def __init__(self) -> None:
        self.out: list[Said] = []
        self.is_open = False
        # Changes with each beginning and each end.
        self.num_events = 0
        self._index = -1

    def begin(self, name: str) -> None:
        """Say that a call of the tool `name` begins (mutates)."""
        assert not self.is_open
        self._index += 1
        self._turn(is_open=True)
        self.out.append(CallBegan(self._index, name))

    def arguments(self, text: str) -> None:
        """Say more of the arguments (mutates)."""
        assert self.is_open
        if text:
            self.out.append(CallArguments(self._index, text))

    def end(self) -> None:
        """Say that the call has all of its arguments (mutates)."""
        assert self.is_open
        self._turn(is_open=False)
        self.out.append(CallEnded(self._index))

    def _turn(self, *, is_open: bool) -> None:
        self.is_open = is_open
        self.num_events += 1


class Takes(Protocol):
    """What reads calls: it has an end, or finds that there is none."""

    is_done: bool
    is_bad: bool


def to_next_event(
    reader: Takes, calls: Calls, step: Callable[[str, int], int], text: str, at: int
) -> int:
    """Have a reader take `text` from `at`, step by step, no further than one beginning or end of a
    call; returns the place."""
    num_events = calls.num_events
    while at < len(text) and not reader.is_done and not reader.is_bad:
        at = step(text, at)
        if calls.num_events != num_events:
            break
    return at


class Arguments:
    """The arguments of a call whose name stood before them: an object, said as it arrives."""

    def __init__(self, calls: Calls, value: JsonText) -> None:
        self._calls = calls
        self._value = value
        self.is_done = False
        self.hit = ""

    def take(self, text: str, at: int) -> int:
        """Take from `at` up to the end of the object, return the place behind (mutates)."""
        at = self._value.take(text, at)
        self._calls.arguments(self._value.drain())
        if self._value.is_done:
            self.hit = self._value.hit
            self._end()
        return at

    def finish(self, *, is_cut: bool) -> None:
        """The text has ended: mend the arguments, unless they were cut (mutates)."""
        if not is_cut:
            self._value.close()
            self._calls.arguments(self._value.drain())
            self._end()

    def _end(self) -> None:
        self._calls.end()
        self.is_done = True


@dataclass(frozen=True, slots=True)
class CallKeys:
    """Under which keys a call has its parts; a strict one has no other keys, and arguments."""

    names: frozenset[str] = frozenset({"name", "function"})
    arguments: frozenset[str] = frozenset({"arguments", "parameters"})
    others: frozenset[str] = frozenset({"id", "type", "index"})
    is_strict: bool = False

    def has(self, key: str) -> bool:
        """Whether a call may have this key."""
        return not self.is_strict or key in self.names | self.arguments | self.others


class _Place(Enum):
    KEY = auto()
    COLON = auto()
    VALUE = auto()


class _Role(Enum):
    """What a value inside of a call is for."""

    KEY = auto()
    NAME = auto()
    ARGUMENTS = auto()
    STRING = auto()  # arguments as a string that holds JSON
    NOTHING = auto()  # arguments that can only stand for none
    OTHER = auto()


class _Inner:
    """An object as JSON inside of a JSON string, with the quotes of the string."""

    def __init__(self) -> None:
        self._value = JsonText()
        self._has_quote = False
        self._is_begun = False
        self.is_bad = False

    def take(self, text: str, *, is_over: bool) -> str:
        """Take more of the string, return more of the object (mutates)."""
        if not self._has_quote:
            self._has_quote = bool(text)
            text = text[1:]
        inside = unquoted(text[:-1] if is_over else text)
        if not self._is_begun:
            inside = inside.lstrip(BLANKS)
            self._is_begun = bool(inside)
            self.is_bad = bool(inside) and inside[0] != "{"
        if not self.is_bad:
            self._value.take(inside, 0)
        return self._value.drain()

    def close(self) -> str:
        """The string has ended: return the rest of the object, an empty one if none (mutates)."""
        self._value.close()
        return self._value.drain() if self._is_begun else "{}"


class CallObject:
    """One call, `{"name": ..., "arguments": {...}}`, in either order.

    `is_bad` means that it is none and that nothing was said; `hit` is the mark that ended it.
    """

    def __init__(self, calls: Calls, keys: CallKeys, ends: Sequence[str]) -> None:
        self._calls, self._keys, self._ends = calls, keys, tuple(ends)
        self._longest_end = max(map(len, ends), default=0)
        self._place = _Place.KEY
        self._depth = -1
        self._key = ""
        self._name = ""
        self._value: JsonText | None = None
        self._role = _Role.OTHER
        self._read: list[str] = []
        self._inner = _Inner()
        # What of the arguments came before the name.
        self._early: list[str] = []
        self._has_arguments = False
        self._odd = ""
        self.is_done = False
        self.is_bad = False
        self.hit = ""

    def take(self, text: str, at: int) -> int:
        """Take from `at` up to the end, or to where a call is said, return the place (mutates)."""
        return to_next_event(self, self._calls, self._take, text, at)

    def _take(self, text: str, at: int) -> int:
        return self._take_value(text, at) if self._value else self._take_mark(text, at)

    def finish(self, *, is_cut: bool) -> None:
        """The text has ended: mend a call that was said, unless it was cut (mutates)."""
        if not is_cut and self._calls.is_open:
            self._mend()

    def _mend(self) -> None:
        if self._value is not None:
            self._value.close()
            self._pour()
            self._end_value()
        self._calls.end()
        self.is_done = True

    def _take_mark(self, text: str, at: int) -> int:
        char = text[at]
        if char in BLANKS:
            return at + 1
        if self._place is _Place.VALUE:
            return self._begin_value(char, at)
        if self._place is _Place.COLON and char == ":":
            self._place = _Place.VALUE
            return at + 1
        if self._place is _Place.KEY:
            if self._depth < 0:
                self._depth, self.is_bad = 0, char != "{"
                return at + 1
            if char in "\"'":
                self._read_value(_Role.KEY)
                return at
            if char == ",":
                return at + 1
            if char == "}":
                return self._end_object(at)
        return self._take_odd(char, at)

    def _take_odd(self, char: str, at: int) -> int:
        """Pass over what does not belong here, up to a mark; before anything is said, give up."""
        if not self._calls.is_open:
            self.is_bad = True
            return at
        self._odd = (self._odd + char)[-self._longest_end :] if self._longest_end else ""
        for mark in self._ends:
            if self._odd.endswith(mark):
                self.hit = mark
                self._mend()
        return at + 1

    def _read_value(self, role: _Role) -> None:
        self._role, self._value = role, JsonText(ends=self._ends)
        self._read.clear()

    def _begin_value(self, char: str, at: int) -> int:
        if self._key in self._keys.names and not self._name:
            if char == "{":
                self._depth += 1
                self._place = _Place.KEY
                return at + 1
            self._read_value(_Role.NAME)
            self.is_bad = char not in "\"'"
        elif self._key in self._keys.arguments and not self._has_arguments:
            self._has_arguments = True
            self._read_value(
                _Role.ARGUMENTS if char == "{"
                else _Role.STRING if char in "\"'"
                else _Role.NOTHING
            )  # fmt: skip
        elif char in ",}":
            self._place = _Place.KEY
        else:
            self._read_value(_Role.OTHER)
        return at

    def _take_value(self, text: str, at: int) -> int:
        assert self._value is not None
        at = self._value.take(text, at)
        self._pour()
        if self.is_bad:
            return at
        if self._value.hit:
            self.hit = self._value.hit
            if self._calls.is_open:
                self._mend()
            else:
                self.is_bad = True
            return at
        if self._value.is_done:
            self._end_value()
        return at

    def _pour(self) -> None:
        """Pass on what the value became."""
        assert self._value is not None
        text = self._value.drain()
        if self._role is _Role.ARGUMENTS:
            self._say(text)
        elif self._role is _Role.STRING:
            self._say(self._inner.take(text, is_over=self._value.is_done))
            self.is_bad = self._inner.is_bad
        elif self._role is not _Role.OTHER:
            self._read.append(text)

    def _say(self, text: str) -> None:
        if not text:
            return
        if not self._name:
            self._early.append(text)
            return
        if not self._calls.is_open:
            self._calls.begin(self._name)
        self._calls.arguments("".join((*self._early, text)))
        self._early.clear()

    def _end_value(self) -> None:
        role, self._value = self._role, None
        if role is _Role.KEY:
            self._key = str(json.loads("".join(self._read)))
            self._place = _Place.COLON
            self.is_bad = not self._calls.is_open and not self._keys.has(self._key)
            return
        self._place = _Place.KEY
        if role is _Role.NAME:
            self._name = str(json.loads("".join(self._read))).strip()
            self.is_bad = not self._name
            if self._early and self._name:
                early = "".join(self._early)
                self._early.clear()
                self._say(early)
        elif role is _Role.STRING:
            self._say(self._inner.close())
        elif role is _Role.NOTHING:
            self.is_bad = json.loads("".join(self._read)) not in (None, [])
            if not self.is_bad:
                self._say("{}")

    def _end_object(self, at: int) -> int:
        self._depth -= 1
        if self._depth >= 0:
            return at + 1
        if not self._name or (self._keys.is_strict and not self._has_arguments):
            self.is_bad = True
            return at
        if not self._calls.is_open:
            self._say("{}")
        self._calls.end()
        self.is_done = True
        return at + 1
