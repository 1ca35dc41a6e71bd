"""The keys that answers have beyond the APIs are those that the page on the HTTP API names."""

import re
from collections import defaultdict

import pytest

from tests import sdktypes
from tests.clients import REPOSITORY
from tests.fakes.proxy import Exchange

_ROW = re.compile(r"^\| `(/[^`]+)` \| `(\w+)` \|", re.MULTILINE)
CHUNK = b"""data: {"id":"a","object":"chat.completion.chunk","created":1,"model":"m","choices":[\
{"index":0,"delta":{"content":"a","reasoning_content":"b"%b},"finish_reason":null}]}\n\n%b"""
END = b"data: [DONE]\n\n"


def streamed(body: bytes, path: str = sdktypes.CHAT) -> list[str]:
    return sdktypes.problems(Exchange("POST", path, {}, b"", 200, "text/event-stream", body))


def test_the_page_names_them() -> None:
    named: dict[str, set[str]] = defaultdict(set)
    for path, key in _ROW.findall((REPOSITORY / "docs" / "guide" / "http.md").read_text()):
        named[path].add(key)
    assert named == {path: set(keys) for path, keys in sdktypes.EXTRA_KEYS.items()}


def test_a_key_that_is_not_named_is_a_problem() -> None:
    assert streamed(CHUNK % (b"", END)) == []
    [problem] = streamed(CHUNK % (b',"mood":1', END))
    assert "$.choices[0].delta.mood is unknown to ChatCompletionChunk" in problem


@pytest.mark.parametrize(
    ("body", "path", "words"),
    [
        (CHUNK % (b"", b""), sdktypes.CHAT, "without its end mark"),
        (b"data: [DONE]\n", sdktypes.CHAT, "in the middle of an event"),
        (b'event: a\ndata: {"type":"b"}\n\n', sdktypes.MESSAGES, "has other data"),
        (b'data: {"error":{},"a":1}\n\n' + END, sdktypes.CHAT, "instead of error"),
        (b'data: {"id":"a"}\n\n' + END, sdktypes.CHAT, "Field required"),
    ],
)
def test_streams_that_are_not_as_they_should_be(body: bytes, path: str, words: str) -> None:
    [problem] = streamed(body, path)
    assert words in problem
