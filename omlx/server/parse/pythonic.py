"""The format whose calls are Python's: `[f(a=1, b="x"), g()]`, of Llama 4 and LFM 2.

Knows nothing about Python beyond literals; a call with arguments without names is none.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto

from omlx.engine.constrain import json_rule
from omlx.models.config import mapping
from omlx.server.parse.calls import Arguments, Calls, to_next_event
from omlx.server.parse.frame import FrameParser, Layout, Reader
from omlx.server.parse.grammar import (
    IsSpecial,
    literal,
    many,
    mark,
    never,
    signatures,
)  # fmt: skip
from omlx.server.parse.jsontext import BLANKS, JsonText
from omlx.server.parse.lark import required
from omlx.server.parse.said import Parser, Tools

_NAME = re.compile(r"[\w.-]")
_IDENTIFIER = re.compile(r"[^\W\d]\w*")
_MAX_NAME = 512
_OPEN, _CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
# Llama 4's; the closing one of either is no text.
_OPEN_LLAMA, _CLOSE_LLAMA = "<|python_start|>", "<|python_end|>"
_OPENS, _CLOSES = (_OPEN, _OPEN_LLAMA), (_CLOSE, _CLOSE_LLAMA)


class _Place(Enum):
    START = auto()
    NAME = auto()
    BRACKET = auto()  # behind the opening one
    KEY = auto()
    BEHIND = auto()


_IN_BRACKETS = (_Place.BRACKET, _Place.KEY)


class PythonCalls:
    """Reads calls in a list, or calls with blanks, commas or semicolons between."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._place = _Place.START
        self._is_list = False
        self._name = ""
        self._key = ""
        self._is_word_over = False
        self._arguments: Arguments | None = None
        self.is_unsure = False
        self.is_done = False
        self.is_bad = False
        self.hit = ""

    @property
    def is_between(self) -> bool:
        """A call has ended, and there is no sign of another."""
        return self._place is _Place.BEHIND

    def take(self, text: str, at: int) -> int:
        """Take from `at`, no further than one beginning or end of a call (mutates)."""
        return to_next_event(self, self._calls, self._take, text, at)

    def finish(self, *, is_cut: bool) -> None:
        """The text has ended: mend a call that was said, unless it was cut (mutates)."""
        if self._arguments is not None:
            self._arguments.finish(is_cut=is_cut)

    def _take(self, text: str, at: int) -> int:
        if self._arguments is not None:
            return self._take_arguments(self._arguments, text, at)
        return self._take_mark(text, at)

    def _take_mark(self, text: str, at: int) -> int:
        char = text[at]
        if char in BLANKS:
            self._is_word_over = bool(self._key if self._place in _IN_BRACKETS else self._name)
            return at + 1
        if self._place in (_Place.START, _Place.NAME):
            return self._take_name(text, at)
        if self._place is _Place.BEHIND:
            return self._take_behind(text, at)
        if self._place is _Place.BRACKET and char == ")":
            self._begin("")
            return at
        if char == "=" and self._key:
            self._begin(f"{self._key}=")
            return at + 1
        is_more = not self._is_word_over and bool(_NAME.match(text[at]))
        self.is_bad = not is_more or len(self._key) > _MAX_NAME
        self._place = _Place.KEY
        self._key += text[at] if is_more else ""
        return at + 1 if is_more else at

    def _take_name(self, text: str, at: int) -> int:
        if self._place is _Place.START and text[at] == "[" and not self._is_list:
            self._is_list = True
            return at + 1
        if text[at] == "(" and self._name:
            self._place, self._is_word_over = _Place.BRACKET, False
            return at + 1
        is_more = not self._is_word_over and bool(_NAME.match(text[at]))
        self.is_bad = not is_more or len(self._name) > _MAX_NAME
        self._place = _Place.NAME
        self._name += text[at] if is_more else ""
        return at + 1 if is_more else at

    def _begin(self, taken: str) -> None:
        """Say the call; `taken` of its arguments has been taken already."""
        value = JsonText(ends=(*_OPENS, *_CLOSES), is_keywords=True)
        value.take(taken, 0)
        self._calls.begin(self._name)
        self._arguments = Arguments(self._calls, value)
        self._name = self._key = ""
        self._is_word_over = False

    def _take_arguments(self, arguments: Arguments, text: str, at: int) -> int:
        at = arguments.take(text, at)
        if arguments.is_done:
            self._arguments = None
            self._place = _Place.BEHIND
            self.hit, self.is_done = arguments.hit, bool(arguments.hit)
        return at

    def _take_behind(self, text: str, at: int) -> int:
        char = text[at]
        if char in ",;":
            self._place = _Place.NAME
            return at + 1
        if char == "]" and self._is_list:
            self._is_list = False
            return at + 1
        if self._is_list and _NAME.match(text, at):
            self._place = _Place.NAME
            return at
        self.is_done = True
        return at


def _read(mark: str, calls: Calls) -> Reader:
    return PythonCalls(calls)


@dataclass(frozen=True)
class PythonicFormat:
    """Calls in Python's syntax, between marks or, as a list, at the very start."""

    name: str
    layout: Layout
    is_marked: bool

    @property
    def kept(self) -> frozenset[str]:
        """Special tokens that must come as text."""
        return frozenset((*_OPENS, *_CLOSES))

    def parser(self, tools: Tools) -> Parser:
        """A new parser for one answer."""
        return FrameParser(self.layout)

    def grammar(self, tools: Tools, *, is_parallel: bool, is_special: IsSpecial = never) -> str:
        """A grammar whose start is one call or, if parallel, one or more."""
        calls = f'"[" {many(literal(", "), is_parallel=is_parallel)} "]"'
        if self.is_marked:
            calls = f"{mark(_OPEN, is_special)} {calls} {mark(_CLOSE, is_special)}"
        rules = [f"start: {calls}"]
        names: list[str] = []
        for number, (name, schema) in enumerate(signatures(tools)):
            names.append(f"call_{number}")
            rules.append(f'call_{number}: {literal(f"{name}(")} first_{number}_0 ")"')
            rules += _arguments(number, schema)
        return "\n".join([*rules, f"call: {' | '.join(names)}"]) + "\n"


def _arguments(number: int, schema: Mapping[str, object]) -> list[str]:
    """Rules for a tool's arguments in the order of its schema, those not required left out."""
    fields = [field for field in required(schema) if _IDENTIFIER.fullmatch(field[0])]
    shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    rules: list[str] = []
    for place, (key, value, is_needed) in enumerate(fields):
        field, rest = f"field_{number}_{place}", f"next_{number}_{place + 1}"
        rules.append(f"{field}: {literal(f'{key}=')} value_{number}_{place}")
        rules.append(f"value_{number}_{place}: {json_rule({**shared, **mapping(value)})}")
        first, behind = f"{field} {rest}", f'", " {field} {rest}'
        if not is_needed:
            first, behind = f"{first} | first_{number}_{place + 1}", f"{behind} | {rest}"
        rules.append(f"first_{number}_{place}: {first}")
        rules.append(f"next_{number}_{place}: {behind}")
    return [*rules, f'first_{number}_{len(fields)}: ""', f'next_{number}_{len(fields)}: ""']


def pythonic() -> PythonicFormat:
    """With marks around, of LFM 2."""
    layout = Layout(opens=_OPENS, closes=_CLOSES, read=_read, bare="[")
    return PythonicFormat(name="pythonic", layout=layout, is_marked=True)


def llama4_pythonic() -> PythonicFormat:
    """Without marks, of Llama 4."""
    layout = Layout(opens=_OPENS, closes=_CLOSES, read=_read, bare="[")
    return PythonicFormat(name="llama4_pythonic", layout=layout, is_marked=False)
