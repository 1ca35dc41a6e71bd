import logging

import pytest

from omlx.errors import ModelError
from omlx.server.parse.choose import choose_form
from omlx.server.parse.formats import call_formats

QWEN3 = (
    "{%- if tools %}# Tools\nwithin <tools></tools> ... <tool_call>\\n"
    '{"name": <function-name>, "arguments": <args-json-object>}\\n</tool_call>{% endif %}'
    "{{- '<think>\\n' + reasoning_content + '</think>' }}"
)
# What a template holds, the name of its calls, the name of its reasoning.
TEMPLATES = [
    (QWEN3, "hermes", "think"),
    ("{% if tools %}<tool_call>{{ tool_call.name }}", "hermes", None),
    ("{% if tools %}<|python_tag|>{{ tool_call.arguments }}", "llama3_json", None),
    ('{% if tools %}{"name": function name, "parameters": dictionary', "llama3_json", None),
    ("{% if tools %}<|tool_list_start|>", "pythonic", None),
    ("{% if tools %}[func_name1(params_name1=params_value1)]", "llama4_pythonic", None),
    ("{% if tools %}[TOOL_CALLS]{{ name }}[ARGS][THINK]", "mistral", "mistral"),
    ("{% if tools %}[AVAILABLE_TOOLS][TOOL_CALLS] [", "mistral_json", None),
    ("<｜tool▁calls▁begin｜>function<｜tool▁sep｜>x\\n```json", "deepseek_v3", None),
    ("<｜tool▁sep｜>x\\n```json {{ content.split('</think>') }}", "deepseek_r1", "think"),
    ("<｜tool▁calls▁begin｜><｜tool▁sep｜></think>", "deepseek_v31", "think"),
    ("{% if tools %}<|tool_call|> Here is my thought process:", "granite", "granite"),
    ("<|START_ACTION|><|START_THINKING|>", "cohere", "cohere"),
    ("<seed:think></seed:think>", None, "seed"),
    ("{{ messages }}", None, None),
]


def no_token(token: str) -> bool:
    return False


@pytest.mark.parametrize(("template", "calls", "reasoning"), TEMPLATES)
def test_the_template_tells_the_form(template, calls, reasoning, caplog):
    form = choose_form(template, no_token)
    assert (form.calls.name if form.calls else None) == calls
    assert (form.reasoning.name if form.reasoning else None) == reasoning
    assert not caplog.records


def test_case_k5_tools_in_no_known_format_are_loud(caplog):
    with caplog.at_level(logging.WARNING, logger="omlx"):
        form = choose_form("{% if tools %}<odd:call>{% endif %}", no_token)
    assert form.calls is not None
    assert form.calls.name == "hermes"
    assert "no format that is known" in caplog.text


def test_a_format_that_is_named_is_taken_without_a_warning(caplog):
    form = choose_form("{% if tools %}<odd:call>", no_token, tools="mistral", reasoning="seed")
    assert form.calls is call_formats()["mistral"] or form.calls == call_formats()["mistral"]
    assert form.reasoning is not None
    assert form.reasoning.name == "seed"
    assert not caplog.records


def test_case_k5_a_format_other_than_the_template_s_is_loud(caplog):
    with caplog.at_level(logging.WARNING, logger="omlx"):
        form = choose_form(QWEN3, no_token, tools="mistral")
    assert form.calls is not None
    assert form.calls.name == "mistral"
    assert "mistral" in caplog.text
    assert "hermes" in caplog.text


def test_none_turns_a_part_off():
    form = choose_form(QWEN3, no_token, tools="none", reasoning="none")
    assert (form.calls, form.reasoning) == (None, None)


def test_tokens_tell_where_the_template_is_silent():
    tokens = {"<|tool_call_start|>", "<think>", "</think>"}
    form = choose_form("{% if tools %}{{ tools }}", tokens.__contains__)
    assert form.calls is not None
    assert form.reasoning is not None
    assert (form.calls.name, form.reasoning.name) == ("pythonic", "think")
    assert choose_form(None, no_token).calls is None


@pytest.mark.parametrize("part", ["tools", "reasoning"])
def test_a_name_that_is_not_known_is_refused(part):
    with pytest.raises(ModelError, match="nothing_like_it") as refused:
        choose_form(QWEN3, no_token, **{part: "nothing_like_it"})
    assert {"tools": "hermes", "reasoning": "think"}[part] in refused.value.hint
