"""Forms for templates that object: what was there before keeps its form."""

import pytest

from omlx.errors import ModelError
from omlx.server.errors import ApiError
from omlx.server.prompt import render
from tests.fakes.templated import TemplatedText, template_names
from tests.fakes.text import FakeText

# All system messages first, as some families print them.
HOISTS = """{% set ns = namespace(system='') %}
{%- for m in messages if m.role == 'system' %}
{%- set ns.system = ns.system + m.content + '\\n' %}{% endfor %}
{{- ns.system }}{% for m in messages if m.role != 'system' %}
{{- '[' + m.role + ']' + m.content }}{% endfor %}
{{- '[assistant]' }}"""
# Says nothing of them but the first.
DROPS = """{%- for m in messages %}
{%- if loop.first or m.role != 'system' %}{{ '[' + m.role + ']' + m.content }}{% endif %}
{%- endfor %}{{ '[assistant]' }}"""
RAISES = """{%- for m in messages %}
{%- if m.role == 'system' and not loop.first %}{{ raise_exception('only at the beginning') }}
{%- endif %}{{ '[' + m.role + ']' + m.content }}{% endfor %}{{ '[assistant]' }}"""
# As Mistral's: roles alternate, and ids have nine letters and digits.
STRICT = """{%- set ns = namespace(last='') %}{%- for m in messages %}
{%- if m.role == 'system' and not loop.first %}{{ raise_exception('system') }}{% endif %}
{%- if m.role == ns.last and m.role == 'user' %}{{ raise_exception('alternate') }}{% endif %}
{%- set ns.last = m.role %}{%- for call in m.tool_calls or [] %}
{%- if call.id|length != 9 %}{{ raise_exception('id') }}{% endif %}{{ '<' + call.id + '>' }}
{%- endfor %}{{ '[' + m.role + ']' + m.content }}{% endfor %}{{ '[assistant]' }}"""

CALL = {"id": "call_1", "type": "function", "function": {"name": "ls", "arguments": "{}"}}
BEFORE = [
    {"role": "system", "content": "rules"},
    {"role": "user", "content": "list them"},
    {"role": "assistant", "content": "yes", "tool_calls": [CALL]},
    {"role": "tool", "content": "a.txt", "tool_call_id": "call_1"},
    {"role": "assistant", "content": "one file"},
    {"role": "user", "content": "thanks"},
]
LATE = [*BEFORE, {"role": "system", "content": "a late note"}]


@pytest.mark.parametrize("source", [HOISTS, DROPS, RAISES, STRICT])
def test_a_late_system_message_leaves_what_came_before_as_it_was(source: str) -> None:
    text = TemplatedText(source=source)
    before, after = render(text, BEFORE), render(text, LATE)
    assert after.startswith(before.removesuffix("[assistant]"))
    assert "a late note" in after


@pytest.mark.parametrize("name", template_names())
def test_real_templates_keep_what_came_before(name: str) -> None:
    text = TemplatedText(name)
    before, after = render(text, BEFORE), render(text, LATE)
    assert "a late note" in after
    assert after.index("thanks") < after.index("a late note")
    assert after.startswith(before[: before.index("thanks") + len("thanks")])


def test_two_system_messages_at_the_beginning_stay_there_when_a_third_comes_late() -> None:
    text = TemplatedText(source=HOISTS)
    more = {"role": "system", "content": "more rules"}
    before = render(text, [BEFORE[0], more, *BEFORE[1:]])
    after = render(text, [LATE[0], more, *LATE[1:]])
    assert after.startswith(before.removesuffix("[assistant]"))


def test_only_late_system_messages_make_it_ask_the_template() -> None:
    text = FakeText()
    render(text, BEFORE[:2])
    assert len(text.rendered) == 1
    render(text, [*BEFORE[:2], {"role": "system", "content": "x"}])
    assert len(text.rendered) == 3


def test_a_template_that_takes_no_note_gets_the_message_itself() -> None:
    """It would print it elsewhere, but refuses everything else."""

    class Picky(TemplatedText):
        def render(self, messages, *, tools=None, extra=None):
            if any("system-reminder" in str(message["content"]) for message in messages):
                raise ModelError("no notes")
            return super().render(messages, tools=tools, extra=extra)

    assert "a late note" in render(Picky(source=HOISTS), LATE)


def test_a_template_that_refuses_all_says_why_it_refused_the_first() -> None:
    with pytest.raises(ApiError, match="first words"):
        render(FakeText(refuse=lambda messages: "first words"), LATE)
