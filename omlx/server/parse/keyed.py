"""Calls as a name, then pairs of an element for the key and one for the value.

Knows nothing about special tokens, apart from which of its marks may be some.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from omlx.server.parse.arguments import Call, Ends
from omlx.server.parse.grammar import never
from omlx.server.parse.lark import Rules, required
from omlx.server.parse.marks import Marks
from omlx.server.parse.prose import Prose
from omlx.server.parse.said import Parser, Tools
from omlx.server.parse.source import Reading, Source, Steps, Waits
from omlx.server.parse.typed import functions

_NAME_LIMIT = 256
_NAME = re.compile(r"\s*([^\s<>{}\"]+)\s*")


@dataclass(frozen=True)
class Elements:
    """The elements of one format, each as its two tags."""

    call: tuple[str, str]
    key: tuple[str, str]
    value: tuple[str, str]
    # What the template writes between them.
    newline: str = "\n"


class KeyedFormat:
    """A `CallFormat` of keys and values."""

    def __init__(self, name: str, elements: Elements) -> None:
        self._name = name
        self._elements = elements
        self._marks = _Lookout(elements)

    @property
    def name(self) -> str:
        """By which settings name it."""
        return self._name

    @property
    def kept(self) -> frozenset[str]:
        """Special tokens that must come as text."""
        elements = self._elements
        return frozenset({*elements.call, *elements.key, *elements.value})

    def parser(self, tools: Tools) -> Parser:
        """A new parser for one answer."""
        return Reading(lambda source: _Reader(source, self._elements, self._marks, tools).read())

    def grammar(
        self, tools: Tools, *, is_parallel: bool, is_special: Callable[[str], bool] = never
    ) -> str:
        """A Lark grammar of one call, or of one or more."""
        elements, rules = self._elements, Rules(is_special)
        line = elements.newline
        calls: list[str] = []
        for name, schema in functions(tools).items():
            parts = [rules.literal(elements.call[0] + name + line)]
            for key, one, is_required in required(schema):
                before = f"{elements.key[0]}{key}{elements.key[1]}{line}{elements.value[0]}"
                value = rules.value(one, schema, elements.value[1] + line)
                pair = f"{rules.literal(before)} {value}"
                parts.append(pair if is_required else f"({pair})?")
            calls.append(rules.rule(" ".join([*parts, rules.literal(elements.call[1])])))
        return rules.text(rules.start(calls, between=line, is_parallel=is_parallel))


class _Lookout:
    """What to look for, by place; made once for all answers."""

    def __init__(self, elements: Elements) -> None:
        self.call = Marks([elements.call[0]])
        self.body = Marks([*elements.call, elements.key[0]])
        self.key_end = Marks([elements.key[1]])
        self.value = Marks([elements.value[0]])
        self.ends = Ends(elements.value[1], tail=elements.call[1:])


class _Reader:
    """Reads one answer."""

    def __init__(self, source: Source, elements: Elements, marks: _Lookout, tools: Tools) -> None:
        self._source = source
        self._elements = elements
        self._functions = functions(tools)
        self._prose = Prose(source)
        self._marks = marks

    def read(self) -> Steps[None]:
        """Everything that the answer says."""
        while mark := (yield from self._prose.until(self._marks.call)):
            name = yield from self._name()
            if not name:
                yield from self._prose.refuse(mark)
                continue
            self._source.commit()
            call = Call(self._prose.call(), name, self._functions.get(name, {}))
            yield call.began()
            yield from self._arguments(call)
            yield from call.ended()

    def _name(self) -> Waits[str]:
        """The name, and only that, is looked past; "" if there is none."""
        start = self._source.mark()
        found = yield from self._source.upto(self._marks.body, _NAME_LIMIT)
        name = _NAME.fullmatch(found[0]) if found else None
        if not found or not name or found[1] == self._elements.call[0]:
            return ""
        self._source.back(start + len(found[0]))
        return name[1]

    def _arguments(self, call: Call) -> Steps[None]:
        """The arguments of a call, up to and with its end."""
        source, elements = self._source, self._elements
        while (mark := (yield from source.past(self._marks.body))) == elements.key[0]:
            source.commit()
            key = yield from source.upto(self._marks.key_end, _NAME_LIMIT)
            if (
                key
                and (yield from source.space())
                and (yield from source.literal(self._marks.value))
            ):
                source.commit()
                yield from call.value(source, key[0].strip(), self._marks.ends)
            source.rewind()
        # Where the next call begins though this one has no end, its mark is left.
        if mark == elements.call[1]:
            source.commit()
        source.rewind()


_GLM = Elements(
    call=("<tool_call>", "</tool_call>"),
    key=("<arg_key>", "</arg_key>"),
    value=("<arg_value>", "</arg_value>"),
)
_LONGCAT = Elements(
    call=("<longcat_tool_call>", "</longcat_tool_call>"),
    key=("<longcat_arg_key>", "</longcat_arg_key>"),
    value=("<longcat_arg_value>", "</longcat_arg_value>"),
)

GLM4 = KeyedFormat("glm4", _GLM)
GLM47 = KeyedFormat("glm47", replace(_GLM, newline=""))
LAGUNA = KeyedFormat("laguna", _GLM)
LONGCAT = KeyedFormat("longcat", _LONGCAT)
