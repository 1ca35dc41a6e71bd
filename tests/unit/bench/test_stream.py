"""What counts as a token in a stream, and when it came."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.bench.failure import Fault, RequestError
from omlx.bench.stream import Events
from tests.fakes.streaming import DONE, KEEP_ALIVE, delta, event, text, usage


def _fed(*parts: bytes) -> Events:
    """Each part comes a second after the one before."""
    events = Events()
    for second, part in enumerate(parts, start=1):
        events.feed(part, float(second))
    return events


def test_only_events_with_content_are_timed() -> None:
    heard = _fed(
        KEEP_ALIVE,
        delta(role="assistant"),
        delta(content=""),
        delta(content=None),
        b"data:\n\n",
        delta(content="Hel"),
        KEEP_ALIVE,
        delta(content="lo"),
        delta("stop"),
        usage(10, 2, 4),
        DONE,
    ).heard
    assert heard.times == [6.0, 8.0]
    assert "".join(heard.text) == "Hello"
    assert (heard.num_keep_alives, heard.num_empty) == (2, 5)
    assert (heard.prompt_tokens, heard.cached_tokens, heard.completion_tokens) == (10, 4, 2)
    assert heard.finish == "stop"
    assert heard.is_done


def test_reasoning_and_tool_calls_are_content() -> None:
    call = {"index": 0, "function": {"name": "read", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": '{"a":1}'}}
    empty = {"index": 0, "function": {"arguments": ""}}
    heard = _fed(
        delta(reasoning_content="hm", reasoning="hm"),
        delta(tool_calls=[call]),
        delta(tool_calls=[empty]),
        delta(tool_calls=[more]),
    ).heard
    assert heard.times == [1.0, 2.0, 4.0]
    assert heard.reasoning == ["hm"]
    assert "".join(heard.tool_calls) == 'read{"a":1}'


def test_a_completion_has_its_text_in_the_choice() -> None:
    heard = _fed(text(""), text(" a"), text("", "length")).heard
    assert heard.times == [2.0]
    assert heard.finish == "length"


def test_the_usage_of_a_server_that_counts_no_cached_tokens_is_unknown() -> None:
    assert _fed(usage(3, 1)).heard.cached_tokens is None
    assert _fed(event({"choices": [], "usage": {"prompt_tokens": "3"}})).heard.prompt_tokens is None


@pytest.mark.parametrize(
    ("error", "said"),
    [
        ({"message": "no room", "type": "x"}, "no room"),
        ("plain", "plain"),
        ({"code": 5}, '{"code": 5}'),
        ({"message": "a\nb" + "x" * 1000}, "a b" + "x" * 297),
    ],
)
def test_an_error_in_the_stream_is_one(error: object, said: str) -> None:
    with pytest.raises(RequestError) as caught:
        _fed(event({"error": error}))
    assert caught.value.fault is Fault.EVENT
    assert caught.value.message == f"the stream brings an error: {said}"


@pytest.mark.parametrize("payload", [b"data: {\n", b"data: [1]\n", b'data: "x"\n', b"data: \xff\n"])
def test_what_is_no_object_is_an_error(payload: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        _fed(payload)
    assert caught.value.fault is Fault.GARBAGE


def test_odd_choices_are_passed_over() -> None:
    odd = [{"choices": 5}, {"choices": [3, {"delta": 7}]}, {"choices": [{"delta": {"content": 4}}]}]
    calls = {"choices": [{"delta": {"tool_calls": [None, {"function": 3}]}}]}
    assert _fed(*map(event, odd), event(calls)).heard.times == []


@given(
    pieces=st.lists(st.text(min_size=1, max_size=5), min_size=1, max_size=6),
    cuts=st.lists(st.integers(0, 2000), max_size=20),
    newline=st.sampled_from([b"\n", b"\r\n"]),
)
def test_where_the_bytes_are_cut_changes_nothing(
    pieces: list[str], cuts: list[int], newline: bytes
) -> None:
    whole = b"".join(
        b"data: " + json.dumps({"choices": [{"delta": {"content": piece}}]}).encode() + newline * 2
        for piece in pieces
    )
    events = Events()
    places = sorted({0, len(whole), *(cut % (len(whole) + 1) for cut in cuts)})
    for begin, end in zip(places, places[1:], strict=False):
        events.feed(whole[begin:end], 1.0)
    assert events.heard.text == pieces
    assert len(events.heard.times) == len(pieces)


def test_an_endless_line_is_an_error() -> None:
    events = Events()
    with pytest.raises(RequestError) as caught:
        for _ in range(20):
            events.feed(b"x" * 1_000_000, 1.0)
    assert caught.value.fault is Fault.GARBAGE
