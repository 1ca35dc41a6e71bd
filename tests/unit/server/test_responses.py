"""The Responses API: what it takes, refuses and keeps, against a server over scripted engines."""

import json
import logging

import pytest

from omlx.engine.request import Admitted, Failed, FailureCode
from omlx.server.anthropic.messages import Messages
from omlx.server.either import either_dialect
from omlx.server.errors import ApiError
from omlx.server.generation import Choice, Form, FormKind, Generation, Thinking
from omlx.server.openai.chat import Chat
from omlx.server.openai.completions import Completions
from omlx.server.openai.responses import Responses
from omlx.server.openai.responses_input import sealed
from omlx.server.openai.responses_store import Kept, ResponseStore
from omlx.settings.schema import Server
from tests.fakes.engine import say, silent
from tests.fakes.server import Plan, running
from tests.unit.server import strict

USER = {"role": "user", "content": "hi"}
SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}}


def read(given="hi", **fields) -> Generation:
    return Responses().decode(json.dumps({"model": "m", "input": given, **fields}).encode())


def refusal(given="hi", **fields) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(given, **fields)
    assert caught.value.status == 400
    return caught.value


def function(name="f", **more):
    return {"type": "function", "name": name, "parameters": SCHEMA, **more}


def names(generation):
    return [tool["function"]["name"] for tool in generation.tools]


# ---- R1: input, instructions, streamed or not


def test_r1_input_as_text_and_as_items():
    """R1"""
    whole = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}]
    for given in ("hi", [USER], whole):
        generation = read(given, instructions="Be brief.")
        assert list(generation.messages) == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "hi"},
        ]
        assert list(generation.places) == [-1, 0]


@pytest.mark.parametrize("given", ["hi", [USER]])
def test_r1_answers(server, given):
    """R1: whole and streamed, the same answer in both."""
    server.engine.script = say("Paris 😀")
    body = strict.response(server.respond(given, instructions="x").content)
    assert (body.output_text, body.status, body.instructions) == ("Paris 😀", "completed", "x")
    events = strict.response_events(server.respond(given, stream=True).text)
    assert [event.type for event in events if "delta" not in event.type] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == "Paris 😀"
    final = events[-1].response
    assert final.output_text == "Paris 😀"
    assert final.usage.output_tokens == body.usage.output_tokens == 10
    assert final.id == events[0].response.id


def test_warm_up_of_codex(server):
    body = strict.response(server.respond("", max_output_tokens=1).content)
    assert (body.status, body.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert body.output_text == "o"


def test_k25_a_cut_is_told(server):
    """K25: without a limit, the rest of the window; every cut is `incomplete`."""
    server.engine.script = say("x" * 5000)
    body = strict.response(server.respond().content)
    assert body.incomplete_details.reason == "max_output_tokens"
    assert body.usage.output_tokens == 1000 - body.usage.input_tokens
    events = strict.response_events(server.respond(stream=True, max_output_tokens=8).text)
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output_text == "x" * 8


def test_k9_cached_tokens(server):
    """K9"""
    server.engine.script = say("ok", memory=5, disk=2)
    whole = strict.response(server.respond().content).usage
    streamed = strict.response_events(server.respond(stream=True).text)[-1].response.usage
    for usage in (whole, streamed):
        assert usage.input_tokens_details.cached_tokens == 7
        assert usage.total_tokens == usage.input_tokens + 2


def test_an_answer_repeats_its_request(server):
    asked = {
        "metadata": {"a": "b"},
        "tools": [
            function(strict=False),
            {"type": "custom", "name": "patch", "format": {"type": "text"}},
            {"type": "namespace", "name": "n", "description": "d", "tools": [function("g")]},
            {"type": "web_search"},
        ],
        "tool_choice": {"type": "function", "name": "f"},
        "parallel_tool_calls": False,
        "temperature": 0.5,
        "top_p": 0.9,
        "max_output_tokens": 9,
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "truncation": "auto",
        "prompt_cache_key": "k",
        "service_tier": "flex",
        "user": "u",
    }
    server.text.template = "<tool_call>"
    response = server.respond(**asked)
    strict.response(response.content)
    body = response.json()
    assert {key: body[key] for key in asked} == asked


# ---- R2, R3: tools


def test_r2_tools_of_other_kinds(caplog):
    """R2: what a client runs is offered; what a server would run is left out with a warning."""
    hosted = [{"type": kind} for kind in ("web_search", "image_generation", "tool_search", "new")]
    patch = {
        "type": "custom",
        "name": "apply_patch",
        "description": "Changes files.",
        "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'},
    }
    with caplog.at_level(logging.WARNING):
        generation = read(tools=[function(), *hosted, patch])
    assert names(generation) == ["f", "apply_patch"]
    made = generation.tools[1]["function"]
    assert 'start: "x"' in made["description"]
    assert made["parameters"]["required"] == ["input"]
    assert len(caplog.records) == len(hosted)


def test_r3_namespaces_become_distinct_names():
    """R3"""
    groups = [
        {"type": "namespace", "name": name, "description": "", "tools": [function("a")]}
        for name in ("mcp__x__", "mcp__y", "n" * 60)
    ]
    generation = read(tools=[function("a"), *groups])
    found = names(generation)
    assert found[:3] == ["a", "mcp__x__a", "mcp__y__a"]
    assert len(set(found)) == 4
    assert max(map(len, found)) <= 64
    assert names(read(tools=[function("a"), *groups])) == found


def test_r3_names_that_would_be_the_same_stay_distinct():
    """R3"""
    groups = [
        {"type": "namespace", "name": "a", "tools": [function("b__c")]},
        {"type": "namespace", "name": "a__b", "tools": [function("c")]},
    ]
    generation = read(tools=groups)
    assert len(set(names(generation))) == 2
    history = [
        {"type": "function_call", "call_id": "1", "name": "c", "namespace": "a__b"},
        {"type": "function_call_output", "call_id": "1", "output": "x"},
    ]
    [call] = read([USER, *history], tools=groups).messages[1]["tool_calls"]
    assert call["function"]["name"] == names(generation)[1]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, (Choice.AUTO, None)),
        ("none", (Choice.NONE, None)),
        ("required", (Choice.REQUIRED, None)),
        ({"type": "function", "name": "f"}, (Choice.REQUIRED, "f")),
        ({"type": "custom", "name": "c"}, (Choice.REQUIRED, "c")),
        ({"type": "function", "name": "g", "namespace": "n"}, (Choice.REQUIRED, "n__g")),
    ],
)
def test_tool_choice(choice, expected):
    group = {"type": "namespace", "name": "n", "tools": [function("g")]}
    generation = read(
        tools=[function(), {"type": "custom", "name": "c"}, group], tool_choice=choice
    )
    assert (generation.tool_choice.kind, generation.tool_choice.name) == expected


def test_allowed_tools():
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [function("g")]}
    generation = read(tools=[function("f"), function("g")], tool_choice=allowed)
    assert names(generation) == ["g"]
    assert generation.tool_choice.kind is Choice.REQUIRED


def test_parallel_tool_calls():
    assert read(tools=[function()]).tool_choice.is_parallel
    assert not read(tools=[function()], parallel_tool_calls=False).tool_choice.is_parallel


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"background": True}, "$.background"),
        ({"conversation": "conv_1"}, "$.conversation"),
        ({"conversation": {"id": "conv_1"}}, "$.conversation"),
        ({"prompt": {"id": "p"}}, "$.prompt"),
        ({"tool_choice": "required"}, "$.tool_choice"),
        ({"tool_choice": {"type": "function", "name": "x"}}, "$.tool_choice.name"),
        ({"tool_choice": {"type": "web_search_preview"}}, "$.tool_choice.type"),
        ({"text": {"format": {"type": "bogus"}}}, "$.text.format.type"),
        ({"text": {"format": {"type": "json_schema"}}}, "$.text.format.schema"),
        ({"top_logprobs": 21}, "$.top_logprobs"),
        ({"max_output_tokens": 0}, "$.max_output_tokens"),
        ({"reasoning": {"effort": "some"}}, "$.reasoning.effort"),
        ({"tools": [{"type": "function", "name": ""}]}, "$.tools[0].name"),
        ({"tools": [{"type": "function"}]}, "$.tools[0]"),
        ({"previous_response_id": "resp_x"}, "$.previous_response_id"),
        ({"input": []}, "$.input"),
        ({"input": [{"type": "message", "role": "x", "content": ""}]}, "$.input[0].role"),
    ],
)
def test_what_is_refused(fields, param):
    assert refusal(fields.pop("input", "hi"), **fields).param == param


@pytest.mark.parametrize("kind", ["input_image", "input_file"])
def test_other_content_than_text_is_refused(kind):
    error = refusal([{"role": "user", "content": [{"type": kind}]}])
    assert error.param == "$.input[0].content[0].type"
    assert "'m'" in error.message
    output = {"type": "function_call_output", "call_id": "1", "output": [{"type": kind}]}
    assert refusal([USER, output]).param == "$.input[1].output[0].type"


def test_forms_and_thinking():
    schema = {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}
    expected = Form(FormKind.SCHEMA, SCHEMA, "$.text.format.schema")
    assert read(text={"format": schema}).form == expected
    assert read(text={"format": {"type": "json_object"}}).form.kind is FormKind.OBJECT
    assert read(text={"format": {"type": "text"}, "verbosity": "low"}).form is None
    assert read(reasoning={"effort": "high"}).thinking == Thinking(effort="high")
    assert read(reasoning={"effort": "none"}).thinking == Thinking(is_on=False)


# ---- R5: items of a history

THOUGHT = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": None}
CALL = {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}"}
CUSTOM = {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": 'a "b"'}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "one"}
PARTS = {
    "type": "custom_tool_call_output",
    "call_id": "c2",
    "output": [{"type": "input_text", "text": "two"}],
}
TEXT = {
    "type": "message",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
}


def test_r5_what_the_model_said_in_one_go_is_one_message():
    """R5: reasoning, text and calls; results are paired by `call_id`."""
    thought = {**THOUGHT, "content": [{"type": "reasoning_text", "text": "Hm."}]}
    generation = read([USER, thought, TEXT, CALL, CUSTOM, PARTS, OUTPUT, USER])
    assert [message["role"] for message in generation.messages] == [
        "user",
        "assistant",
        "tool",
        "tool",
        "user",
    ]
    said = generation.messages[1]
    assert (said["content"], said["reasoning_content"]) == ("Let me see.", "Hm.")
    assert [call["id"] for call in said["tool_calls"]] == ["c1", "c2"]
    assert json.loads(said["tool_calls"][1]["function"]["arguments"]) == {"input": 'a "b"'}
    results = [(m["tool_call_id"], m["name"], m["content"]) for m in generation.messages[2:4]]
    assert results == [("c2", "patch", "two"), ("c1", "f", "one")]
    assert list(generation.places) == [0, 1, 5, 6, 7]


@pytest.mark.parametrize(
    ("more", "expected"),
    [
        ({}, None),
        ({"summary": [{"type": "summary_text", "text": "s"}]}, "s"),
        ({"encrypted_content": "gAAAA from elsewhere"}, None),
        ({"encrypted_content": sealed("carried")}, "carried"),
        (
            {"encrypted_content": sealed("carried"), "summary": [{"type": "x", "text": "s"}]},
            "carried",
        ),
    ],
)
def test_r5_forms_of_reasoning(more, expected):
    """R5"""
    generation = read([USER, {**THOUGHT, **more}, TEXT, USER])
    assert generation.messages[1].get("reasoning_content") == expected
    assert generation.messages[1]["content"] == "Let me see."


def test_r5_unknown_items_are_left_out_with_a_line_without_their_content(caplog):
    """R5"""
    unknown = [
        {"type": "tool_search_call", "call_id": "x", "arguments": {"q": "secret"}},
        {"type": "tool_search_output", "call_id": "x", "tools": []},
        {"type": "web_search_call", "id": "ws_1", "action": {"type": "open", "url": "secret"}},
        {"type": "local_shell_call", "call_id": "y", "action": {"command": ["secret"]}},
        {"type": "from_the_future", "secret": "secret"},
    ]
    with caplog.at_level(logging.INFO):
        generation = read([USER, *unknown, {"role": "developer", "content": "d"}])
    assert [message["role"] for message in generation.messages] == ["user", "system"]
    assert len(caplog.records) == len(unknown)
    assert "secret" not in caplog.text


def test_calls_whose_results_come_between_are_two_turns():
    again = {**CALL, "call_id": "c3"}
    generation = read([USER, CALL, OUTPUT, again, {**OUTPUT, "call_id": "c3"}])
    assert [m["role"] for m in generation.messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]


# ---- R6: answers that are kept


def test_r6_an_answer_is_gone_on_from(server):
    """R6: with all that came before; instructions are not carried over."""
    first = server.respond("one", instructions="only here").json()["id"]
    second = server.respond("two", previous_response_id=first).json()
    assert server.text.rendered[-1].count("only here") == 0
    third = server.respond([USER], previous_response_id=second["id"], store=False).json()
    prompt = bytes(server.engine.submitted[-1].tokens).decode()
    assert prompt == "user:one\nassistant:ok\nuser:two\nassistant:ok\nuser:hi\nassistant:"
    assert third["previous_response_id"] == second["id"]
    assert server.respond("x", previous_response_id=third["id"]).status_code == 400


def test_r6_a_streamed_answer_is_kept_as_well(server):
    """R6"""
    events = strict.response_events(server.respond("one", stream=True).text)
    server.respond("two", previous_response_id=events[-1].response.id)
    prompt = bytes(server.engine.submitted[-1].tokens).decode()
    assert prompt == "user:one\nassistant:ok\nuser:two\nassistant:"


@pytest.mark.parametrize("is_stream", [True, False])
def test_r6_an_unknown_answer_is_no_silent_start(server, is_stream):
    """R6"""
    response = server.respond("x", previous_response_id="resp_none", stream=is_stream)
    error = response.json()["error"]
    assert response.status_code == 400
    assert error["param"] == "$.previous_response_id"
    assert error["code"] == "previous_response_not_found"
    assert not server.engine.submitted


def test_r6_tenants_have_their_own_answers(server):
    """R6: to others an id is not known."""
    kept = server.respond("one").json()["id"]
    others = {"session-id": "other"}
    body = {"model": "fake", "input": "x", "previous_response_id": kept}
    assert server.http.post("/v1/responses", json=body, headers=others).status_code == 400
    assert server.http.get(f"/v1/responses/{kept}", headers=others).status_code == 404
    assert server.http.delete(f"/v1/responses/{kept}", headers=others).status_code == 404
    assert server.http.get(f"/v1/responses/{kept}").status_code == 200


def test_an_item_of_a_kept_answer_can_be_referred_to(server):
    item = server.respond("one").json()["output"][0]["id"]
    reference = {"type": "item_reference", "id": item}
    server.respond([USER, reference, USER])
    prompt = bytes(server.engine.submitted[-1].tokens).decode()
    assert prompt == "user:hi\nassistant:ok\nuser:hi\nassistant:"
    response = server.respond([USER, {"type": "item_reference", "id": "msg_x_0"}])
    assert response.json()["error"]["param"] == "$.input[1].id"


def test_kept_answers_are_shown_and_forgotten(server):
    body = server.respond([USER, TEXT, CALL, OUTPUT, USER]).json()
    url = f"/v1/responses/{body['id']}"
    assert server.http.get(url).json() == body
    items = server.http.get(f"{url}/input_items", params={"order": "asc", "limit": 4}).json()
    kinds = [item["type"] for item in items["data"]]
    assert kinds == ["message", "message", "function_call", "function_call_output"]
    assert items["has_more"]
    after = {"order": "asc", "after": items["last_id"]}
    rest = server.http.get(f"{url}/input_items", params=after).json()
    assert [item["role"] for item in rest["data"]] == ["user"]
    assert not rest["has_more"]
    assert server.http.get(f"{url}/input_items", params={"limit": 0}).status_code == 400
    assert server.http.delete(url).json()["deleted"] is True
    for refused in (server.http.get(url), server.http.delete(url)):
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "not_found")


def test_the_store_has_limits_of_bytes_and_count():
    store = ResponseStore(max_bytes=100, max_count=3)
    for name in "abc":
        store.put("t", name, Kept(b"x" * 20, b"x" * 10))
    assert store.get("t", "a") is not None
    store.put("t", "d", Kept(b"", b""))  # one too many: b is the oldest by use
    assert [name for name in "abcd" if store.get("t", name)] == ["a", "c", "d"]
    store.put("t", "e", Kept(b"x" * 90, b""))
    assert [name for name in "abcde" if store.get("t", name)] == ["d", "e"]
    store.put("t", "f", Kept(b"x" * 101, b""))
    assert not any(store.get("t", name) for name in "abcdef")
    assert not store.remove("t", "a")


# ---- errors inside a stream


@pytest.mark.parametrize(
    ("code", "expected"),
    [(FailureCode.OVERLOADED, "server_is_overloaded"), (FailureCode.ENGINE, "server_error")],
)
def test_a_stream_that_fails(server, code, expected):
    server.engine.script = silent
    body = {"model": "fake", "input": "hi", "stream": True}
    with server.http.stream("POST", "/v1/responses", json=body) as response:
        parts = response.iter_text()
        text = next(parts)  # the head is out
        request = server.engine.submitted[-1]
        server.engine.emit(Admitted(request.id, 0, 0))
        server.engine.emit(Failed(request.id, code, "it broke"))
        text += "".join(parts)
    events = strict.response_events(text, error_codes=True)
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    assert (events[-2].code, events[-2].message) == (expected, "it broke")
    assert f'"code":"{expected}"' in text.rpartition("event: ")[2]


def test_r8_a_long_prefill():
    """R8, K18: the event names of a stream that is silent for long are all documented."""
    plan = Plan(server=Server(port=0, keepalive=0.05))
    with running(plan) as slow:
        slow.engine.script = silent
        body = {"model": "fake", "input": "hi", "stream": True}
        with slow.http.stream("POST", "/v1/responses", json=body) as response:
            text = ""
            parts = response.iter_text()
            while text.count("event: response.in_progress") < 4:
                text += next(parts)
            request = slow.engine.submitted[-1]
            slow.engine.emit(*(event for step in say("ok")(request) for event in step))
            text += "".join(parts)
    events = strict.response_events(text)
    assert events[-1].response.output_text == "ok"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ({"model": "m", "input": "hi", "tools": [function()]}, Responses),
        ({"model": "m", "prompt": "hi"}, Completions),
        ({"model": "m", "messages": [USER]}, Chat),
        ({"model": "m", "messages": [USER], "system": "s"}, Messages),
    ],
)
def test_a_body_in_a_file_is_known_by_its_fields(body, kind):
    dialect, data = either_dialect(json.dumps(body).encode())
    assert isinstance(dialect, kind)
    assert dialect.decode(data).model == "m"


def test_the_route_needs_the_key():
    with running(Plan(server=Server(port=0, api_key="local"))) as server:
        assert server.respond().status_code == 401
        assert server.http.get("/v1/responses/resp_x").status_code == 401
