"""Turns token ids into text one at a time, giving out only whole characters.

Knows nothing about files, templates or stop strings.
"""

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from os.path import commonprefix
from typing import Protocol, cast

from omlx.models.config import items, mapping

# Most tokens that are held back for one unfinished character before it is given up.
_HELD_TOKENS = 32
_BYTE_TOKENS = {f"<0x{value:02X}>": bytes([value]) for value in range(256)}


class Detokenizer(Protocol):
    """One answer's tokens becoming text; for one thread at a time."""

    def add(self, token_id: int) -> str:
        """Take the next token and return the text that is now certain, maybe none (mutates)."""
        ...

    def finish(self) -> str:
        """Return what was held back, an unfinished character as U+FFFD (mutates)."""
        ...


@dataclass(frozen=True, slots=True)
class PieceRule:
    """How a tokenizer's tokens spell bytes that only have to be joined."""

    is_byte_level: bool = False
    has_byte_tokens: bool = False
    space: str = ""
    # Spaces removed from the start of the whole text.
    strip_spaces: int = 0
    # The first token loses its space marks.
    is_first_bare: bool = False


def piece_rule(decoder: object) -> PieceRule | None:
    """The rule of a tokenizer.json "decoder", or None where joining bytes would not be exact."""
    entry = mapping(decoder)
    if entry.get("type") == "Sequence":
        return _sequence_rule(items(entry.get("decoders")))
    return _sequence_rule([decoder]) if "type" in entry else None


def _sequence_rule(steps: Sequence[object]) -> PieceRule | None:
    rule, is_fused = PieceRule(), False
    for position, step in enumerate(steps):
        match step:
            case {"type": "ByteLevel"} if len(steps) == 1:
                rule = replace(rule, is_byte_level=True)
            case {"type": "ByteFallback"}:
                rule = replace(rule, has_byte_tokens=True)
            case {"type": "Fuse"}:
                is_fused = True
            case {"type": "Replace", "pattern": {"String": str(mark)}, "content": " "} if (
                not rule.space and not is_fused and len(mark) == 1
            ):
                rule = replace(rule, space=mark)
            case {"type": "Metaspace", "replacement": str(mark)} if (
                not rule.space and not is_fused and len(mark) == 1
            ):
                rule = replace(rule, space=mark, is_first_bare=_is_first_bare(step))
            case {"type": "Strip", "content": " ", "start": int(start), "stop": 0} if (
                is_fused and position == len(steps) - 1
            ):
                rule = replace(rule, strip_spaces=start)
            case _:
                return None
    return rule


def _is_first_bare(metaspace: object) -> bool:
    options = mapping(metaspace)
    scheme = options.get("prepend_scheme")
    return bool(options.get("add_prefix_space", True)) if scheme is None else scheme != "never"


def _byte_alphabet() -> dict[str, int]:
    """The characters that byte-level vocabularies write bytes with (printable ones as they are)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (value for value in range(256) if value not in plain)
    alphabet = {chr(value): value for value in plain}
    return alphabet | {chr(256 + n): value for n, value in enumerate(others)}


class Pieces:
    """The bytes of each token, worked out when first asked for; any thread may use it.

    `mark` gives the text of special tokens that are a part of the answer all the same.
    """

    def __init__(
        self,
        rule: PieceRule,
        *,
        token: Callable[[int], str | None],
        is_skipped: Callable[[int], bool],
        mark: Callable[[int], str | None] = lambda _: None,
    ) -> None:
        self.rule = rule
        self._token = token
        self._is_skipped = is_skipped
        self._mark = mark
        self._alphabet = _byte_alphabet() if rule.is_byte_level else {}
        self._known: dict[int, bytes] = {}

    def bytes_of(self, token_id: int, *, is_first: bool) -> bytes | None:
        """What a token adds to the text; None for one that is no part of it."""
        known = self._known.get(token_id)
        if known is not None and not (is_first and self.rule.is_first_bare):
            return known
        mark = self._mark(token_id)
        if mark is not None:
            return mark.encode("utf-8", "replace")
        token = None if self._is_skipped(token_id) else self._token(token_id)
        if token is None:
            return None
        if is_first and self.rule.is_first_bare:
            return self._spell(token.replace(self.rule.space, ""))
        return self._known.setdefault(token_id, self._spell(token))

    def _spell(self, token: str) -> bytes:
        if self.rule.is_byte_level:
            values = [self._alphabet.get(character) for character in token]
            if None not in values:
                return bytes(cast(list[int], values))
        if self.rule.has_byte_tokens and token.upper().replace("X", "x") in _BYTE_TOKENS:
            return _BYTE_TOKENS[token.upper().replace("X", "x")]
        text = token.replace(self.rule.space, " ") if self.rule.space else token
        return text.encode("utf-8", "replace")


class PieceDetokenizer:
    """Joins the bytes of tokens; constant work a token."""

    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._is_first = True
        self._strip = pieces.rule.strip_spaces

    def add(self, token_id: int) -> str:
        """Take the next token and return the text that is now certain (mutates)."""
        piece = self._pieces.bytes_of(token_id, is_first=self._is_first)
        if piece is None:
            return ""
        self._is_first = False
        return self._stripped(self._decoder.decode(piece))

    def finish(self) -> str:
        """Return an unfinished character, if any, as U+FFFD (mutates)."""
        return self._stripped(self._decoder.decode(b"", final=True))

    def _stripped(self, text: str) -> str:
        while self._strip and text:
            if not text.startswith(" "):
                self._strip = 0
                break
            text, self._strip = text[1:], self._strip - 1
        return text


class WindowDetokenizer:
    """Decodes the newest tokens together with the group before them, for any other tokenizer."""

    def __init__(
        self,
        decode: Callable[[Sequence[int]], str],
        *,
        is_skipped: Callable[[int], bool],
        mark: Callable[[int], str | None] = lambda _: None,
    ) -> None:
        self._decode = decode
        self._is_skipped = is_skipped
        self._mark = mark
        self._context: list[int] = []
        self._held: list[int] = []
        self._shown = ""

    def add(self, token_id: int) -> str:
        """Take the next token and return the text that is now certain (mutates)."""
        mark = self._mark(token_id)
        if mark is not None:
            return self._restarted() + mark
        if self._is_skipped(token_id):
            return ""
        self._held.append(token_id)
        text = self._decode([*self._context, *self._held])
        # A tokenizer shows an unfinished character as U+FFFD, or not at all.
        is_open = text.endswith("\ufffd") or len(text) <= len(self._shown)
        if is_open and len(self._held) < _HELD_TOKENS:
            return ""
        return self._advance(text)

    def finish(self) -> str:
        """Return what was held back (mutates)."""
        return self._advance(self._decode([*self._context, *self._held])) if self._held else ""

    def _restarted(self) -> str:
        """What was held back, with nothing of it as the context of what follows."""
        text = self.finish()
        self._context, self._held, self._shown = [], [], ""
        return text

    def _advance(self, text: str) -> str:
        new = text[len(commonprefix([self._shown, text])) :]
        self._context, self._held = self._held, []
        self._shown = self._decode(self._context)
        return new
