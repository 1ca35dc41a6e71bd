"""Chat templates: same text as transformers, every shape of message, refusals with the reason.

Knows nothing about tokens.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import date, datetime
from typing import Any

import pytest

from omlx.models.template import ChatTemplate, TemplateError
from tests.unit.models import templates
from tests.unit.models.tiny import chat

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
TOOL = {
    "type": "function",
    "function": {"name": "get_weather", "description": "<b>Wetter</b> für & 'x'", "parameters": {}},
}


def template(source: str | Mapping[str, str], **kwargs: Any) -> ChatTemplate:
    sources = {"default": source} if isinstance(source, str) else source
    return ChatTemplate(sources, special=SPECIAL, **kwargs)


def render(
    source: str | Mapping[str, str],
    messages: Sequence[Mapping[str, object]],
    *,
    tools: Sequence[Mapping[str, object]] | None = None,
    add_generation_prompt: bool = False,
    **extra: object,
) -> str:
    return template(source).render(
        messages, tools=tools, add_generation_prompt=add_generation_prompt, extra=extra
    )


def call(arguments: object, *, content: object = "") -> list[dict[str, object]]:
    function = {"name": "f", "arguments": arguments}
    assistant = {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": "1", "type": "function", "function": function}],
    }
    return [{"role": "user", "content": "go"}, assistant]


def test_tojson_keeps_html_order_and_letters() -> None:
    text = render("{{ tools[0] | tojson }}", chat(("user", "x")), tools=[TOOL])
    assert text == json.dumps(TOOL, ensure_ascii=False)
    assert "<b>Wetter</b> für & 'x'" in text


def test_raise_exception_carries_the_templates_words() -> None:
    with pytest.raises(TemplateError, match=r"System message must be at the beginning\."):
        render(templates.QWEN, chat(("user", "a"), ("system", "b")))


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 1 }}",
        "{{ messages[7].content.x }}",
        "{{ 1 // 0 }}",
        "{{ messages | tojson(indent='x') }}{{ missing() }}",
        "{% for i in range(10 ** 12) %}{% endfor %}",
        "{{ ''.__class__.__mro__ }}",
        "{{ namespace(__class__=1) }}",
        "{% set ns = namespace() %}{% set ns.__init__ = 1 %}",
        "{% set _ = messages.append(1) %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
)
def test_a_template_that_fails_or_attacks_is_a_refusal(source: str) -> None:
    with pytest.raises(TemplateError, match="refused the messages: ."):
        render(source, chat(("user", "x")))


def test_a_broken_template_says_where() -> None:
    with pytest.raises(TemplateError, match=r"'default' is broken, line 2"):
        template("a\n{% if %}").check()


def test_no_messages_is_a_refusal() -> None:
    with pytest.raises(TemplateError, match="no messages"):
        render(templates.PLAIN, [])


def test_named_templates_are_chosen_by_tools() -> None:
    named = {"default": "plain", "tool_use": "tools", "rag": "rag"}
    assert render(named, chat(("user", "x"))) == "plain"
    assert render(named, chat(("user", "x")), tools=[TOOL]) == "tools"
    assert render({"tool_use": "only"}, chat(("user", "x"))) == "only"
    with pytest.raises(TemplateError, match="only: a, b"):
        render({"a": "1", "b": "2"}, chat(("user", "x")))


def test_special_tokens_and_extra_values_reach_the_template() -> None:
    assert render("{{ bos_token }}{{ mood }}", chat(("user", "x")), mood="!") == "<s>!"
    assert render("{{ bos_token }}", chat(("user", "x")), bos_token="B") == "B"


def test_a_dated_template_changes_once_a_day() -> None:
    class Evening(datetime):
        """A clock in the evening, as a date."""

    def on(day: date) -> str:
        source = "{{ strftime_now('%Y-%m-%d %H:%M:%S') }}"
        return template(source, today=lambda: day).render(
            chat(("user", "x")), tools=None, add_generation_prompt=False, extra={}
        )

    assert on(date(2026, 3, 4)) == "2026-03-04 00:00:00"
    assert on(Evening(2026, 3, 4, 21, 5, 7)) == "2026-03-04 00:00:00"
    assert on(date(2026, 3, 5)) == "2026-03-05 00:00:00"


def test_a_random_template_repeats_itself() -> None:
    source = "{{ ['a', 'b', 'c', 'd'] | random }}"
    assert {render(source, chat(("user", "x"))) for _ in range(20)} == {"a"}


class TestContent:
    """Lists, nothing, names and order."""

    PARTS = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]

    @pytest.mark.parametrize("role", ["system", "user", "assistant", "tool", "developer"])
    def test_text_parts_are_joined_for_text_templates(self, role: str) -> None:
        text = render(templates.PLAIN, chat(("user", "x"), (role, self.PARTS)))
        assert text.endswith(f"<|im_start|>{role}\na\nb<|im_end|>\n")

    def test_parts_are_joined_as_the_template_would(self) -> None:
        text = render(templates.PARTS_OR_TEXT, chat(("user", self.PARTS), ("user", "c")))
        assert text == "<s>user: ab</s><s>user: c</s>"

    def test_a_template_for_parts_gets_parts(self) -> None:
        text = render(templates.PARTS, chat(("system", "s"), ("user", self.PARTS)))
        assert text == "system: s|user: ab|"

    def test_parts_that_are_no_text_are_left_to_the_template(self) -> None:
        image = [{"type": "image"}, {"type": "text", "text": "a"}]
        assert render("{{ messages[0].content | tojson }}", chat(("user", image))) == json.dumps(
            image
        )

    def test_empty_list_is_empty_text(self) -> None:
        assert render(templates.PLAIN, chat(("user", []))) == "<|im_start|>user\n<|im_end|>\n"

    @pytest.mark.parametrize("message", [{"content": None}, {}, {"content": ""}])
    def test_missing_content_is_empty_text(self, message: dict[str, object]) -> None:
        turn = {"role": "assistant", **message}
        for source in (templates.PLAIN, templates.QWEN):
            text = render(source, [*chat(("user", "x")), turn])
            assert text.endswith("<|im_start|>assistant\n<|im_end|>\n")
            assert "None" not in text

    def test_two_systems_and_consecutive_users_and_a_last_assistant(self) -> None:
        turns = chat(("system", "a"), ("system", "b"), ("user", "c"), ("user", "d"))
        text = render(templates.PLAIN, [*turns, *chat(("assistant", "e"))])
        assert [line for line in text.splitlines() if len(line) < 12] == [
            f"{letter}<|im_end|>" for letter in "abcde"
        ]

    def test_reasoning_reaches_the_names_that_templates_read(self) -> None:
        source = "{{ messages[0].reasoning_content }}{{ messages[0].thinking }}"
        for name in ("reasoning_content", "thinking", "reasoning"):
            assert render(source, [{"role": "assistant", "content": "", name: "why"}]) == "whywhy"

    def test_the_callers_messages_stay_as_they_are(self) -> None:
        messages = call('{"a": 1}', content=None)
        before = json.dumps(messages)
        render(templates.QWEN, messages)
        assert json.dumps(messages) == before


SHAPES: dict[str, list[dict[str, object]]] = {
    "system only": list(chat(("system", "s"))),
    "system late": list(chat(("user", "u"), ("system", "s"), ("user", "v"))),
    "two systems": list(chat(("system", "s"), ("system", "t"), ("user", "u"))),
    "developer": list(chat(("developer", "d"), ("user", "u"))),
    "assistant first": list(chat(("assistant", "a"), ("user", "u"))),
    "assistant last": list(chat(("user", "u"), ("assistant", "a"))),
    "users in a row": list(chat(("user", "u"), ("user", "v"))),
    "parts": list(chat(("user", TestContent.PARTS), ("tool", TestContent.PARTS))),
    "image": list(chat(("user", [{"type": "image_url", "image_url": {"url": "x"}}]))),
    "content of a wrong type": list(chat(("user", 5), ("assistant", {"a": 1}))),
    "no role": [{"content": "x"}],
    "nothing": [{}],
    "odd calls": [{"role": "assistant", "tool_calls": [5, None, {}, {"function": 7}]}],
    "calls of a wrong type": [{"role": "assistant", "content": "", "tool_calls": "x"}],
}
ALL = {name: source for name, source in vars(templates).items() if name.isupper()}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", ALL)
def test_every_shape_is_rendered_or_refused(name: str, shape: str) -> None:
    """Whatever a client sends, a template answers or refuses; nothing else escapes."""
    try:
        text = render(ALL[name], SHAPES[shape], tools=[TOOL], add_generation_prompt=True)
    except TemplateError as error:
        assert "refused the messages" in error.message
        must_pass = ("assistant last", "users in a row", "two systems", "parts", "developer")
        assert shape not in must_pass or (name, shape) == ("QWEN", "two systems")
    else:
        assert isinstance(text, str)


class TestArguments:
    """Text on the wire, a mapping in the template, or the opposite."""

    EVERY = ['{"a": 1}', "", "null", "not json", "[1]", {"a": 1}, None, "7", '{"a": {"b": "é"}}']
    SOURCES = [templates.QWEN, templates.ITEMS, templates.CONCAT, templates.PRINTED]

    @pytest.mark.parametrize("arguments", EVERY)
    @pytest.mark.parametrize("source", SOURCES)
    @pytest.mark.parametrize("content", [None, "", "text"])
    def test_no_arguments_ever_fail(self, source: str, arguments: object, content: object) -> None:
        text = render(source, call(arguments, content=content))
        for fragment in ("not json", "[1]"):
            assert (fragment in text) == (arguments == fragment)
        assert "{'" not in text

    def test_a_mapping_template_gets_a_mapping(self) -> None:
        text = render(templates.ITEMS, call('{"city": "Köln", "deep": {"x": [1]}}'))
        assert "<city>Köln</city>" in text
        assert '<deep>{"x": [1]}</deep>' in text

    def test_a_text_template_gets_the_clients_text(self) -> None:
        wire = '{"b":1,  "a":"é"}'
        assert f"f({wire})" in render(templates.CONCAT, call(wire))
        assert wire in render(templates.PRINTED, call(wire))
        assert 'f({"a": "é"})' in render(templates.CONCAT, call({"a": "é"}))

    def test_one_bad_call_leaves_earlier_turns_as_they_were(self) -> None:
        """The prompt's start must stay the same, or the cached prefix is lost."""
        good, bad = call('{"a": 1}', content="c"), call("not json", content="c")
        for source in self.SOURCES:
            assert render(source, [*good, *bad]).startswith(render(source, good).rstrip("\n"))

    def test_parallel_calls_are_all_rendered(self) -> None:
        messages = call('{"a": 1}')
        first = messages[1]["tool_calls"][0]  # type: ignore[index]
        second = {"function": {"name": "g", "arguments": '{"z": 2}'}}
        messages[1]["tool_calls"] = [first, second, {"name": "h", "arguments": "{}"}]
        text = render(templates.QWEN, messages)
        assert [name in text for name in ('"f"', '"g"', '"h"', '{"z": 2}')] == [True] * 4
