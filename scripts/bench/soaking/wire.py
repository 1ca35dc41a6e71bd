"""One request over HTTP in either dialect, streamed or not: what came of it, as the client saw it.

Knows nothing about what is right.
"""

import http.client
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

OPENAI, ANTHROPIC = "openai", "anthropic"
_TIMEOUT_S = 120.0
_PATHS = {OPENAI: "/v1/chat/completions", ANTHROPIC: "/v1/messages"}
_FINISH = {"stop": "stop", "length": "length", "end_turn": "stop", "max_tokens": "length"}

Message = dict[str, str]


@dataclass(frozen=True)
class Wish:
    """What is asked for; `leave_after` ends the connection: after so many seconds (a float) or so
    many pieces of text (an int)."""

    model: str
    messages: Sequence[Message]
    max_tokens: int
    dialect: str
    is_stream: bool
    leave_after: int | float | None = None


@dataclass
class Answer:
    """What came back; `problem` says why an answer is not complete, "" if it is."""

    text: str = ""
    finish: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    problem: str = ""
    has_left: bool = False
    parts: list[str] = field(default_factory=list[str])


def body_of(wish: Wish) -> dict[str, Any]:
    """The request's body in its dialect."""
    body: dict[str, Any] = {
        "model": wish.model,
        "messages": list(wish.messages),
        "max_tokens": wish.max_tokens,
        "temperature": 0,
        "stream": wish.is_stream,
    }
    if wish.dialect == OPENAI:
        return body | ({"stream_options": {"include_usage": True}} if wish.is_stream else {})
    if wish.messages[0]["role"] == "system":
        body |= {"system": wish.messages[0]["content"], "messages": list(wish.messages[1:])}
    return body


def send(port: int, wish: Wish) -> Answer:
    """Send a request and read its answer, or a part of it; nothing raises but a bug."""
    answer = Answer()
    timeout_s = _TIMEOUT_S
    if isinstance(wish.leave_after, float):
        timeout_s = max(wish.leave_after, 1e-3)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        _exchange(connection, wish, answer)
    except TimeoutError:
        answer.has_left = isinstance(wish.leave_after, float)
        answer.problem = "left" if answer.has_left else "no answer in time"
    except (OSError, http.client.HTTPException, ValueError, KeyError, IndexError) as error:
        answer.problem = f"{type(error).__name__}: {error}"
    finally:
        with suppress(OSError):
            connection.close()
    answer.text = answer.text or "".join(answer.parts)
    return answer


def _exchange(connection: http.client.HTTPConnection, wish: Wish, answer: Answer) -> None:
    headers = {"Content-Type": "application/json", "User-Agent": "soak/1"}
    deadline = time.monotonic() + _TIMEOUT_S
    connection.request("POST", _PATHS[wish.dialect], json.dumps(body_of(wish)), headers)
    with connection.getresponse() as response:
        if response.status != 200:
            answer.problem = f"status {response.status}: {response.read().decode()[:300]}"
        elif not wish.is_stream:
            _take_whole(json.loads(response.read()), wish.dialect, answer)
        else:
            _take_stream(response, wish, answer, deadline)


def _take_whole(body: dict[str, Any], dialect: str, answer: Answer) -> None:
    if dialect == OPENAI:
        choice = body["choices"][0]
        answer.text, answer.finish = choice["message"]["content"], choice["finish_reason"]
    else:
        answer.text = "".join(block["text"] for block in body["content"])
        answer.finish = _FINISH[body["stop_reason"]]
    _take_usage(body["usage"], dialect, answer)


def _take_usage(usage: dict[str, Any], dialect: str, answer: Answer) -> None:
    if dialect == OPENAI:
        answer.prompt_tokens = usage["prompt_tokens"]
        answer.completion_tokens = usage["completion_tokens"]
        answer.cached_tokens = usage["prompt_tokens_details"]["cached_tokens"]
    else:
        answer.cached_tokens = usage["cache_read_input_tokens"]
        answer.prompt_tokens = usage["input_tokens"] + answer.cached_tokens
        answer.completion_tokens = usage["output_tokens"]


def _take_stream(
    response: http.client.HTTPResponse, wish: Wish, answer: Answer, deadline: float
) -> None:
    take = _take_chunk if wish.dialect == OPENAI else _take_event
    is_over = False
    for event in _events(response):
        is_over = event == {} or take(event, answer) or is_over
        if answer.problem:
            return
        if time.monotonic() > deadline:
            answer.problem = "no end of the stream in time"
            return
        is_piece_count = isinstance(wish.leave_after, int)
        if is_piece_count and len(answer.parts) >= (wish.leave_after or 0):
            answer.has_left, answer.problem = True, "left"
            return
    if not is_over:
        answer.problem = "the stream ended early"


def _events(response: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """The data of a stream's events; {} for the last one of OpenAI."""
    for raw in response:
        line = raw.decode().rstrip("\r\n")
        if line.startswith("data: "):
            yield {} if line == "data: [DONE]" else json.loads(line[6:])


def _take_chunk(event: dict[str, Any], answer: Answer) -> bool:
    """Take an OpenAI chunk; the stream's end comes after it."""
    if "error" in event:
        answer.problem = f"error in the stream: {event['error']}"
        return False
    for choice in event["choices"]:
        if choice["delta"].get("content"):
            answer.parts.append(choice["delta"]["content"])
        answer.finish = choice.get("finish_reason") or answer.finish
    if event.get("usage"):
        _take_usage(event["usage"], OPENAI, answer)
    return False


def _take_event(event: dict[str, Any], answer: Answer) -> bool:
    """Take an Anthropic event; whether it is the last."""
    kind = event["type"]
    if kind == "error":
        answer.problem = f"error in the stream: {event['error']}"
    elif kind == "content_block_delta":
        answer.parts.append(event["delta"]["text"])
    elif kind == "message_delta":
        answer.finish = _FINISH[event["delta"]["stop_reason"]]
        _take_usage(event["usage"], ANTHROPIC, answer)
    return kind == "message_stop"
