"""The text side of a model whose chat template is given variables, such as a switch for thinking.

Knows nothing about any one template.
"""

from collections.abc import Iterable, Mapping, Sequence

from omlx.models.detokenize import Detokenizer
from omlx.models.segments import Splice
from omlx.server.context import Message, ModelText, Range
from omlx.server.generation import Generation
from omlx.settings.build import ModelSettings

# Under these names the templates of model families read the same switch.
_THINKING = ("enable_thinking", "thinking")
_EFFORT = "reasoning_effort"


def with_variables(
    text: ModelText, settings: ModelSettings, generation: Generation | None = None
) -> ModelText:
    """The text side that renders as request and settings say; the same where they say nothing.

    What the client says goes before the settings, and these before what silence means in its
    dialect.
    """
    variables = _variables(settings, generation)
    return _Varied(text, variables) if variables else text


def _variables(settings: ModelSettings, generation: Generation | None) -> dict[str, object]:
    if generation is None:
        return {} if settings.thinking is None else dict.fromkeys(_THINKING, settings.thinking)
    wish = generation.thinking
    answers = (wish.is_on, settings.thinking, wish.is_on_by_default)
    is_on = next((answer for answer in answers if answer is not None), None)
    variables: dict[str, object] = {} if is_on is None else dict.fromkeys(_THINKING, is_on)
    if wish.effort is not None:
        variables[_EFFORT] = wish.effort
    return {**variables, **generation.variables}


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

    @property
    def template(self) -> str:
        return self._text.template

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> str:
        variables = {**self._variables, **(extra or {})}
        return self._text.render(messages, tools=tools, extra=variables)

    @property
    def identity(self) -> str:
        return self._text.identity

    def encode_at(
        self, text: str, chars: Sequence[Range], splices: Sequence[Splice] = ()
    ) -> tuple[list[int], list[Range] | None]:
        return self._text.encode_at(text, chars, splices)

    def spelt(self, ids: Iterable[int]) -> list[bytes] | None:
        return self._text.spelt(ids)

    def spell(self, ids: Sequence[int]) -> str:
        return self._text.spell(ids)

    def encode(self, text: str) -> list[int]:
        return self._text.encode(text)

    def token_id(self, text: str) -> int | None:
        return self._text.token_id(text)

    def is_special(self, text: str) -> bool:
        return self._text.is_special(text)

    def token_bytes(self, token_id: int) -> bytes:
        return self._text.token_bytes(token_id)

    def stream(self, kept: frozenset[str] = frozenset()) -> Detokenizer:
        return self._text.stream(kept)
