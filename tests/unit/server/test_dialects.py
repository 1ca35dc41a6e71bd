"""What both dialects take and refuse, and what they write."""

import json
from pathlib import Path

import pytest

from omlx.engine.request import FinishReason
from omlx.server.anthropic.messages import MessageReply, Messages
from omlx.server.errors import ApiError, unavailable
from omlx.server.generation import Ended, Usage, Wishes
from omlx.server.openai.chat import Chat, ChatReply
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
    "reasoning_effort": "low",
    "tool_choice": "none",
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
    "thinking": {"type": "enabled", "budget_tokens": 32000},
    "context_management": {"edits": []},
    "output_config": {"effort": "high"},
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
    (chat, {"tools": [{"type": "function", "function": {"name": "f"}}]}, "$.tools"),
    (chat, {"functions": [{"name": "f"}]}, "$.functions"),
    (chat, {"n": 2}, "$.n"),
    (chat, {"n": 0}, "$.n"),
    (chat, {"logprobs": True}, "$.logprobs"),
    (chat, {"top_logprobs": 5}, "$.top_logprobs"),
    (chat, {"logit_bias": {"1": 5}}, "$.logit_bias"),
    (chat, {"response_format": {"type": "json_object"}}, "$.response_format.type"),
    (chat, {"response_format": {"type": "bogus"}}, "$.response_format.type"),
    (chat, {"modalities": ["text", "audio"]}, "$.modalities"),
    (
        chat,
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, IMAGE]}]},
        "$.messages[0].content[1].type",
    ),
    (
        chat,
        {"messages": [USER, {"role": "assistant", "tool_calls": [CALL]}]},
        "$.messages[1].tool_calls",
    ),
    (
        chat,
        {"messages": [USER, {"role": "tool", "tool_call_id": "c", "content": "x"}]},
        "$.messages[1].role",
    ),
    (messages, {"tools": [{"name": "f", "input_schema": {}}]}, "$.tools"),
    (
        messages,
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        "$.messages[0].content[0].type",
    ),
    (
        messages,
        {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
        "$.messages[0].content[0].type",
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


WRONG = [
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
    """A stream with everything in it: a wait, text that needs escapes, the end, an error."""
    before, after = Usage(20), Usage(20, 16, 3)
    parts = [
        reply.head(),
        reply.keepalive(),
        reply.begin(before),
        reply.text("Pa"),
        reply.text('"ris"\n\\ é 😀 </s>'),
        reply.keepalive(),
        reply.end(Ended(FinishReason.STOP), after),
    ]
    return b"".join(parts)


def chat_reply(*, wants_usage=True):
    return ChatReply("0123", "m", 1700000000, wants_usage=wants_usage)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("chat.txt", lambda: transcript(chat_reply())),
        ("messages.txt", lambda: transcript(MessageReply("0123", "m"))),
        ("chat_error.txt", lambda: chat_reply().error(unavailable("The server is stopping"))),
        (
            "messages_error.txt",
            lambda: MessageReply("0123", "m").error(unavailable("The server is stopping")),
        ),
    ],
)
def test_transcripts(name, make):
    assert make() == (GOLDEN / name).read_bytes()


def test_chunks_are_what_the_sdk_knows():
    chunks = strict.chunks(transcript(chat_reply()).decode())
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == 'Pa"ris"\n\\ é 😀 </s>'


def test_usage_is_one_chunk_without_choices_after_the_finish_reason():
    """K8"""
    *_, finish, usage = strict.chunks(transcript(chat_reply()).decode())
    assert finish.choices[0].finish_reason == "stop"
    assert finish.usage is None
    assert usage.choices == []
    assert (usage.usage.prompt_tokens, usage.usage.completion_tokens) == (20, 3)
    assert usage.usage.prompt_tokens_details.cached_tokens == 16
    without = strict.chunks(transcript(chat_reply(wants_usage=False)).decode())
    assert without[-1].choices[0].finish_reason == "stop"
    assert all(chunk.usage is None for chunk in without)


def test_events_are_what_the_sdk_knows():
    events = strict.events(transcript(MessageReply("0123", "m")).decode())
    assert [event.type for event in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert events[0].message.usage.output_tokens == 0
    usage = events[-2].usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (4, 16, 3)


def test_an_answer_without_text_has_no_block():
    reply = MessageReply("0123", "m")
    end = reply.end(Ended(FinishReason.LENGTH), Usage(1)).decode()
    assert [event.type for event in strict.events(end)] == ["message_delta", "message_stop"]
    assert strict.message(reply.whole("", Ended(FinishReason.STOP), Usage(1))).content == []


@pytest.mark.parametrize(
    ("ended", "openai", "anthropic", "sequence"),
    [
        (Ended(FinishReason.STOP), "stop", "end_turn", None),
        (Ended(FinishReason.LENGTH), "length", "max_tokens", None),
        (Ended(FinishReason.STOP, "END"), "stop", "stop_sequence", "END"),
    ],
)
def test_reasons(ended, openai, anthropic, sequence):
    usage = Usage(20, 16, 3)
    completion = strict.completion(chat_reply().whole("x", ended, usage))
    assert completion.choices[0].finish_reason == openai
    assert completion.usage.total_tokens == 23
    message = strict.message(MessageReply("0123", "m").whole("x", ended, usage))
    assert (message.stop_reason, message.stop_sequence) == (anthropic, sequence)
    assert message.usage.input_tokens + message.usage.cache_read_input_tokens == 20
