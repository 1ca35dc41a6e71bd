"""Reads calls that stand as JSON objects: one, several, or a list of them.

Knows nothing about the marks before and behind them, except that they end a call.
"""

from enum import Enum, auto

from omlx.server.parse.calls import CallKeys, CallObject, Calls, to_next_event
from omlx.server.parse.jsontext import BLANKS

_SEPARATORS = BLANKS + ",;"


class _Place(Enum):
    START = auto()
    CALL = auto()
    BEHIND = auto()


class JsonCalls:
    """Reads `{...}`, `[{...}, {...}]`, or objects with blanks, commas or semicolons between."""

    def __init__(
        self, calls: Calls, *, ends: tuple[str, ...] = (), keys: CallKeys | None = None
    ) -> None:
        self._calls, self._ends = calls, ends
        self._keys = keys or CallKeys()
        self._place = _Place.START
        self._is_list = False
        self._object: CallObject | None = None
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
        if self._object is not None:
            self._object.finish(is_cut=is_cut)

    def _take(self, text: str, at: int) -> int:
        if self._object is not None:
            return self._take_call(self._object, text, at)
        char = text[at]
        if char == "{":
            self._object = CallObject(self._calls, self._keys, self._ends)
            self._place = _Place.CALL
            return at
        if self._place is _Place.START:
            return self._take_start(char, at)
        if char == "]" and self._is_list:
            self._is_list = False
            return at + 1
        # A bracket too many is a slip that models make, and no text.
        if char in _SEPARATORS or char == "}":
            return at + 1
        self.is_done = True
        return at

    def _take_start(self, char: str, at: int) -> int:
        if char in BLANKS:
            return at + 1
        if char == "[" and not self._is_list:
            self._is_list = True
            return at + 1
        self.is_bad = True
        return at

    def _take_call(self, call: CallObject, text: str, at: int) -> int:
        at = call.take(text, at)
        self.hit = call.hit
        self.is_bad = call.is_bad
        if call.is_done:
            self._object = None
            self._place = _Place.BEHIND
            self.is_done = bool(self.hit)
        return at
