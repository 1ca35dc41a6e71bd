"""The text side of a model whose chat template is given variables, such as a switch for thinking.

Knows nothing about where their values come from.
"""

from collections.abc import Mapping, Sequence

from omlx.models.detokenize import Detokenizer
from omlx.server.context import Message, ModelText, Range
from omlx.settings.build import ModelSettings

# Under these names the templates of model families read the same switch.
_THINKING = ("enable_thinking", "thinking")


def with_variables(text: ModelText, settings: ModelSettings) -> ModelText:
    """The text side that renders as these settings say; the same where they say nothing."""
    if settings.thinking is None:
        return text
    return _Varied(text, dict.fromkeys(_THINKING, settings.thinking))


class _Varied:
    """Another text side, but for the variables."""

    def __init__(self, text: ModelText, variables: Mapping[str, object]) -> None:
        self._text = text
        self._variables = variables

    @property
    def eos_ids(self) -> frozenset[int]:
        return self._text.eos_ids

    @property
    def context_window(self) -> int | None:
        return self._text.context_window

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> str:
        variables = {**self._variables, **(extra or {})}
        return self._text.render(messages, tools=tools, extra=variables)

    def encode_at(self, text: str, chars: Sequence[Range]) -> tuple[list[int], list[Range] | None]:
        return self._text.encode_at(text, chars)

    def stream(self) -> Detokenizer:
        return self._text.stream()
