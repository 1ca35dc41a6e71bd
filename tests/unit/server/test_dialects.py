"""What both dialects take and refuse, and what they write."""

import json
from pathlib import Path

import pytest

from omlx.engine.request import FinishReason
from omlx.server.anthropic.messages import MessageReply, Messages
from omlx.server.errors import ApiError, unavailable
from omlx.server.generation import About, Answer, Ended, Generation, Progress, Usage, Wishes
from omlx.server.openai.chat import Chat, ChatReply
from omlx.server.parse.said import CallArguments, CallBegan, CallEnded, Reasoning, Text
from tests.unit.server import strict

GOLDEN = Path(__file__).parent.parent.parent / "golden" / "sse"
USER = {"role": "user", "content": "hi"}


def chat(**fields):
    return Chat().decode(json.dumps({"model": "m", "messages": [USER], **fields}).encode())


def messages(**fields):
    body = {"model": "m", "max_tokens": 5, "messages": [USER], **fields}
    return Messages().decode(json.dumps(body).encode())


def refusal(read, **fields) -> ApiError:
    with pytest.raises(ApiError) as caught:
        read(**fields)
    assert caught.value.status == 400
    return caught.value


def contents(generation):
    return [(message["role"], message["content"]) for message in generation.messages]


# ---- what is taken


TEXT_FORMS = [
    ("a", "a"),
    ("", ""),
    ([], ""),
    ([{"type": "text", "text": "a"}], "a"),
    (
        [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
        [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    ),
]


@pytest.mark.parametrize("read", [chat, messages])
@pytest.mark.parametrize("role", ["user", "assistant", "system"])
@pytest.mark.parametrize(("content", "expected"), TEXT_FORMS)
def test_content_forms(read, role, content, expected):
    """K7: text in every form for every role; one part is the same as a plain string."""
    generation = read(messages=[{"role": role, "content": content}, USER])
    assert contents(generation)[0] == (role, expected)


@pytest.mark.parametrize("read", [chat, messages])
def test_developer_is_another_word_for_system(read):
    """K7, A2"""
    generation = read(messages=[{"role": "developer", "content": "a"}, USER])
    assert contents(generation)[0] == ("system", "a")


@pytest.mark.parametrize(
    "message",
    [
        {"role": "assistant"},
        {"role": "assistant", "content": None, "refusal": None},
        {"role": "assistant", "content": "", "tool_calls": []},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": ""}], "name": "x"},
    ],
)
def test_assistant_messages_without_text(message):
    assert contents(chat(messages=[message, USER]))[0] == ("assistant", "")


def test_thinking_of_earlier_turns_is_no_text():
    """A6"""
    content = [
        {"type": "thinking", "thinking": "secret", "signature": ""},
        {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "y"},
    ]
    generation = messages(messages=[USER, {"role": "assistant", "content": content}, USER])
    assert contents(generation)[1] == ("assistant", "y")


@pytest.mark.parametrize(
    ("system", "expected"),
    [
        (None, []),
        ("", []),
        ([], []),
        ("a", [("system", "a")]),
        ([{"type": "text", "text": "a"}], [("system", "a")]),
    ],
)
def test_system_forms(system, expected):
    assert contents(messages(system=system))[:-1] == expected


IGNORED_OPENAI = {
    "user": "u",
    "metadata": {"a": "b"},
    "store": False,
    "service_tier": "auto",
    "parallel_tool_calls": True,
    "reasoning_effort": None,
    "tool_choice": "auto",
    "tools": [],
    "functions": None,
    "n": 1,
    "logprobs": False,
    "top_logprobs": 0,
    "logit_bias": {},
    "response_format": {"type": "text"},
    "modalities": ["text"],
    "cache_prompt": True,
}
IGNORED_ANTHROPIC = {
    "metadata": {"user_id": "{}"},
    "context_management": {"edits": []},
    "output_config": {},
    "service_tier": "auto",
    "tools": [],
    "tool_choice": {"type": "auto"},
    "safeguards": {},
}


def test_fields_that_say_nothing_here_are_ignored():
    """A11"""
    assert chat(**IGNORED_OPENAI) == chat()
    assert messages(**IGNORED_ANTHROPIC) == messages()


def test_max_completion_tokens_wins():
    """K25"""
    assert chat(max_tokens=100).wishes.max_tokens == 100
    assert chat(max_completion_tokens=8).wishes.max_tokens == 8
    assert chat(max_completion_tokens=8, max_tokens=100).wishes.max_tokens == 8
    assert chat(max_completion_tokens=None, max_tokens=100).wishes.max_tokens == 100
    assert chat().wishes.max_tokens is None


@pytest.mark.parametrize(
    ("stop", "expected"),
    [(None, ()), ("five", ("five",)), (["a", "b"], ("a", "b")), ([], ())],
)
def test_stop_forms(stop, expected):
    """K12"""
    assert chat(stop=stop).stop == expected


def test_streaming_and_usage_are_told_apart():
    assert not chat().is_stream
    assert not chat(stream=None).is_stream
    assert chat(stream=True).is_stream
    assert not chat(stream=True).wants_usage
    assert not chat(stream=True, stream_options={"include_usage": None}).wants_usage
    assert chat(stream=True, stream_options={"include_usage": True}).wants_usage
    assert messages(stream=True).is_stream


def test_sampling_of_messages():
    generation = messages(temperature=1, top_p=0.5, top_k=3, stop_sequences=["x"])
    assert generation.wishes == Wishes(temperature=1, top_p=0.5, top_k=3, max_tokens=5)
    assert generation.stop == ("x",)


def test_whole_numbers_may_be_written_with_a_point():
    assert chat(max_tokens=8.0, top_k=2.0).wishes == Wishes(max_tokens=8, top_k=2)


def test_top_k_minus_one_is_off():
    assert chat(top_k=-1).wishes.top_k == 0


# ---- what is refused


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
REFUSED = [
    (chat, {"tools": [{"type": "custom", "custom": {"name": "f"}}]}, "$.tools[0].type"),
    (chat, {"tool_choice": {"type": "allowed_tools"}}, "$.tool_choice"),
    (chat, {"functions": [{"name": "f"}]}, "$.functions"),
    (chat, {"modalities": ["text", "audio"]}, "$.modalities"),
    (
        chat,
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]}]},
        "$.messages[0].content[1].type",
    ),
    (
        chat,
        {"messages": [USER, {"role": "assistant", "function_call": CALL["function"]}]},
        "$.messages[1].function_call",
    ),
    (
        messages,
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        "$.messages[0].content[0].type",
    ),
    (
        messages,
        {
            "messages": [
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "content": [{"type": "image"}]}],
                }
            ]
        },
        "$.messages[0].content[0].content[0].type",
    ),
]


@pytest.mark.parametrize(("read", "fields", "param"), REFUSED)
def test_what_this_version_can_not_do_is_refused_by_name(read, fields, param):
    """K10, K13, K14: never accepted and ignored."""
    error = refusal(read, **fields)
    assert error.param == param
    assert error.code == "unsupported_parameter"
    assert f"`{param}`" in error.message


def test_the_refusal_of_an_image_names_the_model():
    error = refusal(chat, model="text-only", messages=[{"role": "user", "content": [IMAGE]}])
    assert "text-only" in error.message


TOOL = {"type": "function", "function": {"name": "f"}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
WRONG = [
    (chat, {"n": 0}, "$.n"),
    (chat, {"n": 17}, "$.n"),
    (chat, {"best_of": 3}, "$.best_of"),
    (chat, {"top_logprobs": 5}, "$.top_logprobs"),
    (chat, {"logprobs": True, "top_logprobs": 21}, "$.top_logprobs"),
    (chat, {"logprobs": 5}, "$.logprobs"),
    (chat, {"logit_bias": {"x": 5}}, "$.logit_bias"),
    (chat, {"logit_bias": {"1": 101}}, "$.logit_bias.1"),
    (chat, {"response_format": {"type": "bogus"}}, "$.response_format.type"),
    (chat, {"response_format": {"type": "json_schema"}}, "$.response_format.json_schema.schema"),
    (chat, {"structured_outputs": {}}, "$.structured_outputs"),
    (chat, {"structured_outputs": {"regex": "a", "choice": ["b"]}}, "$.structured_outputs"),
    (chat, {"structured_outputs": {"choice": []}}, "$.structured_outputs.choice"),
    (chat, {"structured_outputs": {"json": "{"}}, "$.structured_outputs.json"),
    (chat, {"tools": [{"type": "function"}]}, "$.tools[0].function"),
    (chat, {"tools": [{"type": "function", "function": {"name": 3}}]}, "$.tools[0].function.name"),
    (chat, {"tools": [TOOL], "tool_choice": "maybe"}, "$.tool_choice"),
    (chat, {"tool_choice": "required"}, "$.tool_choice"),
    (
        chat,
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
        "$.tool_choice",
    ),
    (chat, {"reasoning_effort": "very"}, "$.reasoning_effort"),
    (chat, {"chat_template_kwargs": {"messages": []}}, "$.chat_template_kwargs"),
    (chat, {"min_tokens": -1}, "$.min_tokens"),
    (messages, {"tool_choice": {"type": "maybe"}}, "$.tool_choice.type"),
    (messages, {"tool_choice": {"type": "any"}}, "$.tool_choice.type"),
    (messages, {"tool_choice": {"type": "tool", "name": "f"}}, "$.tool_choice.name"),
    (messages, {"tools": [{"input_schema": {}}]}, "$.tools[0].name"),
    (messages, {"tools": [{"name": "f", "input_schema": 3}]}, "$.tools[0].input_schema"),
    (messages, {"thinking": {"type": "maybe"}}, "$.thinking.type"),
    (messages, {"output_config": {"format": {"type": "xml"}}}, "$.output_config.format.type"),
    (chat, {"messages": []}, "$.messages"),
    (chat, {"messages": "hi"}, "$.messages"),
    (chat, {"messages": [{"role": "usr", "content": "a"}]}, "$.messages[0].role"),
    (chat, {"messages": [{"content": "a"}]}, "$.messages[0]"),
    (chat, {"messages": [{"role": "user"}]}, "$.messages[0]"),
    (chat, {"messages": [{"role": "user", "content": 1}]}, "$.messages[0].content"),
    (chat, {"messages": [{"role": "user", "content": ["a"]}]}, "$.messages[0].content[0]"),
    (chat, {"model": None}, "$.model"),
    (chat, {"max_tokens": 0}, "$.max_tokens"),
    (chat, {"max_tokens": -1}, "$.max_tokens"),
    (chat, {"max_tokens": 1.5}, "$.max_tokens"),
    (chat, {"max_tokens": "8"}, "$.max_tokens"),
    (chat, {"max_completion_tokens": 0, "max_tokens": 5}, "$.max_completion_tokens"),
    (chat, {"temperature": -0.1}, "$.temperature"),
    (chat, {"temperature": 10}, "$.temperature"),
    (chat, {"temperature": True}, "$.temperature"),
    (chat, {"temperature": 10**400}, "$.temperature"),
    (chat, {"top_p": 1.1}, "$.top_p"),
    (chat, {"top_k": -2}, "$.top_k"),
    (chat, {"min_p": 2}, "$.min_p"),
    (chat, {"repetition_penalty": 0}, "$.repetition_penalty"),
    (chat, {"presence_penalty": 3}, "$.presence_penalty"),
    (chat, {"frequency_penalty": -3}, "$.frequency_penalty"),
    (chat, {"seed": 1.5}, "$.seed"),
    (chat, {"seed": "x"}, "$.seed"),
    (chat, {"stop": [""]}, "$.stop[0]"),
    (chat, {"stop": "x" * 1001}, "$.stop[0]"),
    (chat, {"stop": ["x"] * 17}, "$.stop"),
    (chat, {"stream": "yes"}, "$.stream"),
    (messages, {"messages": []}, "$.messages"),
    (messages, {"messages": [{"role": "tool", "content": "a"}]}, "$.messages[0].role"),
    (messages, {"messages": [{"role": "user", "content": None}]}, "$.messages[0].content"),
    (
        messages,
        {"messages": [{"role": "user", "content": [{"type": "bogus"}]}]},
        "$.messages[0].content[0].type",
    ),
    (messages, {"max_tokens": 0}, "$.max_tokens"),
    (messages, {"max_tokens": None}, "$.max_tokens"),
    (messages, {"system": 5}, "$.system"),
    (messages, {"stop_sequences": "x"}, "$.stop_sequences"),
    (messages, {"stop_sequences": [""]}, "$.stop_sequences[0]"),
    (messages, {"temperature": "hot"}, "$.temperature"),
]


@pytest.mark.parametrize(("read", "fields", "param"), WRONG)
def test_what_is_wrong_is_refused_by_its_path(read, fields, param):
    error = refusal(read, **fields)
    assert error.param == param
    assert f"`{param}`" in error.message


def test_messages_need_max_tokens():
    with pytest.raises(ApiError, match="max_tokens"):
        Messages().decode(json.dumps({"model": "m", "messages": [USER]}).encode())


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"1e999", b"-1e999", b"01", b"9" * 5000])
def test_numbers_that_are_none(number):
    """K24"""
    body = b'{"model":"m","messages":[{"role":"user","content":"a"}],"temperature":' + number + b"}"
    with pytest.raises(ApiError) as caught:
        Chat().decode(body)
    assert caught.value.status == 400


# ---- what is written


def transcript(reply) -> bytes:
    """A stream with everything in it: a wait, thoughts, text that needs escapes, calls, the end."""
    before, after = Usage(20), Usage(20, 16, 9, 2)
    said = [
        Reasoning("hm"),
        Text("Pa"),
        Text('"ris"\n\\ é 😀 </s>'),
        CallBegan(0, "ls"),
        CallArguments(0, '{"path": '),
        CallArguments(0, '"a b"}'),
        CallEnded(0),
        CallBegan(1, "pwd"),
        CallArguments(1, "{}"),
        CallEnded(1),
    ]
    parts = [
        reply.head(),
        reply.keepalive(None),
        reply.begin(before),
        *(reply.said(part, 0) for part in said),
        reply.keepalive(Progress(5, 20)),
        reply.ended(Ended(FinishReason.STOP, has_calls=True), 0),
        reply.end(after),
    ]
    return b"".join(parts)


def about(dialect="chat", **fields):
    known = {"wants_usage": True, **fields}
    return About("0123", "m", 1700000000, Generation("m", [], **known))


def chat_reply(**fields):
    return ChatReply(about(**fields))


def message_reply():
    return MessageReply(about())


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("chat.txt", lambda: transcript(chat_reply())),
        ("messages.txt", lambda: transcript(message_reply())),
        ("chat_error.txt", lambda: chat_reply().error(unavailable("The server is stopping"))),
        (
            "messages_error.txt",
            lambda: message_reply().error(unavailable("The server is stopping")),
        ),
    ],
)
def test_transcripts(name, make):
    assert make() == (GOLDEN / name).read_bytes()


def test_chunks_are_what_the_sdk_knows():
    chunks = strict.chunks(transcript(chat_reply()).decode())
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == 'Pa"ris"\n\\ é 😀 </s>'


def test_case_a8_calls_have_indices_and_names_of_their_own():
    """The id and the name come once, with the first delta of each."""
    chunks = strict.chunks(transcript(chat_reply()).decode())
    deltas = [
        c for chunk in chunks if chunk.choices for c in chunk.choices[0].delta.tool_calls or ()
    ]
    assert [delta.index for delta in deltas] == [0, 0, 0, 1, 1]
    assert [bool(delta.id) for delta in deltas] == [True, False, False, True, False]
    assert [delta.function.name for delta in deltas] == ["ls", None, None, "pwd", None]
    assert deltas[0].id != deltas[3].id
    assert "".join(d.function.arguments for d in deltas[:3]) == '{"path": "a b"}'
    assert chunks[-2].choices[0].finish_reason == "tool_calls"


def test_usage_is_one_chunk_without_choices_after_the_finish_reason():
    """K8"""
    *_, finish, usage = strict.chunks(transcript(chat_reply()).decode())
    assert finish.choices[0].finish_reason == "tool_calls"
    assert finish.usage is None
    assert usage.choices == []
    assert (usage.usage.prompt_tokens, usage.usage.completion_tokens) == (20, 9)
    assert usage.usage.prompt_tokens_details.cached_tokens == 16
    assert usage.usage.completion_tokens_details.reasoning_tokens == 2
    without = strict.chunks(transcript(chat_reply(wants_usage=False)).decode())
    assert without[-1].choices[0].finish_reason == "tool_calls"
    assert all(chunk.usage is None for chunk in without)


def test_case_a7_events_are_what_the_sdk_knows():
    """Blocks in order, each begun once and ended; input comes in deltas only; thoughts signed."""
    events = strict.events(transcript(message_reply()).decode())
    kinds = [(event.type, getattr(event, "index", None)) for event in events]
    assert kinds == [
        ("message_start", None),
        *[("content_block_" + kind, 0) for kind in ("start", "delta", "delta", "stop")],
        *[("content_block_" + kind, 1) for kind in ("start", "delta", "delta", "stop")],
        *[("content_block_" + kind, 2) for kind in ("start", "delta", "delta", "stop")],
        *[("content_block_" + kind, 3) for kind in ("start", "delta", "stop")],
        ("message_delta", None),
        ("message_stop", None),
    ]
    assert events[3].delta.type == "signature_delta" and events[3].delta.signature
    starts = [event.content_block for event in events if event.type == "content_block_start"]
    assert [block.type for block in starts] == ["thinking", "text", "tool_use", "tool_use"]
    assert [block.input for block in starts[2:]] == [{}, {}]
    assert events[0].message.usage.output_tokens == 0
    assert events[-2].delta.stop_reason == "tool_use"
    usage = events[-2].usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (4, 16, 9)


def answer(*parts, ended):
    return [Answer(parts, ended)]


def test_an_answer_without_text_has_no_block():
    """A4: nor has one that thinking was cut in."""
    reply = message_reply()
    cut = Ended(FinishReason.LENGTH)
    end = (reply.ended(cut, 0) + reply.end(Usage(1))).decode()
    assert [event.type for event in strict.events(end)] == ["message_delta", "message_stop"]
    whole = message_reply().whole(answer(ended=Ended(FinishReason.STOP)), Usage(1))
    assert strict.message(whole).content == []
    thought = answer(Reasoning("hm"), ended=cut)
    message = strict.message(message_reply().whole(thought, Usage(1, 0, 5, 5)))
    assert [block.type for block in message.content] == ["thinking"]
    choice = strict.completion(chat_reply().whole(thought, Usage(1, 0, 5, 5))).choices[0]
    assert (choice.message.content, choice.message.reasoning_content) == ("", "hm")
    assert choice.finish_reason == "length"


@pytest.mark.parametrize(
    ("ended", "openai", "anthropic", "sequence"),
    [
        (Ended(FinishReason.STOP), "stop", "end_turn", None),
        (Ended(FinishReason.LENGTH), "length", "max_tokens", None),
        (Ended(FinishReason.STOP, "END"), "stop", "stop_sequence", "END"),
        (Ended(FinishReason.STOP, has_calls=True), "tool_calls", "tool_use", None),
        (Ended(FinishReason.LENGTH, has_calls=True), "length", "max_tokens", None),
    ],
)
def test_reasons(ended, openai, anthropic, sequence):
    """K21"""
    usage = Usage(20, 16, 3)
    said = answer(Text("x"), ended=ended)
    completion = strict.completion(chat_reply().whole(said, usage))
    assert completion.choices[0].finish_reason == openai
    assert completion.usage.total_tokens == 23
    message = strict.message(message_reply().whole(said, usage))
    assert (message.stop_reason, message.stop_sequence) == (anthropic, sequence)
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens == 20
