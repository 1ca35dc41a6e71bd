"""Channels: what the model thinks, says and calls, each as a message with a header.

Knows nothing about what the arguments mean.
"""

import re
from collections.abc import Callable

from omlx.server.parse.grammar import never
from omlx.server.parse.lark import Rules, Written, json_grammar
from omlx.server.parse.marks import Marks
from omlx.server.parse.objects import ObjectReader, Quotes
from omlx.server.parse.prose import Prose
from omlx.server.parse.said import CallArguments, CallBegan, CallEnded, Parser, Reasoning, Tools
from omlx.server.parse.source import Reading, Source, Steps, Waits
from omlx.server.parse.typed import functions

_HEADER_LIMIT = 512
_ENDS = ("<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>")
_MARKS = frozenset({*_ENDS, "<|message|>", "<|constrain|>"})
_ALL = Marks(_MARKS)
_BODY_ENDS = Marks(_ENDS)
_QUOTES = Quotes(stops=_ENDS)
_MESSAGE = Marks(["<|message|>"])
# How a header begins when the prompt has its first mark already.
_HEADER = Marks(["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "to=", "assistant<|"])
_CHANNEL = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_WRITTEN = Written(call=("", "<|call|>"), between="<|start|>assistant")


class HarmonyFormat:
    """The `CallFormat` of gpt-oss; its parser takes the reasoning apart, too."""

    @property
    def name(self) -> str:
        """By which settings name it."""
        return "harmony"

    @property
    def kept(self) -> frozenset[str]:
        """Special tokens that must come as text."""
        return _MARKS

    def parser(self, tools: Tools) -> Parser:
        """A new parser for one answer, of all of its text."""
        return Reading(lambda source: _Reader(source, tools).read())

    def grammar(
        self, tools: Tools, *, is_parallel: bool, is_special: Callable[[str], bool] = never
    ) -> str:
        """A Lark grammar of one call, or of one or more."""
        return json_grammar(
            _WRITTEN, tools, is_parallel=is_parallel, is_special=is_special, before=_before
        )


HARMONY = HarmonyFormat()


def _before(rules: Rules, name: str) -> str:
    head = f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>"
    return rules.literal(head)


class _Reader:
    """Reads one answer."""

    def __init__(self, source: Source, tools: Tools) -> None:
        self._source = source
        self._functions = functions(tools)
        self._prose = Prose(source)

    def read(self) -> Steps[None]:
        """Everything that the answer says."""
        source = self._source
        while True:
            yield from source.space()
            if (yield from source.literal(_HEADER)):
                source.rewind()
                channel, recipient = yield from self._header()
            else:
                source.rewind()
                channel, recipient = "final", ""
            if recipient:
                yield from self._call(recipient)
            elif channel == "analysis":
                yield from self._reasoning()
            else:
                yield from self._text()
            mark = yield from self._end()
            if not mark:
                yield from self._prose.finish()
                return

    def _header(self) -> Waits[tuple[str, str]]:
        """Take a header; of one that has no end, only its mark is taken."""
        source = self._source
        found = yield from source.upto(_MESSAGE, _HEADER_LIMIT)
        if not found:
            source.rewind()
            yield from source.space()
            yield from source.literal(_HEADER)
            source.commit()
            return "final", ""
        source.commit()
        # The last of each counts: headers that ended without a message stand before it.
        channels, recipients = _CHANNEL.findall(found[0]), _RECIPIENT.findall(found[0])
        recipient = recipients[-1] if recipients else ""
        name = recipient.removeprefix("functions.")
        if name == recipient and name not in self._functions:
            # A tool that only its maker's own server has: what is written to it is no answer.
            return ("analysis" if recipient else (channels or ["final"])[-1]), ""
        return (channels or ["commentary"])[-1], name

    def _end(self) -> Waits[str | None]:
        """Take the mark that ends a message, if there is one; one that begins another stays."""
        source = self._source
        mark = yield from source.literal(_ALL)
        if mark in ("<|start|>", "<|channel|>"):
            source.rewind()
        source.commit()
        return mark

    def _text(self) -> Steps[None]:
        source = self._source
        while True:
            at = source.at
            text, mark = source.step(_ALL, is_last=source.is_ended)
            yield from self._prose.say(text, at)
            if mark or source.is_ended:
                source.rewind()
                return
            yield None

    def _reasoning(self) -> Steps[None]:
        source = self._source
        while True:
            text, mark = source.step(_ALL, is_last=source.is_ended)
            if text:
                yield Reasoning(text)
            if mark or source.is_ended:
                source.rewind()
                return
            yield None

    def _call(self, name: str) -> Steps[None]:
        source = self._source
        index = self._prose.call()
        yield CallBegan(index, name)
        schema = self._functions.get(name, {})
        for piece in ObjectReader(source, _QUOTES, schema).read():
            yield None if piece is None else CallArguments(index, piece)
        yield from source.past(_BODY_ENDS)
        source.rewind()
        yield CallEnded(index)
