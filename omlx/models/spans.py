"""Finds the parts of a prompt in its rendered text: system blocks, tools, messages.

Knows nothing about tokens. It marks every part with private characters, has it rendered again, and
believes the marks only if the text without them is the prompt; else it searches part by part.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, count
from os.path import commonprefix
from typing import cast

from omlx.errors import OmlxError
from omlx.models.config import items, mapping
from omlx.models.messages import Message
from omlx.storage.entry import Part, PartKind

_FIRST_MARK = 0xF0000  # of a plane that no text uses: two characters for each piece
_MAX_PIECES = 32_000
_MARK = re.compile("([\U000f0000-\U000ffffd])")
_INDENTS = (None, 4, 2)

Render = Callable[[Sequence[Message], Sequence[Message]], str]


@dataclass(frozen=True, slots=True)
class CharSpan:
    """The characters [start, end) of a rendered prompt that a part of it became.

    One that is not marked was searched for: the same text may stand elsewhere.
    """

    part: Part
    start: int
    end: int
    is_marked: bool = field(default=True, compare=False)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A text within a part that a template prints as it is."""

    part: Part
    text: str


def find_parts(
    plain: str,
    messages: Sequence[Message],
    tools: Sequence[Message],
    render: Render,
    *,
    places: Sequence[int] = (),
    system_places: Sequence[int] = (),
    tool_places: Sequence[int] = (),
) -> list[CharSpan]:
    """The parts of the prompt `plain`, in the order of their text, without overlaps.

    `render` made `plain` from the messages and tools. `places`, `system_places` and `tool_places`
    say where the body has each message, each text of its system and each tool, if not in the same
    order. A message at a place below 0 is a text of the system, with the role in which it is told.
    A part that the template leaves out is not among the parts.
    """
    marker = _Marker(system_places)
    of_tools = [
        Part(PartKind.TOOL, idx, tool_name(tool))
        for idx, tool in zip(tool_places or range(len(tools)), tools, strict=True)
    ]
    marked_tools = [marker.tool(tool, part) for tool, part in zip(tools, of_tools, strict=True)]
    parts = _message_parts(messages, places or range(len(messages)))
    marked = [marker.message(m, p) for m, p in zip(messages, parts, strict=True)]
    found = _by_marks(plain, marker.pieces, marked, marked_tools, render)
    if found is None:
        found = list(_by_search(plain, marker.pieces))
    return _in_order(_whole_tools(plain, found, dict(zip(of_tools, tools, strict=True))))


def _message_parts(messages: Sequence[Message], places: Sequence[int]) -> list[Part]:
    """The part that each message is; one that opens the conversation as its system is that."""
    parts: list[Part] = []
    is_head, last = True, places[0] - 1 if places else 0
    for message, place in zip(messages, places, strict=True):
        role = str(message.get("role"))
        # One that does not follow in the body has been moved to the front.
        is_head, last = is_head and role == "system" and place == last + 1, place
        kind = PartKind.SYSTEM if is_head or place < 0 else PartKind.MESSAGE
        parts.append(Part(kind, max(0, place), "" if is_head else role))
    return parts


class _Marker:
    """Copies messages and tools with marks around their texts, and remembers the pieces."""

    def __init__(self, system_places: Sequence[int]) -> None:
        self.pieces: list[_Piece] = []
        # Messages that follow as system messages of their own count on.
        self._blocks = chain(system_places, count(max(system_places, default=-1) + 1))

    def message(self, message: Message, part: Part) -> Message:
        """A message whose texts are marked (mutates)."""
        marked: dict[str, object] = dict(message)
        content = message.get("content")
        if isinstance(content, str):
            marked["content"] = self._text(content, self._block(part))
        elif isinstance(content, list):
            marked["content"] = [self._entry(one, part) for one in cast(list[object], content)]
        if message.get("tool_calls"):
            marked["tool_calls"] = [self._call(one, part) for one in items(message["tool_calls"])]
        return marked

    def tool(self, tool: Message, part: Part) -> Message:
        """A tool whose name and descriptions are marked (mutates)."""
        return mapping(self._described(dict(tool), part))

    def _block(self, part: Part) -> Part:
        """The part of the next text: each text of the system is a block of its own."""
        if part.kind is not PartKind.SYSTEM:
            return part
        return replace(part, idx=next(self._blocks))

    def _entry(self, entry: object, part: Part) -> object:
        match entry:
            case {"type": "text", "text": str(text)}:
                known = cast(Mapping[str, object], entry)
                return {**known, "text": self._text(text, self._block(part))}
            case _:
                return entry

    def _call(self, call: object, part: Part) -> object:
        function = mapping(mapping(call).get("function"))
        marked: dict[str, object] = dict(function)
        if isinstance(function.get("name"), str):
            marked["name"] = self._text(str(function["name"]), part)
        if isinstance(function.get("arguments"), str):
            marked["arguments"] = self._json(str(function["arguments"]), part)
        return {**mapping(call), "function": marked} if function else call

    def _json(self, text: str, part: Part) -> str:
        """JSON text with marks inside its first and its last quotes, so that it stays JSON."""
        first, last = text.find('"') + 1, text.rfind('"')
        if not 0 < first < last:
            return text
        return text[:first] + self._text(text[first:last], part) + text[last:]

    def _described(self, value: object, part: Part) -> object:
        """A schema whose descriptions, and the name at its head, are marked."""
        if isinstance(value, list):
            return [self._described(item, part) for item in cast(list[object], value)]
        if not isinstance(value, dict):
            return value
        known = cast(dict[str, object], value)
        return {
            key: self._text(item, part)
            if isinstance(item, str) and (key == "description" or item == part.name)
            else self._described(item, part)
            for key, item in known.items()
        }

    def _text(self, text: str, part: Part) -> str:
        """The text with its core marked: templates may strip what is around it."""
        core = text.strip()
        if not core or len(self.pieces) >= _MAX_PIECES:
            return text
        head, tail = text[: text.index(core)], text[text.index(core) + len(core) :]
        mark = _FIRST_MARK + 2 * len(self.pieces)
        self.pieces.append(_Piece(part, core))
        return f"{head}{chr(mark)}{core}{chr(mark + 1)}{tail}"


def tool_name(tool: Message) -> str:
    """A tool's name in any of the forms that clients send."""
    name = mapping(tool.get("function")).get("name", tool.get("name"))
    return name if isinstance(name, str) else ""


def _by_marks(
    plain: str,
    pieces: Sequence[_Piece],
    messages: Sequence[Message],
    tools: Sequence[Message],
    render: Render,
) -> list[CharSpan] | None:
    """The pieces where the marks are; None where marks change what the template prints."""
    try:
        marked = render(messages, tools)
    except OmlxError:
        return None
    split = _MARK.split(marked)  # texts and marks in turn
    if "".join(split[::2]) != plain:
        return None
    edges: dict[int, int] = {}
    at = 0
    for text, mark in zip(split[::2], split[1::2], strict=False):
        at += len(text)
        edges.setdefault(ord(mark) - _FIRST_MARK, at)
    spans: list[CharSpan] = []
    for idx, piece in enumerate(pieces):
        start, end = edges.get(2 * idx), edges.get(2 * idx + 1)
        if start is None and end is not None:
            start = end - len(commonprefix([plain[:end][::-1], piece.text[::-1]]))
        elif end is None and start is not None:
            end = start + len(commonprefix([plain[start:], piece.text]))
        if start is not None and end is not None and start < end:
            spans.append(CharSpan(piece.part, start, end))
    return spans


def _by_search(plain: str, pieces: Sequence[_Piece]) -> Iterator[CharSpan]:
    """The pieces where their texts come one after the other; tools may come anywhere."""
    ends = dict.fromkeys(PartKind, 0)
    for piece in pieces:
        kind = PartKind.TOOL if piece.part.kind is PartKind.TOOL else PartKind.MESSAGE
        start = plain.find(piece.text, ends[kind])
        if start >= 0:
            ends[kind] = start + len(piece.text)
            yield CharSpan(piece.part, start, ends[kind], is_marked=False)


def _whole_tools(
    plain: str, spans: Iterable[CharSpan], tools: Mapping[Part, Message]
) -> Iterator[CharSpan]:
    """One span a part; that of a tool reaches to the ends of its JSON, where it is printed so."""
    joined: dict[Part, CharSpan] = {}
    for span in spans:
        known = joined.get(span.part, span)
        start, end = min(known.start, span.start), max(known.end, span.end)
        joined[span.part] = replace(span, start=start, end=end)
    for span in joined.values():
        is_tool = span.part.kind is PartKind.TOOL
        yield _widened(plain, span, tools[span.part]) if is_tool else span


def _widened(plain: str, span: CharSpan, tool: Message) -> CharSpan:
    for value in (tool, tool.get("function")):
        for indent in _INDENTS:
            text = json.dumps(value, ensure_ascii=False, indent=indent)
            start = plain.find(text, max(0, span.end - len(text)), span.start + len(text))
            if value and start >= 0:
                return CharSpan(span.part, start, start + len(text))
    return span


def _in_order(spans: Iterable[CharSpan]) -> list[CharSpan]:
    ordered: list[CharSpan] = []
    end = 0
    for span in sorted(spans, key=lambda span: (span.start, -span.end)):
        if span.end > end:
            ordered.append(replace(span, start=max(span.start, end)))
            end = span.end
    return ordered
