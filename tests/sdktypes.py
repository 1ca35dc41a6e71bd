"""Checks answers by the types of the vendors' SDKs: nothing missing, nothing that they don't know.

Goes by the path of a request; for whole answers, streams and errors of every dialect.
"""

import json
from collections.abc import Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Literal

from anthropic.types import Message, MessageTokensCount, ModelInfo, RawMessageStreamEvent
from anthropic.types.shared import ErrorResponse
from openai.types import Completion, CompletionChoice, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.shared import ErrorObject
from pydantic import BaseModel, TypeAdapter, ValidationError

from tests.fakes.proxy import Exchange

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
COUNT, MODELS = "/v1/messages/count_tokens", "/v1/models"


class _CompletionChunkChoice(CompletionChoice):
    finish_reason: Literal["stop", "length", "content_filter"] | None


class _CompletionChunk(Completion):
    """The SDK takes a whole completion's type, though the API sends null up to the end."""

    choices: list[_CompletionChunkChoice]


# Keys beyond the API, by path; docs/guide/http.md says what they are for.
EXTRA_KEYS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        CHAT: frozenset({"reasoning_content", "stop_reason"}),
        COMPLETIONS: frozenset({"stop_reason"}),
        MESSAGES: frozenset({"finish_details"}),
        MODELS: frozenset({"context_window", "root", "profile", "capabilities"}),
    }
)
_WHOLE: Mapping[str, Any] = MappingProxyType(
    {
        CHAT: ChatCompletion,
        COMPLETIONS: Completion,
        RESPONSES: Response,
        MESSAGES: Message,
        COUNT: MessageTokensCount,
    }
)
_STREAMED: Mapping[str, Any] = MappingProxyType(
    {
        CHAT: ChatCompletionChunk,
        COMPLETIONS: _CompletionChunk,
        RESPONSES: ResponseStreamEvent,
        MESSAGES: RawMessageStreamEvent,
    }
)
# Signs of life in a stream that the SDKs pass over without a type.
_UNTYPED = ("ping", "keepalive")


def unknown_keys(value: Any, path: str = "$") -> list[str]:
    """Keys of an answer that the SDK's types don't know."""
    if isinstance(value, BaseModel):
        extra = [f"{path}.{key}" for key in (value.model_extra or {})]
        names = type(value).model_fields
        return extra + [k for n in names for k in unknown_keys(getattr(value, n), f"{path}.{n}")]
    if isinstance(value, list):
        return [k for i, v in enumerate(value) for k in unknown_keys(v, f"{path}[{i}]")]
    return []


def problems(exchange: Exchange) -> list[str]:
    """What is wrong with the response of an exchange, a line each."""
    path = exchange.path.partition("?")[0]
    found: list[str] = []
    try:
        for kind, payload in _parts(exchange, path):
            value = _adapter(kind).validate_json(payload, strict=True)
            allowed = EXTRA_KEYS.get(path, frozenset())
            if path.startswith(f"{MODELS}/") or path == MODELS:
                allowed = EXTRA_KEYS[MODELS] if kind is Model else frozenset()
            unknown = [k for k in unknown_keys(value) if k.rpartition(".")[2] not in allowed]
            found += [f"{key} is unknown to {_name(kind)}" for key in unknown]
    except (ValidationError, ValueError, KeyError) as error:
        found.append(" ".join(str(error).split())[:600])
    where = f"{exchange.method} {path} {exchange.status}"
    return [f"{where}: {one}" for one in found]


def events(text: str) -> list[tuple[str, str]]:
    """Name and data of the events of a whole stream, without comments; no name is empty."""
    if not text.endswith("\n\n"):
        raise ValueError(f"a stream that ends in the middle of an event: {text[-80:]!r}")
    found: list[tuple[str, str]] = []
    for block in text[:-2].split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n") if line[0] != ":")
        if fields:
            found.append((fields.get("event", ""), fields["data"]))
    return found


def _parts(exchange: Exchange, path: str) -> Iterator[tuple[Any, str]]:
    """Each JSON text of a response, with the type that it must have."""
    text = exchange.body.decode()
    is_anthropic = path.startswith(MESSAGES) or "anthropic-version" in exchange.headers
    if exchange.status >= 400:
        # OpenAI's SDK has no type for what is around the error.
        yield (ErrorResponse, text) if is_anthropic else (ErrorObject, _inner(text, "error"))
    elif exchange.content_type.startswith("text/event-stream"):
        yield from _events(path, text)
    elif path == MODELS:
        for one in json.loads(text)["data"]:
            yield ModelInfo if is_anthropic else Model, json.dumps(one)
    elif path.startswith(f"{MODELS}/"):
        yield ModelInfo if is_anthropic else Model, text
    elif path.startswith(f"{RESPONSES}/"):
        if exchange.method == "GET":
            yield Response, text
    else:
        yield _WHOLE[path], text


def _events(path: str, text: str) -> Iterator[tuple[Any, str]]:
    found = events(text)
    if path in (CHAT, COMPLETIONS) and found.pop()[1] != "[DONE]":
        raise ValueError("a stream without its end mark")
    for name, data in found:
        value = json.loads(data)
        if name != value.get("type", "") and path in (MESSAGES, RESPONSES):
            raise ValueError(f"the event {name!r} has other data: {data[:200]}")
        if name == "error" and path == MESSAGES:
            yield ErrorResponse, data
        elif "error" in value and path in (CHAT, COMPLETIONS):
            yield ErrorObject, _inner(data, "error")
        elif name not in _UNTYPED:
            yield _STREAMED[path], data


def _inner(text: str, key: str) -> str:
    value = json.loads(text)
    if set(value) != {key}:
        raise ValueError(f"keys {sorted(value)} instead of {key}")
    return json.dumps(value[key])


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", "an event")
