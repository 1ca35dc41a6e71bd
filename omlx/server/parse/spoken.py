"""Calls whose arguments are one object behind the name: Kimi's and Gemma's.

Knows nothing about what the arguments mean.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from omlx.server.parse.grammar import never
from omlx.server.parse.lark import Rules, Written, json_grammar, loose_object
from omlx.server.parse.marks import Marks
from omlx.server.parse.objects import ObjectReader, Quotes
from omlx.server.parse.prose import Prose
from omlx.server.parse.said import CallArguments, CallBegan, CallEnded, Parser, Tools
from omlx.server.parse.source import Reading, Source, Steps, Waits
from omlx.server.parse.typed import Schema, functions

_NAME_LIMIT = 256


@dataclass(frozen=True)
class Spoken:
    """The marks of one format; a call's name stands between `call` and `name_end`."""

    call: str
    name_end: str
    call_end: str
    name: re.Pattern[str]
    section: tuple[str, ...] = ()
    quotes: tuple[str, ...] = ()
    # The mark at the end of the name is the first of the arguments.
    is_object_begun: bool = False


class SpokenFormat:
    """A `CallFormat` of a name and an object."""

    def __init__(self, name: str, spoken: Spoken) -> None:
        self._name = name
        self._spoken = spoken
        self._marks = _Lookout(spoken)

    @property
    def name(self) -> str:
        """By which settings name it."""
        return self._name

    @property
    def kept(self) -> frozenset[str]:
        """Special tokens that must come as text."""
        spoken = self._spoken
        marks = (spoken.call, spoken.name_end, spoken.call_end, *spoken.section, *spoken.quotes)
        return frozenset(mark for mark in marks if mark != "{")

    def parser(self, tools: Tools) -> Parser:
        """A new parser for one answer."""
        return Reading(lambda source: _Reader(source, self._spoken, self._marks, tools).read())

    def grammar(
        self, tools: Tools, *, is_parallel: bool, is_special: Callable[[str], bool] = never
    ) -> str:
        """A Lark grammar of one call, or of one or more."""
        if self._spoken.is_object_begun:
            return self._loose_grammar(tools, Rules(is_special), is_parallel=is_parallel)
        opener, closer = self._spoken.section
        written = Written(section=(opener, closer), call=("", self._spoken.call_end))

        def before(rules: Rules, name: str) -> str:
            head = rules.literal(f"{self._spoken.call}functions.{name}:")
            return f"{head} /[0-9]+/ {rules.literal(self._spoken.name_end)}"

        return json_grammar(
            written, tools, is_parallel=is_parallel, is_special=is_special, before=before
        )

    def _loose_grammar(self, tools: Tools, rules: Rules, *, is_parallel: bool) -> str:
        spoken, quote = self._spoken, self._spoken.quotes[0]
        calls: list[str] = []
        for name, schema in functions(tools).items():
            head, end = f"{spoken.call}call:{name}", rules.literal(spoken.call_end)
            value = loose_object(rules, schema, schema, quote)
            calls.append(f"{rules.literal(head)} {value} {end}")
        return rules.text(rules.start(calls, between="", is_parallel=is_parallel))


class _Lookout:
    """What to look for, by place; made once for all answers."""

    def __init__(self, spoken: Spoken) -> None:
        self.call = Marks([spoken.call])
        self.outside = Marks([spoken.call, *spoken.section[:1]])
        self.inside = Marks([spoken.call, spoken.call_end, *spoken.section])
        self.name_end = Marks([spoken.name_end])
        self.body = Marks([spoken.call, spoken.call_end, *spoken.section[1:]])
        self.quotes = Quotes(spoken.quotes, stops=(spoken.call_end, *spoken.section[1:]))


class _Reader:
    """Reads one answer."""

    def __init__(self, source: Source, spoken: Spoken, marks: _Lookout, tools: Tools) -> None:
        self._source = source
        self._spoken = spoken
        self._functions = functions(tools)
        self._prose = Prose(source)
        self._marks = marks

    def read(self) -> Steps[None]:
        """Everything that the answer says."""
        source, spoken = self._source, self._spoken
        while True:
            has_calls = self._prose.num_calls > 0
            mark = yield from self._prose.until(
                self._marks.inside if has_calls else self._marks.outside
            )
            if mark is None:
                return
            if mark == spoken.call_end or mark in spoken.section[1:]:
                self._prose.drop()
                continue
            is_call = mark == spoken.call
            if not is_call and (yield from source.space()):
                is_call = bool((yield from source.literal(self._marks.call)))
            name = (yield from self._name()) if is_call else ""
            if name:
                yield from self._read_call(name)
            else:
                yield from self._prose.refuse(mark)

    def _name(self) -> Waits[str]:
        found = yield from self._source.upto(self._marks.name_end, _NAME_LIMIT)
        name = self._spoken.name.fullmatch(found[0]) if found else None
        return name[1] if name else ""

    def _read_call(self, name: str) -> Steps[None]:
        source, spoken = self._source, self._spoken
        if spoken.is_object_begun:
            source.back(source.mark() - len(spoken.name_end))
        source.commit()
        index = self._prose.call()
        yield CallBegan(index, name)
        schema: Schema = self._functions.get(name, {})
        for piece in ObjectReader(source, self._marks.quotes, schema).read():
            yield None if piece is None else CallArguments(index, piece)
        mark = yield from source.past(self._marks.body)
        yield CallEnded(index)
        if mark == spoken.call:
            source.rewind()
        source.commit()


_KIMI = Spoken(
    section=("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"),
    call="<|tool_call_begin|>",
    name_end="<|tool_call_argument_begin|>",
    call_end="<|tool_call_end|>",
    name=re.compile(r"\s*(?:functions\.)?([^\s<>{}\":]+)(?::\d+)?\s*"),
)
_NAME = re.compile(r"\s*call:\s*([^\s<>{}\":]+)\s*")
_FUNCTION_GEMMA = Spoken(
    call="<start_function_call>",
    name_end="{",
    call_end="<end_function_call>",
    name=_NAME,
    quotes=("<escape>",),
    is_object_begun=True,
)
_GEMMA4 = Spoken(
    call="<|tool_call>",
    name_end="{",
    call_end="<tool_call|>",
    name=_NAME,
    quotes=('<|"|>',),
    is_object_begun=True,
)

KIMI_K2 = SpokenFormat("kimi_k2", _KIMI)
FUNCTION_GEMMA = SpokenFormat("function_gemma", _FUNCTION_GEMMA)
GEMMA4 = SpokenFormat("gemma", _GEMMA4)
