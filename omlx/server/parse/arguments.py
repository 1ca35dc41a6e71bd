"""Writes the arguments of one call as JSON while their values are read from bare text.

Knows nothing about how a dialect writes a call's name or an argument's key.
"""

import json
from collections.abc import Generator, Sequence

from omlx.server.parse.marks import Marks
from omlx.server.parse.said import CallArguments, CallBegan, CallEnded, Said
from omlx.server.parse.source import Source, Steps, Waits
from omlx.server.parse.typed import Schema, Types, argument_types, as_json, escaped, is_text

_NEWLINES = Marks(["\n", "\r\n"])
_CDATA = Marks(["<![CDATA["])
_CDATA_END = Marks(["]]>"])


class Ends:
    """What ends a value; `is_on_lines`: the template writes the value on lines of its own.

    `tail`: what ends the call; a value whose own end is missing ends with it, if no text follows.
    """

    def __init__(self, mark: str, *, is_on_lines: bool = False, tail: Sequence[str] = ()) -> None:
        self.is_on_lines = is_on_lines
        self.own = mark
        self.tail = tuple(Marks([one]) for one in tail[1:])
        marks = [mark, *tail[:1]]
        self._marks = Marks(marks)
        self._by_newline = {
            line: Marks([*marks, *[line + one for one in marks]]) for line in _NEWLINES.all
        }

    def marks(self, newline: str | None) -> Marks:
        """The ends of a value that stands behind `newline`."""
        return self._by_newline[newline or "\n"] if self.is_on_lines else self._marks


class Call:
    """One call: what was said of it, and what is to be said to end it."""

    def __init__(self, index: int, name: str, schema: Schema) -> None:
        self.index = index
        self.name = name
        self._schema = schema
        self._num_keys = 0

    def began(self) -> Said:
        """The call's name is known."""
        return CallBegan(self.index, self.name)

    def json(self, text: str) -> Said:
        """More JSON text of the arguments."""
        return CallArguments(self.index, text)

    def ended(self) -> Steps[None]:
        """Close the arguments, end the call."""
        yield self.json("}" if self._num_keys else "{}")
        yield CallEnded(self.index)

    def value(
        self, source: Source, key: str, ends: Ends, *, types: Types | None = None
    ) -> Steps[None]:
        """Read the value of `key` and its end; as the schema has it, if `types` does not say."""
        types = argument_types(self._schema, key) if types is None else types
        is_string = is_text(types)
        before = ", " if self._num_keys else "{"
        self._num_keys += 1
        quote = '"' if is_string else ""
        yield self.json(f"{before}{json.dumps(key, ensure_ascii=False)}: {quote}")
        pieces: list[str] = []
        for piece in _value(source, ends):
            if piece is None:
                yield None
            elif is_string:
                yield self.json(escaped(piece))
            else:
                pieces.append(piece)
        yield self.json(quote or as_json("".join(pieces), types))


def _value(source: Source, ends: Ends) -> Generator[str | None, None, None]:
    """The pieces of a value, without what the template or CDATA puts around them."""
    newline = None
    if ends.is_on_lines:
        newline = yield from source.literal(_NEWLINES)
        source.commit()
    yield from source.space()
    if (yield from source.literal(_CDATA)):
        source.commit()
        yield from _cdata(source)
    source.rewind()
    marks = ends.marks(newline)
    while True:
        mark = yield from _pieces(source, marks)
        if not mark or mark.endswith(ends.own) or (yield from _is_tail(source, ends)):
            source.commit()
            return
        source.rewind()
        source.skip(len(mark))
        yield mark


def _is_tail(source: Source, ends: Ends) -> Waits[bool]:
    """Whether nothing but the ends of the call, and space, follow up to the end of the text."""
    for mark in ends.tail:
        yield from source.space()
        yield from source.literal(mark)
    yield from source.space()
    return source.is_over and not (yield from source.some(1))


def _cdata(source: Source) -> Generator[str | None, None, None]:
    """The pieces of a CDATA section that is open, and of those that follow it."""
    while True:
        yield from _pieces(source, _CDATA_END)
        source.commit()
        yield from source.space()
        if not (yield from source.literal(_CDATA)):
            # The space before the end is none of the value's.
            source.commit()
            return
        source.commit()


def _pieces(source: Source, marks: Marks) -> Generator[str | None, None, str | None]:
    """The pieces before a mark, which is looked past."""
    while True:
        piece, mark = source.step(marks, is_last=source.is_over)
        if piece:
            yield piece
        if mark or source.is_over:
            return mark
        yield None
