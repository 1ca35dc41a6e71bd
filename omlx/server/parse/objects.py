"""Reads one JSON object, or one that a dialect writes in its own quotes, as JSON in pieces.

Knows nothing about calls; what it gives is one whole object, however broken the text was.
"""

import json
from collections.abc import Generator, Sequence

from omlx.server.parse.marks import Marks
from omlx.server.parse.source import Source
from omlx.server.parse.typed import ANY, Schema, Types, argument_types, as_json, escaped

# Pieces of JSON, None to wait; True: the value was complete and sound.
Pieces = Generator[str | None, None, bool]

_MAX_DEPTH = 64
_MAX_SCALAR = 4096
_OPENERS = Marks(["{", "["])
_CLOSERS = {"{": Marks(["}"]), "[": Marks(["]"])}
_OPEN = Marks(["{"])
_COMMA = Marks([","])
_COLON = Marks([":"])
_INSIDE = ['"', "\\", *map(chr, range(32))]
_SCALAR_STOPS = frozenset(',]}"<\n\r')
_KEY_STOPS = frozenset(':,]}{["<\n\r')


class Quotes:
    """What to look for in strings; made once for all answers.

    `raw`: marks around strings that hold no escapes; with them, keys and words may stand bare.
    `stops`: what ends the object even in a string, since it can be nothing else.
    """

    def __init__(self, raw: Sequence[str] = (), *, stops: Sequence[str] = ()) -> None:
        self.is_loose = bool(raw)
        self.all = Marks(['"', *raw])
        self.inside = Marks([*_INSIDE, *stops])
        self.raw = {quote: Marks([quote, *stops]) for quote in raw}


class ObjectReader:
    """Reads the object that comes next in a source."""

    def __init__(self, source: Source, quotes: Quotes, schema: Schema) -> None:
        self._source = source
        self._quotes = quotes
        self._schema = schema

    def read(self) -> Pieces:
        """The object's JSON; {} where there is none."""
        yield from self._source.blank()
        if not (yield from self._source.literal(_OPEN)):
            self._source.rewind()
            yield "{}"
            return False
        self._source.commit()
        return (yield from self._container("{", _MAX_DEPTH, self._schema))

    def _value(self, depth: int, types: Types) -> Pieces:
        source = self._source
        if quote := (yield from source.literal(self._quotes.all)):
            source.commit()
            return (yield from self._string(quote))
        opener = (yield from source.literal(_OPENERS)) if depth else None
        if opener:
            source.commit()
            return (yield from self._container(opener, depth, None))
        word = yield from source.word(_SCALAR_STOPS, _MAX_SCALAR)
        bare = word.rstrip()
        found = as_json(bare, types if self._quotes.is_loose else ANY)
        if not bare or (found[:1] == '"' and not self._quotes.is_loose):
            yield "null"
            return False
        yield found + word[len(bare) :] if not self._quotes.is_loose else found
        return True

    def _container(self, opener: str, depth: int, schema: Schema | None) -> Pieces:
        """What stands between brackets; `schema` is that of the outermost object."""
        source, closer = self._source, "}" if opener == "{" else "]"
        yield opener
        before = ""
        while True:
            space = yield from source.blank()
            if (yield from source.literal(_CLOSERS[opener])):
                source.commit()
                # A comma before it is left out.
                yield (space if not before else "") + closer
                return True
            key = ""
            if opener == "{":
                key = yield from self._key(before + space)
                if not key:
                    break
            else:
                yield before + space
            types = argument_types(schema, json.loads(key)) if schema and key else ANY
            if not (yield from self._value(depth - 1, types)):
                break
            space = yield from source.blank()
            if (yield from source.literal(_CLOSERS[opener])):
                source.commit()
                yield space + closer
                return True
            if not (yield from source.literal(_COMMA)):
                break
            source.commit()
            before = space + ","
        source.rewind()
        yield closer
        return False

    def _key(self, before: str) -> Generator[str | None, None, str]:
        """Say a key and its colon; "" if there is no key, null is its value if no colon is."""
        source = self._source
        pieces: list[str] = []
        if quote := (yield from source.literal(self._quotes.all)):
            source.commit()
            for piece in self._string(quote):
                if piece is None:
                    yield None
                else:
                    pieces.append(piece)
        else:
            source.rewind()
            word = (yield from source.word(_KEY_STOPS, 256)).strip()
            if word:
                pieces.append(json.dumps(word, ensure_ascii=False))
        key = "".join(pieces)
        if not key:
            return ""
        space = yield from source.blank()
        if not (yield from source.literal(_COLON)):
            source.rewind()
            yield f"{before}{key}: null"
            return ""
        source.commit()
        after = yield from source.blank()
        yield f"{before}{key}{space}:{after}"
        return key

    def _string(self, quote: str) -> Pieces:
        source = self._source
        marks = self._quotes.raw.get(quote, self._quotes.inside)
        yield '"'
        while True:
            piece, mark = source.step(marks, is_last=source.is_over)
            if piece:
                yield piece if quote == '"' else escaped(piece)
            if mark == quote:
                source.commit()
                yield '"'
                return True
            if mark == "\\":
                source.commit()
                yield from self._escape()
            elif mark and len(mark) == 1:
                # A control character: models write newlines as they are.
                source.commit()
                yield escaped(mark)
            elif mark or source.is_over:
                source.rewind()
                yield '"'
                return False
            else:
                yield None

    def _escape(self) -> Generator[str | None, None, None]:
        """Say what stands behind a backslash."""
        source = self._source
        char = yield from source.some(1)
        if char == "u":
            code = yield from source.some(4)
            if len(code) == 4 and all(c in "0123456789abcdefABCDEF" for c in code):
                source.commit()
                yield f"\\u{code}"
                return
        elif char and char in '"\\/bfnrt':
            source.commit()
            yield "\\" + char
            return
        source.rewind()
        yield "\\\\"
