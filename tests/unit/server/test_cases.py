"""Cases of the dialects, end to end over HTTP with a scripted engine or a real template."""

import json
import logging

import pytest

from omlx.engine.request import FinishReason
from omlx.models.text import TextModel
from omlx.server.openai.chat import Chat
from omlx.server.prompt import prepare
from tests.fakes.engine import ScriptedEngine, say
from tests.fakes.model_folder import write_model_folder
from tests.fakes.server import Plan, running
from tests.fakes.talk import TEMPLATE
from tests.fakes.text import FakeText
from tests.unit.server import strict

TOOL = {
    "type": "function",
    "function": {
        "name": "ls",
        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
    },
}
USE = {"name": "ls", "input_schema": TOOL["function"]["parameters"]}
CALL = '<tool_call>\n{"name": "ls", "arguments": {"path": "a b"}}\n</tool_call>'
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


def plan(said: str = "ok", *, per_step: int = 1, reason=FinishReason.STOP) -> Plan:
    script = say(said, per_step=per_step, reason=reason)
    return Plan(text=FakeText(template=TEMPLATE), engines=[ScriptedEngine(script=script)])


@pytest.mark.parametrize(
    ("thinking", "expected"),
    [
        (None, False),
        ({"type": "disabled"}, False),
        ({"type": "enabled", "budget_tokens": 1024}, True),
        ({"type": "adaptive"}, True),
    ],
)
def test_case_a5_thinking_only_where_it_is_asked_for(thinking, expected):
    with running(plan()) as server:
        fields = {} if thinking is None else {"thinking": thinking}
        assert server.message(**fields).status_code == 200
        assert server.text.extra["enable_thinking"] is expected
        server.chat()
        assert "enable_thinking" not in server.text.extra, "silence means nothing there"
        server.chat(reasoning_effort="none")
        assert server.text.extra["enable_thinking"] is False


def test_case_a6_thoughts_of_earlier_turns_go_to_the_template():
    blocks = [
        {"type": "thinking", "thinking": "x"},
        {"type": "redacted_thinking", "data": "?"},
        {"type": "text", "text": "y"},
        {"type": "tool_use", "id": "toolu_1", "name": "ls", "input": {}},
    ]
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "a.txt"}
    body = {
        "model": "fake",
        "max_tokens": 9,
        "messages": [
            {"role": "user", "content": "go"},
            {"role": "assistant", "content": blocks},
            {"role": "user", "content": [result]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "only"}]},
            {"role": "user", "content": "on"},
        ],
    }
    with running(plan()) as server:
        assert server.http.post("/v1/messages", json=body).status_code == 200
        prompt = server.text.rendered[0]
        assert "assistant:y\ntool:a.txt\nassistant:\nuser:on" in prompt


def test_case_a4_thinking_that_is_cut_is_no_text():
    cut = plan("<think>\nlong thoughts", reason=FinishReason.LENGTH)
    with running(cut) as server:
        choice = server.chat().json()["choices"][0]
        assert choice["message"]["content"] == "" and choice["finish_reason"] == "length"
        assert choice["message"]["reasoning_content"] == "long thoughts"
        message = server.message(thinking={"type": "adaptive"}).json()
        assert [block["type"] for block in message["content"]] == ["thinking"]
        assert message["stop_reason"] == "max_tokens"
        events = strict.events(server.message(stream=True).text)
        deltas = [e.delta.type for e in events if e.type == "content_block_delta"]
        assert "text_delta" not in deltas and "thinking_delta" in deltas


def results(*contents):
    return [
        {"type": "tool_result", "tool_use_id": f"toolu_{number}", **content}
        for number, content in enumerate(contents)
    ]


def test_case_a9_content_of_tool_results():
    """Texts in their order, nothing for nothing; an image is refused and never lost."""
    texts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    search = {"type": "search_result", "title": "T", "source": "S", "content": texts[:1]}
    given = results(
        {"content": texts}, {"content": "plain", "is_error": True}, {}, {"content": [search]}
    )
    with running(plan()) as server:
        assert server.message(given).status_code == 200
        assert "tool:a|b\ntool:plain\ntool:\ntool:T\nS\na\n" in server.text.rendered[0]
        image = {"type": "image", "source": {"type": "base64", "media_type": "image/png"}}
        refused = server.message(results({"content": [texts[0], image]}))
        assert refused.status_code == 400
        message = refused.json()["error"]["message"]
        assert "fake" in message and "$.messages[0].content[0].content[1].type" in message


LOOPS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}[{{ call.function.name }}:"
    "{% for k, v in call.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}]{% endfor %}"
    "<|im_end|>\n{% endfor %}"
)
JOINS = LOOPS.replace(
    "{% for k, v in call.function.arguments.items() %}{{ k }}={{ v }};{% endfor %}",
    "{{ call.function.arguments + '' }}",
)


@pytest.mark.parametrize("template", [LOOPS, JOINS])
@pytest.mark.parametrize("content", [None, "", ...])
@pytest.mark.parametrize(
    "arguments", ['{"a":1}', "", "null", "not json", "[1]", {"a": 1}, None, '"text"']
)
def test_case_k6_arguments_of_earlier_calls(tmp_path, template, content, arguments):
    """As text or as an object, for a template that wants the one or the other: never an error."""
    text = TextModel.load(write_model_folder(tmp_path, template=template))
    function = {"name": "ls", "arguments": arguments}
    message = {"role": "assistant", "tool_calls": [{"id": "c", "function": function}] * 2}
    if content is not ...:
        message["content"] = content
    body = {
        "model": "fake",
        "messages": [
            {"role": "user", "content": "go"},
            message,
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "x"}]},
        ],
    }
    made = Plan(text=text, engines=[ScriptedEngine()])
    prepared = prepare(made.context(), Chat(), json.dumps(body).encode())
    prompt = text.spell(prepared.tokens)
    assert prompt.count("[ls:") == 2
    if arguments in ('{"a":1}', {"a": 1}):
        assert ("a=1;" in prompt) or ('"a":' in prompt)


def test_case_t2_a_tokenizer_without_special_tokens_is_told_of(tmp_path, caplog):
    folder = write_model_folder(tmp_path)
    path = folder / "tokenizer.json"
    value = json.loads(path.read_text())
    value["added_tokens"] = []
    path.write_text(json.dumps(value))
    with caplog.at_level(logging.WARNING):
        TextModel.load(folder)
    assert "no special tokens" in caplog.text


def test_case_k3_streams_say_what_whole_answers_say():
    said = f"<think>\nhm\n</think>\n\nI look.\n{CALL}\n{CALL}"
    with running(plan(said, per_step=7)) as server:
        whole = strict.completion(server.chat(tools=[TOOL]).content)
        options = {"include_usage": True}
        text = server.chat(tools=[TOOL], stream=True, stream_options=options).text
        chunks = strict.chunks(text)
        deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        message = whole.choices[0].message
        assert "".join(d.content or "" for d in deltas) == message.content == "I look."
        thoughts = "".join((d.model_extra or {}).get("reasoning_content", "") for d in deltas)
        assert thoughts == message.reasoning_content == "hm"
        calls: dict[int, list[str]] = {}
        for delta in deltas:
            for call in delta.tool_calls or ():
                calls.setdefault(call.index, []).append(call.function.arguments or "")
        given = [call.function.arguments for call in message.tool_calls]
        assert ["".join(parts) for _, parts in sorted(calls.items())] == given
        assert [json.loads(one) for one in given] == [{"path": "a b"}] * 2
        assert chunks[-2].choices[0].finish_reason == "tool_calls"
        assert whole.choices[0].finish_reason == "tool_calls"
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
        reasoning = whole.usage.completion_tokens_details.reasoning_tokens
        assert 0 < reasoning < whole.usage.completion_tokens


@pytest.mark.parametrize("fields", [{}, {"tools": []}, {"tools": None}])
def test_case_k4_without_tools_markup_is_content(fields):
    with running(plan(CALL)) as server:
        choice = server.chat(**fields).json()["choices"][0]
        assert choice["message"]["content"] == CALL and choice["finish_reason"] == "stop"
        none = server.chat(tools=[TOOL], tool_choice="none").json()["choices"][0]
        assert none["message"]["content"] == CALL
        with_tools = server.chat(tools=[TOOL]).json()["choices"][0]["message"]
        assert with_tools["content"] is None and len(with_tools["tool_calls"]) == 1


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"response_format": {"type": "json_object"}}, ["json"]),
        ({"structured_outputs": {"regex": "[ab]+"}}, ["[ab]+"]),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, ["yes", "no"]),
        ({"structured_outputs": {"json": SCHEMA}}, ['"n"']),
        ({"tools": [TOOL], "tool_choice": "required"}, ["<tool_call>", "ls"]),
        (
            {
                "tools": [TOOL],
                "response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}},
            },
            ["<tool_call>", '\\"n\\"'],
        ),
    ],
)
def test_case_k10_a_form_becomes_a_grammar(fields, words):
    with running(plan("{}")) as server:
        assert server.chat(**fields).status_code == 200
        (request,) = server.engine.submitted
        grammar = request.sampling.grammar
        assert grammar is not None
        for word in words:
            assert word in grammar.text or word in json.dumps(grammar.text), grammar.text
        assert "think" in grammar.text, "what the model thinks first is free"
        server.chat()
        assert server.engine.submitted[-1].sampling.grammar is None


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        ({"type": "array", "uniqueItems": True}, "uniqueItems"),
        ({"$ref": "#/$defs/none"}, "none"),
        ({"type": "strange"}, "strange"),
        ({"type": "string", "pattern": "(?=a)b"}, "look"),
    ],
)
def test_case_k10_what_no_grammar_can_be_made_of_is_refused(schema, why):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    with running(plan()) as server:
        refused = server.chat(response_format=form)
        assert refused.status_code == 400
        error = refused.json()["error"]
        assert error["param"] == "$.response_format.json_schema.schema"
        assert why in error["message"]
        assert server.engine.submitted == []


def test_a_choice_of_one_tool_leaves_the_others_out_of_the_grammar():
    other = {"type": "function", "function": {"name": "grep"}}
    choice = {"type": "function", "function": {"name": "ls"}}
    with running(plan(CALL)) as server:
        server.chat(tools=[TOOL, other], tool_choice=choice)
        (request,) = server.engine.submitted
        assert "ls" in request.sampling.grammar.text
        assert "grep" not in request.sampling.grammar.text


def test_one_call_where_several_are_not_wanted():
    with running(plan(CALL + "\n" + CALL)) as server:
        message = server.chat(tools=[TOOL], parallel_tool_calls=False).json()["choices"][0]
        assert len(message["message"]["tool_calls"]) == 1
        assert message["finish_reason"] == "tool_calls"
        choice = {"type": "auto", "disable_parallel_tool_use": True}
        blocks = server.message(tools=[USE], tool_choice=choice).json()["content"]
        assert [block["type"] for block in blocks] == ["tool_use"]


def test_case_a12_counts_are_those_of_the_call():
    late = {"role": "system", "content": "late"}
    messages = [{"role": "user", "content": "hi"}, late, {"role": "user", "content": "on"}]
    body = {"model": "fake", "system": [{"type": "text", "text": "s"}], "messages": messages}
    with running(plan()) as server:
        for fields in ({}, {"tools": [USE]}, {"thinking": {"type": "adaptive"}}):
            asked = {**body, **fields}
            counted = server.http.post("/v1/messages/count_tokens", json=asked).json()
            assert set(counted) == {"input_tokens"}
            num_submitted = len(server.engine.submitted)
            usage = server.http.post("/v1/messages", json={**asked, "max_tokens": 5}).json()[
                "usage"
            ]
            assert counted["input_tokens"] == (
                usage["input_tokens"]
                + usage["cache_read_input_tokens"]
                + usage["cache_creation_input_tokens"]
            )
            assert len(server.engine.submitted) == num_submitted + 1


def test_a_budget_of_thoughts_is_kept():
    """The model is made to close its reasoning, and goes on from there."""
    made = plan()

    def script(request):
        said = "the answer" if request.emitted else "<think>\n" + "hm " * 40
        return say(said)(request)

    made.engines[0].script = script
    with running(made) as server:
        asked = {"thinking": {"type": "enabled", "budget_tokens": 20}}
        message = server.message(**asked).json()
        assert [block["type"] for block in message["content"]] == ["thinking", "text"]
        assert message["content"][1]["text"] == "the answer"
        assert len(message["content"][0]["thinking"]) < 30
        first, second = server.engine.submitted
        assert bytes(second.emitted).endswith(b"\n</think>\n\n")
        assert second.tokens == first.tokens and first.id in server.engine.aborted
        assert message["usage"]["output_tokens"] == len(second.emitted) + len("the answer")


def test_several_answers_have_seeds_of_their_own():
    """K14"""
    with running(plan("ok")) as server:
        body = strict.completion(server.chat(n=3, seed=5).content)
        assert [choice.index for choice in body.choices] == [0, 1, 2]
        assert sorted(r.sampling.seed for r in server.engine.submitted) == [5, 6, 7]
        assert body.usage.completion_tokens == 6
        chunks = strict.chunks(server.chat(n=3, stream=True).text)
        assert {chunk.choices[0].index for chunk in chunks} == {0, 1, 2}


def test_a_tool_that_is_told_of_later_stays_out_of_the_head():
    late = {**USE, "name": "late", "defer_loading": True}
    reference = {"type": "tool_reference", "tool_name": "late"}
    with running(plan(CALL.replace("ls", "late"))) as server:
        given = results({"content": [reference]})
        answer = server.message(given, tools=[USE, late]).json()
        prompt = server.text.rendered[0]
        assert prompt.index('"name": "late"') > prompt.index('"name": "ls"')
        assert '{"name": "late"' not in prompt.partition("\ntool:")[0].partition("tool:")[0]
        assert answer["content"][0]["name"] == "late"
