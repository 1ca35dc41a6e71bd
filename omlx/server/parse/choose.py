"""Chooses how a model's answers are split, by its template.

Knows nothing about tokens.
"""

from collections.abc import Callable

from omlx.server.parse.speech import SpeechForm


def choose_form(
    template: str | None,
    has_token: Callable[[str], bool],
    *,
    tools: str = "auto",
    reasoning: str = "auto",
) -> SpeechForm:
    """The form."""
    return SpeechForm()
