"""Reads the text for a custom tool out of its function's arguments while these still come.

Knows nothing about items or events.
"""

import re

import orjson

from omlx.server.openai.responses_tools import INPUT, input_of

_START = re.compile(r'\s*\{\s*"' + INPUT + r'"\s*:\s*"')
# Whole characters of a JSON string; an escape that is not whole is left for later, and so is the
# first half of a pair of surrogates.
_CERTAIN = re.compile(
    r"(?:[^\"\\]|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|\\u(?![dD][89abAB])[0-9a-fA-F]{4}|\\[^u])*"
)


class InputReader:
    """The text so far of one call; for one thread at a time."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._held = ""
        self._is_inside = False
        self._is_over = False
        self._said: list[str] = []

    def add(self, arguments: str) -> str:
        """Take more of the arguments, return what is certain of the text (mutates)."""
        self._texts.append(arguments)
        if self._is_over:
            return ""
        self._held += arguments
        if not self._is_inside:
            start = _START.match(self._held)
            if start is None:
                return ""
            self._is_inside, self._held = True, self._held[start.end() :]
        certain = _CERTAIN.match(self._held)
        assert certain is not None, "it matches nothing as well"
        self._held = self._held[certain.end() :]
        self._is_over = self._held.startswith('"')
        text = _decoded(certain[0])
        if text is None:
            self._is_over = True
            return ""
        self._said.append(text)
        return text

    def finish(self) -> tuple[str, str]:
        """What was not said of the text yet, and all of it."""
        whole, said = input_of("".join(self._texts)), "".join(self._said)
        return whole.removeprefix(said) if whole.startswith(said) else "", whole


def _decoded(inside: str) -> str | None:
    """What the inside of a JSON string stands for; None where it is not valid."""
    try:
        return str(orjson.loads(f'"{inside}"'))
    except ValueError:
        return None
