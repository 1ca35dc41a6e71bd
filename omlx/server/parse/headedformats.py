"""The formats whose calls have the name before the JSON of the arguments.

Knows nothing about which model uses which.
"""

import json
from dataclasses import dataclass

from omlx.server.parse.calls import Calls
from omlx.server.parse.frame import FrameParser, Layout, Reader
from omlx.server.parse.grammar import (
    IsSpecial,
    calls_grammar,
    literal,
    mark,
    never,
)  # fmt: skip
from omlx.server.parse.headed import ARGS, CALL_ID, SEP, TOOL_CALLS, DeepSeekCall, mistral_reader
from omlx.server.parse.said import Parser, Tools

_MISTRAL = Layout(opens=(TOOL_CALLS,), read=mistral_reader)


@dataclass(frozen=True)
class MistralFormat:
    """`[TOOL_CALLS]`, then `name[ARGS]{...}` or, of older models, a list of JSON objects."""

    name: str
    has_header: bool

    @property
    def kept(self) -> frozenset[str]:
        """Special tokens that must come as text."""
        return frozenset((TOOL_CALLS, ARGS, CALL_ID))

    def parser(self, tools: Tools) -> Parser:
        """A new parser for one answer."""
        return FrameParser(_MISTRAL)

    def grammar(self, tools: Tools, *, is_parallel: bool, is_special: IsSpecial = never) -> str:
        """A grammar whose start is one call or, if parallel, one or more."""
        opening = mark(TOOL_CALLS, is_special)

        def header(name: str) -> tuple[str, str]:
            return f"{opening} {literal(name)} {mark(ARGS, is_special)}", ""

        def listed(name: str) -> tuple[str, str]:
            before = f'{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '
            return literal(before), literal("}")

        if self.has_header:
            return calls_grammar(tools, header, is_parallel=is_parallel)
        return calls_grammar(
            tools, listed, around=(f'{opening} "["', '"]"'), more='", "', is_parallel=is_parallel
        )


_ALL_BEGIN, _ALL_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_BEGIN, _END = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"


def _read_deepseek(mark: str, calls: Calls) -> Reader:
    return DeepSeekCall(calls, ends=(_END, _ALL_END, _BEGIN))


_DEEPSEEK = Layout(
    opens=(_BEGIN,), closes=(_END,), dropped=(_ALL_BEGIN, _ALL_END), read=_read_deepseek
)


@dataclass(frozen=True)
class DeepSeekFormat:
    """Calls between marks, the arguments in a fence or, of later models, bare."""

    name: str
    has_fence: bool

    @property
    def kept(self) -> frozenset[str]:
        """Special tokens that must come as text."""
        return frozenset((_ALL_BEGIN, _ALL_END, _BEGIN, _END, SEP))

    def parser(self, tools: Tools) -> Parser:
        """A new parser for one answer."""
        return FrameParser(_DEEPSEEK)

    def grammar(self, tools: Tools, *, is_parallel: bool, is_special: IsSpecial = never) -> str:
        """A grammar whose start is one call or, if parallel, one or more."""
        begin, end, sep = (mark(text, is_special) for text in (_BEGIN, _END, SEP))

        def call(name: str) -> tuple[str, str]:
            if not self.has_fence:
                return f"{begin} {literal(name)} {sep}", end
            fence = literal(f"{name}\n```json\n")
            return f'{begin} "function" {sep} {fence}', f"{literal(chr(10) + '```')} {end}"

        around = (mark(_ALL_BEGIN, is_special), mark(_ALL_END, is_special))
        more = literal("\n") if self.has_fence else ""
        return calls_grammar(tools, call, around=around, more=more, is_parallel=is_parallel)
