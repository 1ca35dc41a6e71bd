"""What the joined grammars take: a form, calls, either of them, and thoughts before."""

import llguidance
import pytest

from omlx.server.enforce import grammar_of
from omlx.server.errors import ApiError
from omlx.server.generation import Choice, Form, FormKind, Generation, ToolChoice
from omlx.server.parse.choose import choose_form
from omlx.server.parse.speech import SpeechForm
from tests.fakes.talk import TEMPLATE
from tests.fakes.text import FakeText

TEXT = FakeText(template=TEMPLATE)
FORM = choose_form(TEMPLATE, lambda _: False)
HARMONY = choose_form("<|channel|><|message|>", lambda _: False)
PARAMETERS = {
    "type": "object",
    "properties": {"path": {"type": "string"}},
    "required": ["path"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": "ls", "parameters": PARAMETERS}}]
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
ANSWER = Form(FormKind.SCHEMA, SCHEMA)
CALL = '<tool_call>\n{"name": "ls", "arguments": {"path": "a b"}}\n</tool_call>'
JSON = '{"n": 3}'
THOUGHTS = '<think>\nhm {"a</b> x\n</think>\n\n'
MUST_CALL = Generation("m", [], tools=TOOLS, tool_choice=ToolChoice(Choice.REQUIRED))
MUST_FIT = Generation("m", [], form=ANSWER)
EITHER = Generation("m", [], tools=TOOLS, form=ANSWER)
NO_CALLS = Generation("m", [], tools=TOOLS, form=ANSWER, tool_choice=ToolChoice(Choice.NONE))


def takes(generation: Generation, said: str, form: SpeechForm = FORM) -> bool:
    grammar = grammar_of(generation, TEXT, form, is_thinking=False)
    tokenizer = llguidance.LLTokenizer("byte")
    matcher = llguidance.LLMatcher(tokenizer, grammar.text)
    assert not matcher.is_error(), matcher.get_error()
    tokens = tokenizer.tokenize_str(said)
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


@pytest.mark.parametrize("before", ["", THOUGHTS])
@pytest.mark.parametrize(
    ("generation", "taken"),
    [(MUST_CALL, {CALL}), (MUST_FIT, {JSON}), (EITHER, {CALL, JSON}), (NO_CALLS, {JSON})],
)
def test_case_k10_what_is_taken_after_free_thoughts(generation, taken, before):
    for said in (CALL, JSON, "hello", '{"n": "3"}', '{"n": 3, "m": 1}'):
        assert takes(generation, before + said) is (said in taken), said
    assert not takes(generation, THOUGHTS)


def test_thoughts_that_the_prompt_has_opened_are_free_up_to_their_end():
    grammar = grammar_of(MUST_FIT, TEXT, FORM, is_thinking=True)
    assert grammar.after == "</think>"
    assert "thoughts" not in grammar.text


def test_harmony_answers_in_its_final_channel():
    assert takes(MUST_FIT, f"<|channel|>final<|message|>{JSON}", HARMONY)
    assert not takes(MUST_FIT, JSON, HARMONY)


def test_calls_can_not_be_required_where_their_form_is_not_known():
    with pytest.raises(ApiError, match="not known") as caught:
        grammar_of(MUST_CALL, FakeText(), SpeechForm(), is_thinking=False)
    assert caught.value.param == "$.tool_choice"


def test_no_grammar_where_nothing_is_asked_for():
    assert grammar_of(Generation("m", [], tools=TOOLS), TEXT, FORM, is_thinking=False) is None
