"""Turns what should be JSON into JSON, as it arrives; what comes out can always be completed.

Knows nothing about calls or the markup around them.
"""

import json
import re
from collections.abc import Sequence
from enum import Enum, auto

BLANKS = " \t\r\n"
_MAX_DEPTH = 200
_MAX_NUMBER = 1000
_PLAIN = re.compile(r"[^\"'\\\x00-\x1f]+")
_BARE = re.compile(r"[^\s,:{}\[\]\"']+")
_BARE_KEYWORD = re.compile(r"[^\s,:{}\[\]\"'()=]+")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_HEX = frozenset("0123456789abcdefABCDEF")
_HEX_DIGITS = {"u": 4, "x": 2}
_LITERALS = {
    "true": "true", "True": "true", "false": "false", "False": "false",
    "null": "null", "None": "null", "undefined": "null", "NaN": "null", "nan": "null",
}  # fmt: skip


def quoted(text: str) -> str:
    """A text as it stands inside of a JSON string, without the quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def unquoted(text: str) -> str:
    """The text that a piece from the inside of a JSON string means; the piece has whole escapes."""
    return str(json.loads(f'"{text}"'))


class StringText:
    """The inside of one string in either kind of quotes becoming that of a JSON string."""

    def __init__(self, quote: str) -> None:
        self._quote = quote
        self._escape = ""
        # The first half of a pair of \u escapes: alone it is no character.
        self._half = ""
        self.is_done = False

    def take(self, text: str, at: int, out: list[str]) -> int:
        """Take from `at` up to the closing quote, return the place behind (mutates)."""
        while at < len(text):
            if self._escape:
                at = self._take_escape(text, at, out)
            elif run := _PLAIN.match(text, at):
                self._say(run.group(), out)
                at = run.end()
            else:
                char, at = text[at], at + 1
                if char == self._quote:
                    self.close(out)
                    return at
                if char == "\\":
                    self._escape = char
                else:
                    self._say(quoted(char), out)
        return at

    def close(self, out: list[str]) -> None:
        """End the string here, an escape that is not whole is left out (mutates)."""
        self._say("", out)
        self._escape = ""
        self.is_done = True

    def _say(self, piece: str, out: list[str]) -> None:
        if self._half:
            out.append("\\ufffd")
            self._half = ""
        out.append(piece)

    def _take_escape(self, text: str, at: int, out: list[str]) -> int:
        char = text[at]
        if len(self._escape) == 1:
            if char in _HEX_DIGITS:
                self._escape += char
                return at + 1
            if char in '"\\/bfnrt':
                self._say(f"\\{char}", out)
            elif char in "'\n":
                self._say(quoted(char), out)
            else:
                self._say(f"\\\\{quoted(char)}", out)
            self._escape = ""
            return at + 1
        if char not in _HEX:
            self._say(quoted(self._escape), out)
            self._escape = ""
            return at
        self._escape += char
        if len(self._escape) == 2 + _HEX_DIGITS[self._escape[1]]:
            self._say_code(int(self._escape[2:], 16), out)
            self._escape = ""
        return at + 1

    def _say_code(self, code: int, out: list[str]) -> None:
        escape = f"\\u{code:04x}" if self._escape[1] == "x" else self._escape
        if 0xD800 <= code < 0xDC00:
            self._say("", out)
            self._half = escape
        elif 0xDC00 <= code < 0xE000:
            out.append(self._half + escape if self._half else "\\ufffd")
            self._half = ""
        else:
            self._say(escape, out)


class _Place(Enum):
    ITEM = auto()  # before a key of an object or a value of an array, or behind one
    COLON = auto()  # behind a key
    VALUE = auto()  # behind a colon, or at the very start


class _Container:
    def __init__(self, closer: str, written: str) -> None:
        self.closer = closer
        self.written = written
        self.has_items = False


_CONTAINERS = {"{": ("}", "}"), "[": ("]", "]"), "(": (")", "]")}


class JsonText:
    """One value becoming JSON, mended where it is not: quotes, commas, literals, brackets.

    It ends with the value, or at one of `ends` that stands where no string is open; then `hit` is
    the mark. With `is_keywords` it is the inside of a Python call's brackets, `a=1, b="x")`, and
    becomes an object.
    """

    def __init__(self, *, ends: Sequence[str] = (), is_keywords: bool = False) -> None:
        self._ends = tuple(ends)
        self._is_keywords = is_keywords
        self._bare_run = _BARE_KEYWORD if is_keywords else _BARE
        self._longest_end = max(map(len, ends), default=0)
        self._out: list[str] = []
        self._stack: list[_Container] = []
        self._place = _Place.VALUE
        self._string: StringText | None = None
        self._bare = ""
        # White space, and at most one comma, before it is known whether an item follows.
        self._gap: list[str] = []
        self.is_done = False
        self.hit = ""
        if is_keywords:
            self._push(_Container(")", "}"))

    def take(self, text: str, at: int) -> int:
        """Take from `at` up to the value's end, return the place behind (mutates)."""
        while at < len(text) and not self.is_done:
            if self._string is not None:
                at = self._string.take(text, at, self._out)
                if self._string.is_done:
                    self._end_string()
            elif run := self._bare_run.match(text, at):
                at = self._take_bare(run.group(), at)
            elif self._bare:
                self._end_bare()
            else:
                self._take_mark(text[at])
                at += 1
        return at

    def drain(self) -> str:
        """The JSON text since the last call (mutates)."""
        text = "".join(self._out)
        self._out.clear()
        return text

    def close(self) -> None:
        """End here: what is open is closed (mutates)."""
        if self._string is not None:
            self._string.close(self._out)
            self._end_string()
        self._end_bare()
        while self._stack:
            self._close(self._stack[-1].closer)
        self.is_done = True

    def _take_bare(self, run: str, at: int) -> int:
        """Collect a literal, a number or a word, and see whether a mark ends it."""
        seen_from = max(0, len(self._bare) - self._longest_end)
        before = len(self._bare)
        self._bare += run
        found = [(i, mark) for mark in self._ends if (i := self._bare.find(mark, seen_from)) >= 0]
        if not found:
            return at + len(run)
        start, self.hit = min(found)
        self._bare = self._bare[:start]
        self.close()
        return at + start + len(self.hit) - before

    def _take_mark(self, char: str) -> None:
        if char.isspace():
            self._take_blank(char)
        elif char in "\"'":
            self._begin_value()
            self._out.append('"')
            self._string = StringText(char)
        elif char in ":=":
            if self._place is _Place.COLON:
                self._out.append(":")
                self._place = _Place.VALUE
        elif char == ",":
            self._end_pair()
            if self._stack and self._stack[-1].has_items and "," not in self._gap:
                self._gap.append(",")
        elif char in "{[(":
            if not self._is_key() and len(self._stack) < _MAX_DEPTH:
                self._begin_value()
                self._push(_Container(*_CONTAINERS[char]))
        else:
            self._close(char)

    def _take_blank(self, char: str) -> None:
        char = char if char in BLANKS else " "
        if self._place is _Place.ITEM:
            self._gap.append(char)
        elif self._stack:
            self._out.append(char)

    def _is_key(self) -> bool:
        return self._place is _Place.ITEM and self._stack[-1].written == "}"

    def _begin_value(self) -> None:
        """Write what has to stand before a key or a value."""
        if self._place is _Place.COLON:
            self._out.append(":")
            self._place = _Place.VALUE
        elif self._place is _Place.ITEM:
            if self._stack[-1].has_items and "," not in self._gap:
                self._out.append(",")
            self._out += self._gap
            self._gap.clear()

    def _end_value(self) -> None:
        self._place = _Place.ITEM
        if self._stack:
            self._stack[-1].has_items = True
        else:
            self.is_done = True

    def _end_string(self) -> None:
        self._string = None
        self._out.append('"')
        self._end_key_or_value()

    def _end_key_or_value(self) -> None:
        if self._stack and self._is_key():
            self._place = _Place.COLON
        else:
            self._end_value()

    def _end_bare(self) -> None:
        if not self._bare:
            return
        token, self._bare = self._bare, ""
        self._begin_value()
        if self._stack and self._is_key():
            self._out.append(f'"{quoted(token)}"')
        elif token in _LITERALS:
            self._out.append(_LITERALS[token])
        elif len(token) <= _MAX_NUMBER and _NUMBER.fullmatch(token):
            self._out.append(token)
        else:
            self._out.append(f'"{quoted(token)}"')
        self._end_key_or_value()

    def _end_pair(self) -> None:
        """Give a key that has no value one."""
        if self._stack and self._place is not _Place.ITEM:
            self._out.append("null" if self._place is _Place.VALUE else ":null")
            self._end_value()

    def _push(self, container: _Container) -> None:
        self._stack.append(container)
        self._out.append("{" if container.written == "}" else "[")
        self._place = _Place.ITEM

    def _close(self, closer: str) -> None:
        if all(container.closer != closer for container in self._stack):
            return
        self._end_pair()
        while self._stack:
            container = self._stack.pop()
            self._out += [char for char in self._gap if char != ","]
            self._gap.clear()
            self._out.append(container.written)
            self._end_value()
            if container.closer == closer:
                return
