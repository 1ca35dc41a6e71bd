"""A text side with a real chat template: tokens are bytes, as in FakeText."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from omlx.models.template import ChatTemplate
from tests.fakes.text import FakeText

_TEMPLATES = Path(__file__).resolve().parents[1] / "data" / "templates"
_SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}


class TemplatedText(FakeText):
    """Renders with the template of that name among the test data, or with a source."""

    def __init__(self, name: str = "", *, source: str = "", context_window: int | None = None):
        source = source or (_TEMPLATES / f"{name}.jinja").read_text("utf-8")
        super().__init__(context_window=context_window, template=source)
        self._template = ChatTemplate({"default": source}, special=_SPECIAL)

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        extra: Mapping[str, object] | None = None,
    ) -> str:
        return self._template.render(
            messages, tools=tools, add_generation_prompt=True, extra=dict(extra or {})
        )


def template_names() -> list[str]:
    """The real templates that there are."""
    return sorted(path.stem for path in _TEMPLATES.glob("*.jinja"))
