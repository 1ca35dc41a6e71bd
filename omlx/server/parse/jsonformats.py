"""The formats whose calls are JSON objects with a name and arguments.

Knows nothing about which model uses which.
"""

import json
from dataclasses import dataclass

from omlx.server.parse.calls import CallKeys, Calls
from omlx.server.parse.frame import FrameParser, Layout, Reader
from omlx.server.parse.grammar import IsSpecial, calls_grammar, literal, mark, never
from omlx.server.parse.jsoncalls import JsonCalls
from omlx.server.parse.said import Parser, Tools


@dataclass(frozen=True)
class JsonFormat:
    """Calls as JSON objects between two marks, or at the very start."""

    name: str
    layout: Layout
    # What is written: the mark before, the key of the name, that of the arguments, and behind.
    opening: tuple[str, ...]
    closing: tuple[str, ...]
    name_key: str = "name"
    arguments_key: str = "arguments"
    # All calls stand between one pair of marks, with this between two.
    separator: str | None = None
    # What stands in a call before its name.
    prefix: str = ""

    @property
    def kept(self) -> frozenset[str]:
        """Special tokens that must come as text."""
        return frozenset((*self.layout.opens, *self.layout.closes))

    def parser(self, tools: Tools) -> Parser:
        """A new parser for one answer."""
        return FrameParser(self.layout)

    def grammar(self, tools: Tools, *, is_parallel: bool, is_special: IsSpecial = never) -> str:
        """A grammar whose start is one call or, if parallel, one or more."""
        opening = " ".join(self._piece(text, is_special) for text in self.opening)
        closing = " ".join(self._piece(text, is_special) for text in self.closing)

        def call(name: str) -> tuple[str, str]:
            before = (
                f"{{{self.prefix}{json.dumps(self.name_key)}: "
                f"{json.dumps(name, ensure_ascii=False)}, {json.dumps(self.arguments_key)}: "
            )
            if self.separator is not None:
                return literal(before), literal("}")
            return f"{opening} {literal(before)}", f"{literal('}')} {closing}"

        is_each = self.separator is None
        return calls_grammar(
            tools,
            call,
            around=("", "") if is_each else (opening, closing),
            more=literal("\n" if self.separator is None else self.separator),
            is_parallel=is_parallel,
        )

    def _piece(self, text: str, is_special: IsSpecial) -> str:
        return mark(text, is_special) if text in self.kept else literal(text)


def _plain(*ends: str):
    def read(mark: str, calls: Calls) -> Reader:
        return JsonCalls(calls, ends=ends)

    return read


def hermes(name: str = "hermes") -> JsonFormat:
    """`<tool_call>{...}</tool_call>`, of Hermes, Qwen 2.5 and 3, and of many others."""
    marks = ("<tool_call>", "</tool_call>")
    return JsonFormat(
        name=name,
        layout=Layout(opens=marks[:1], closes=marks[1:], read=_plain(*marks)),
        opening=("<tool_call>", "\n"),
        closing=("\n", "</tool_call>"),
    )


_BARE_KEYS = CallKeys(is_strict=True)


def llama3_json() -> JsonFormat:
    """`<|python_tag|>{...}`, or the object alone at the very start, of Llama 3."""
    tag = "<|python_tag|>"

    def read(mark: str, calls: Calls) -> Reader:
        return JsonCalls(calls, ends=(tag,), keys=CallKeys() if mark else _BARE_KEYS)

    return JsonFormat(
        name="llama3_json",
        layout=Layout(opens=(tag,), read=read, bare="{"),
        opening=(),
        closing=(),
        arguments_key="parameters",
        separator="; ",
    )


def granite() -> JsonFormat:
    """`<|tool_call|>[{...}]`, of Granite 3 and Phi 4; also between tags."""
    opens = ("<|tool_call|>", "<tool_call>")
    closes = ("<|/tool_call|>", "</tool_call>")
    return JsonFormat(
        name="granite",
        layout=Layout(opens=opens, closes=closes, read=_plain(*opens, *closes)),
        opening=("<|tool_call|>", "["),
        closing=("]",),
        separator=", ",
    )


_COHERE_KEYS = CallKeys(
    names=frozenset({"tool_name", "name"}), arguments=frozenset({"parameters", "arguments"})
)


def cohere() -> JsonFormat:
    """`<|START_ACTION|>[{...}]<|END_ACTION|>`, of Command R7B and A."""
    marks = ("<|START_ACTION|>", "<|END_ACTION|>")

    def read(mark: str, calls: Calls) -> Reader:
        return JsonCalls(calls, ends=marks, keys=_COHERE_KEYS)

    return JsonFormat(
        name="cohere",
        layout=Layout(
            opens=marks[:1], closes=marks[1:], read=read,
            dropped=("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"),
        ),
        opening=("<|START_ACTION|>", "["),
        closing=("]", "<|END_ACTION|>"),
        name_key="tool_name",
        arguments_key="parameters",
        separator=", ",
        prefix='"tool_call_id": "0", ',
    )  # fmt: skip
