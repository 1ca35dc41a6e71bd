"""What the Responses API writes: items and events, from the pieces of an answer."""

import json

import pytest

from omlx.engine.request import FinishReason
from omlx.server.errors import ApiError, overflow, unavailable
from omlx.server.generation import About, Ended, Usage
from omlx.server.openai.responses import Responses
from omlx.server.openai.responses_custom import InputReader
from omlx.server.openai.responses_input import unsealed
from omlx.server.parse.said import (
    CallArguments,
    CallBegan,
    CallEnded,
    Reasoning,
    Score,
    Text,
)
from omlx.server.spoken import Spoken
from tests.unit.server import strict

USAGE = Usage(10, 4, 6, 2)
STOPPED = Ended(FinishReason.STOP)
CUT = Ended(FinishReason.LENGTH)
TOOLS = [
    {"type": "function", "name": "f", "parameters": {}},
    {"type": "custom", "name": "patch"},
    {
        "type": "namespace",
        "name": "mcp__x__",
        "description": "d",
        "tools": [{"type": "function", "name": "a", "parameters": {}}],
    },
]
CALLS = [
    Text("Let me see."),
    CallBegan(0, "f"),
    CallArguments(0, '{"x":'),
    CallArguments(0, "1}"),
    CallEnded(0),
    CallBegan(1, "mcp__x__a"),
    CallArguments(1, "{}"),
    CallEnded(1),
    CallBegan(2, "patch"),
    CallArguments(2, '{"input": "a\\n'),
    CallArguments(2, '\\"b\\" \\ud83d'),
    CallArguments(2, '\\ude00"}'),
    CallEnded(2),
]


def reply(**fields):
    body = {"model": "m", "input": "hi", "tools": TOOLS, **fields}
    generation = Responses().decode(json.dumps(body).encode())
    return Responses().reply(About("a1b2", "m", 1, generation))


def streamed(pieces, ended=STOPPED, **fields):
    """The events of a stream, all of which the SDK's types know."""
    writer = reply(**fields)
    out = writer.head() + writer.begin(USAGE)
    out += b"".join(writer.said(piece, 0) for piece in pieces)
    out += writer.ended(ended, 0) + writer.end(USAGE)
    return strict.response_events(out.decode())


def whole(pieces, ended=STOPPED, **fields):
    spoken = Spoken()
    for piece in [*pieces, ended]:
        spoken.take(0, piece)
    return strict.response(reply(**fields).whole(spoken.answers(), USAGE))


def of(events, kind):
    return [event for event in events if event.type == f"response.{kind}"]


def test_a8_every_call_has_an_item_of_its_own():
    """A8, K21: places without a gap, ids that are unique, every delta after its item's start."""
    events = streamed(CALLS)
    added, done = of(events, "output_item.added"), of(events, "output_item.done")
    assert [event.output_index for event in added] == [0, 1, 2, 3]
    assert [event.output_index for event in done] == [0, 1, 2, 3]
    assert len({event.item.id for event in done}) == 4
    assert len({event.item.call_id for event in done[1:]}) == 3
    known = {event.item.id for event in added}
    assert all(event.item_id in known for event in events if hasattr(event, "item_id"))
    assert [event.item for event in done] == events[-1].response.output
    assert [d.delta for d in of(events, "function_call_arguments.delta")] == ['{"x":', "1}", "{}"]
    assert [d.arguments for d in of(events, "function_call_arguments.done")] == ['{"x":1}', "{}"]


def test_r3_calls_come_back_as_the_client_knows_the_tool():
    """R3"""
    call = streamed(CALLS)[-1].response.output[2]
    assert (call.type, call.name, call.namespace) == ("function_call", "a", "mcp__x__")
    plain = streamed(CALLS)[-1].response.output[1]
    assert (plain.name, plain.namespace) == ("f", None)


def test_a_call_of_a_custom_tool():
    """R2: its text, not the arguments of the function that the model knows."""
    events = streamed(CALLS)
    item = events[-1].response.output[3]
    assert (item.type, item.name, item.input) == ("custom_tool_call", "patch", 'a\n"b" 😀')
    deltas = [event.delta for event in of(events, "custom_tool_call_input.delta")]
    assert deltas == ["a\n", '"b" ', "😀"]
    assert [e.input for e in of(events, "custom_tool_call_input.done")] == ['a\n"b" 😀']


@pytest.mark.parametrize("ended", [STOPPED, CUT])
@pytest.mark.parametrize(
    "pieces", [[], [Reasoning("Hm."), Text("a"), Text("b")], CALLS, CALLS[:3], CALLS[:11]]
)
@pytest.mark.parametrize("summary", [None, "auto"])
def test_a_body_has_the_items_of_the_stream(pieces, ended, summary):
    fields = {"reasoning": {"summary": summary}}
    streaming = streamed(pieces, ended, **fields)[-1].response
    if pieces == CALLS[:11] and ended is STOPPED:
        return  # nothing ends a call so but a limit
    assert whole(pieces, ended, **fields) == streaming


def test_reasoning_as_content():
    events = streamed([Reasoning("H"), Reasoning("m."), Text("a")])
    assert [e.delta for e in of(events, "reasoning_text.delta")] == ["H", "m."]
    assert of(events, "content_part.done")[0].part.text == "Hm."
    thought, message = events[-1].response.output
    assert (thought.type, thought.content[0].text, thought.summary) == ("reasoning", "Hm.", [])
    assert thought.encrypted_content is None
    assert message.content[0].text == "a"
    assert events[-1].response.usage.output_tokens_details.reasoning_tokens == 2


def test_reasoning_as_a_summary_where_the_client_asks_for_one():
    events = streamed([Reasoning("H"), Reasoning("m.")], reasoning={"summary": "auto"})
    assert [event.type for event in events[2:-1]] == [
        "response.output_item.added",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
        "response.output_item.done",
    ]
    [thought] = events[-1].response.output
    assert (thought.summary[0].text, thought.content) == ("Hm.", None)


def test_reasoning_that_clients_carry():
    [thought] = whole([Reasoning("Hm. é")], include=["reasoning.encrypted_content"]).output
    assert unsealed(thought.encrypted_content) == "Hm. é"


def test_a_cut_call():
    """K21: it is told as incomplete; the half text for a custom tool is not handed out."""
    events = streamed(CALLS[:3], CUT)
    assert events[-1].type == "response.incomplete"
    assert events[-1].response.output[-1].status == "incomplete"
    events = streamed(CALLS[:11], CUT)
    assert [item.type for item in events[-1].response.output][-1] == "function_call"
    assert not of(events, "custom_tool_call_input.done")


def test_r8_keep_alives_are_documented_events():
    """R8, K18: the next number, and nothing that a strict client doesn't know."""
    writer = reply()
    out = writer.head() + writer.keepalive(None) + writer.said(Text("a"), 0)
    out += writer.keepalive(None) + writer.ended(STOPPED, 0) + writer.end(USAGE)
    events = strict.response_events(out.decode())
    assert [event.type for event in events].count("response.in_progress") == 3


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (overflow(10, 5), "context_length_exceeded"),
        (unavailable("x"), "server_is_overloaded"),
        (ApiError(429, "x"), "rate_limit_exceeded"),
        (ApiError(500, "x"), "server_error"),
        (ApiError(400, "x"), "invalid_prompt"),
    ],
)
def test_errors_in_a_stream(error, code):
    writer = reply()
    out = writer.head() + writer.said(Text("a"), 0) + writer.error(error)
    events = strict.response_events(out.decode(), error_codes=True)
    assert (events[-2].type, events[-2].code) == ("error", code)
    assert (events[-1].type, events[-1].response.status) == ("response.failed", "failed")
    assert f'"code":"{code}"' in out.decode().rpartition("event: ")[2]


def test_k13_scores():
    """K13: in the API's shapes, only where they are asked for."""
    score = Score("a", b"a", -0.5, (Score("a", b"a", -0.5), Score("b", b"b", -1.0)))
    pieces = [Text("a", 0, (score,))]
    include = ["message.output_text.logprobs"]
    events = streamed(pieces, include=include, top_logprobs=2)
    [told] = of(events, "output_text.delta")[0].logprobs
    assert (told.token, [top.token for top in told.top_logprobs]) == ("a", ["a", "b"])
    [whole_score] = events[-1].response.output[0].content[0].logprobs
    assert (whole_score.bytes, whole_score.top_logprobs[1].logprob) == ([97], -1.0)
    assert streamed(pieces)[-1].response.output[0].content[0].logprobs == []


ARGUMENTS = json.dumps({"input": 'x\\n"\n\t/é😀'})


@pytest.mark.parametrize("size", range(1, len(ARGUMENTS) + 1))
def test_custom_input_does_not_depend_on_cuts(size):
    reader = InputReader()
    cuts = [ARGUMENTS[at : at + size] for at in range(0, len(ARGUMENTS), size)]
    said = "".join(map(reader.add, cuts))
    rest, text = reader.finish()
    assert said + rest == text == 'x\\n"\n\t/é😀'


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"input": "a", "more": 1}', "a"),
        ('{"more": 1, "input": "a"}', "a"),
        ('{"patch": "a"}', '{"patch": "a"}'),
        ("not json", "not json"),
        ('{"input": "\\q"}', '{"input": "\\q"}'),
        ("", ""),
    ],
)
def test_custom_input_in_other_forms(arguments, expected):
    reader = InputReader()
    said = "".join(map(reader.add, arguments))
    rest, text = reader.finish()
    assert text == expected
    assert text.startswith(said + rest) or not rest
