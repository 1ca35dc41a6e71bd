"""Splits an answer into reasoning, text and calls.

Knows nothing about tokens.
"""

from dataclasses import dataclass

from omlx.server.parse.said import CallFormat, Said, Text, Tools


@dataclass(frozen=True, slots=True)
class SpeechForm:
    """How a model marks reasoning and calls."""

    reasoning: tuple[str, str] | None = None
    calls: CallFormat | None = None
    kept: frozenset[str] = frozenset()

    def opens_thinking(self, prompt: str) -> bool:
        """Whether the prompt ends inside of reasoning."""
        return False


class Speech:
    """Splits one answer."""

    def __init__(self, form: SpeechForm, *, tools: Tools = (), is_thinking: bool = False) -> None:
        self._at = 0

    def add(self, text: str) -> list[Said]:
        """Take more text."""
        at, self._at = self._at, self._at + len(text)
        return [Text(text, at)] if text else []

    def finish(self, *, is_cut: bool) -> list[Said]:
        """Return what was held back."""
        return []
