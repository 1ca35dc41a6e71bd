"""How the answers of each model are split, worked out once.

Knows nothing about requests.
"""

from typing import Protocol

from omlx.server.parse.choose import choose_form
from omlx.server.parse.speech import SpeechForm
from omlx.settings.schema import Parser


class Vocabulary(Protocol):
    """What a form is chosen by."""

    @property
    def template(self) -> str:
        """The source of the chat template."""
        ...

    def token_id(self, text: str) -> int | None:
        """The token that is exactly this text."""
        ...


class SpeechForms:
    """The forms by template and settings, of which there are few; for one thread at a time."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, str], SpeechForm] = {}

    def of(self, text: Vocabulary, settings: Parser) -> SpeechForm:
        """The form of a model; ModelError for settings that name none (mutates)."""
        key = (text.template, settings.tools, settings.reasoning)
        if key not in self._known:
            self._known[key] = choose_form(
                text.template,
                lambda mark: text.token_id(mark) is not None,
                tools=settings.tools,
                reasoning=settings.reasoning,
            )
        return self._known[key]
