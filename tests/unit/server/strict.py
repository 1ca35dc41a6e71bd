"""Strict readers of answers: the SDKs' own types, and no key that those don't know."""

import json

from anthropic.types import Message, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.sdktypes import CHAT, EXTRA_KEYS, MESSAGES, unknown_keys

# Said although the APIs don't have it; documented.
BEYOND = EXTRA_KEYS[CHAT] | EXTRA_KEYS[MESSAGES]
_EVENT = TypeAdapter(RawMessageStreamEvent)
_RESPONSE_EVENT = TypeAdapter(ResponseStreamEvent)


def assert_known_keys(value: object, path: str = "$") -> None:
    """Fail on a key that the type does not have, at any depth."""
    unknown = [key for key in unknown_keys(value, path) if key.rpartition(".")[2] not in BEYOND]
    assert unknown == []


def completion(body: bytes) -> ChatCompletion:
    parsed = ChatCompletion.model_validate_json(body, strict=True)
    assert_known_keys(parsed)
    return parsed


def chunks(text: str) -> list[ChatCompletionChunk]:
    """The chunks of a whole stream, which must end with the end mark."""
    payloads = [event.removeprefix("data: ") for event in blocks(text) if event[0] != ":"]
    assert payloads[-1] == "[DONE]"
    parsed = [ChatCompletionChunk.model_validate_json(one, strict=True) for one in payloads[:-1]]
    for chunk in parsed:
        assert_known_keys(chunk)
    return parsed


def message(body: bytes) -> Message:
    parsed = Message.model_validate_json(body)
    assert_known_keys(parsed)
    return parsed


def events(text: str) -> list:
    """The events of a whole stream without pings; each name must be the type of its data."""
    parsed = []
    for block in blocks(text):
        name, payload = split(block)
        assert json.loads(payload)["type"] == name
        if name != "ping":
            event = _EVENT.validate_json(payload)
            assert_known_keys(event)
            parsed.append(event)
    return parsed


def anthropic_error(body: bytes) -> ErrorResponse:
    parsed = ErrorResponse.model_validate_json(body)
    assert_known_keys(parsed)
    return parsed


def blocks(text: str) -> list[str]:
    """The events and comments of a stream, which must end with an empty line."""
    assert text.endswith("\n\n")
    return text[:-2].split("\n\n")


def split(block: str) -> tuple[str, str]:
    """Name and data of an event."""
    name, data = block.split("\n")
    return name.removeprefix("event: "), data.removeprefix("data: ")


def response(body: bytes) -> Response:
    parsed = Response.model_validate_json(body, strict=True)
    assert_known_keys(parsed)
    return parsed


def response_events(text: str, *, error_codes: bool = False) -> list:
    """The events of a whole stream of the Responses API, numbered from 0 without a gap.

    With `error_codes`, codes of errors that the SDK's type lacks are taken all the same.
    """
    parsed = []
    for number, block in enumerate(blocks(text)):
        name, payload = split(block)
        value = json.loads(payload)
        assert value["type"] == name
        assert value["sequence_number"] == number
        if error_codes and name == "response.failed":
            value["response"]["error"]["code"] = "server_error"
        event = _RESPONSE_EVENT.validate_json(json.dumps(value), strict=True)
        assert_known_keys(event)
        parsed.append(event)
    return parsed


def text_completion(body: bytes) -> Completion:
    parsed = Completion.model_validate_json(body, strict=True)
    assert_known_keys(parsed)
    return parsed
