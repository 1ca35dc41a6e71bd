"""POST /v1/messages: its requests into the internal form, its answers out of it.

Knows nothing about templates, tokens or engines.
"""

import json
from dataclasses import dataclass, replace

import msgspec
import orjson

from omlx.engine.request import FinishReason
from omlx.server import context, sse
from omlx.server.anthropic import types
from omlx.server.body import decode, plain_object
from omlx.server.errors import ApiError, Flavor, bad_field, error_bytes, unsupported
from omlx.server.generation import (
    Ended,
    Generation,
    Reply,
    Usage,
    Wishes,
    content,
    number,
    stop_strings,
    whole,
)

_DECODER = msgspec.json.Decoder(types.MessagesRequest)
# Claude Code's line about itself: part of it changes with every request, and it is not for models.
_ATTRIBUTION = "x-anthropic-billing-header:"


@dataclass(frozen=True, slots=True)
class Messages:
    """The dialect of the Messages API; tools are read for those who only explain a prompt."""

    flavor: Flavor = Flavor.ANTHROPIC
    reads_tools: bool = False

    def decode(self, body: bytes) -> Generation:
        """The request in a body; ApiError names the field that is wrong."""
        request = decode(_DECODER, body)
        if request.tools and not self.reads_tools:
            raise unsupported("$.tools", "Tool calling")
        if not request.messages:
            raise bad_field("$.messages", "Must hold at least one message")
        system, system_places = _system(request.system)
        placed = [(-1, message) for message in system]
        for index, message in enumerate(request.messages):
            made = _messages(message, index, request.model, reads_tools=self.reads_tools)
            placed += [(index, one) for one in made]
        return Generation(
            model=request.model,
            messages=[message for _, message in placed],
            places=[place for place, _ in placed],
            system_places=system_places,
            tools=[_tool(plain_object(tool)) for tool in request.tools or ()],
            wishes=Wishes(
                temperature=number(request.temperature, "$.temperature", low=0, high=5),
                top_p=number(request.top_p, "$.top_p", low=0, high=1),
                top_k=whole(request.top_k, "$.top_k", low=0),
                max_tokens=whole(request.max_tokens, "$.max_tokens", low=1),
            ),
            stop=stop_strings(request.stop_sequences or [], "$.stop_sequences"),
            is_stream=bool(request.stream),
        )

    def reply(self, request_id: str, model: str, created: int, *, wants_usage: bool) -> Reply:
        """The writer of the answer to one request; this dialect always sends the usage."""
        return MessageReply(request_id, model)


def _system(
    system: str | list[types.TextBlock] | None,
) -> tuple[list[context.Message], list[int]]:
    """The system message, if there is one, and which blocks of the body's its texts are."""
    texts = [system or ""] if not isinstance(system, list) else [block.text for block in system]
    kept = [(place, _without_attribution(text)) for place, text in enumerate(texts)]
    kept = [(place, text) for place, text in kept if text]
    message: context.Message = {"role": "system", "content": content([text for _, text in kept])}
    return [message] if kept else [], [place for place, _ in kept]


def _without_attribution(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(_ATTRIBUTION) else text


def _messages(
    message: types.Message, index: int, model: str, *, reads_tools: bool
) -> list[context.Message]:
    """A message as templates know it: one, after those that tell what tools returned."""
    param = f"$.messages[{index}].content"
    match message:
        case types.UserMessage():
            role = "user"
        case types.AssistantMessage():
            role = "assistant"
        case types.SystemMessage() | types.DeveloperMessage():
            role = "system"
    if not reads_tools or isinstance(message.content, str):
        return [{"role": role, "content": _content(message.content, param, model)}]
    results = [b for b in message.content if isinstance(b, types.ToolResultBlock)]
    uses = [b for b in message.content if isinstance(b, types.ToolUseBlock)]
    others = [b for b in message.content if b not in results and b not in uses]
    made: list[context.Message] = [_result(block) for block in results]
    if others or not results:
        calls: context.Message = {"tool_calls": [_call(use) for use in uses]} if uses else {}
        made.append({"role": role, "content": _content(others, param, model), **calls})
    return made


def _result(block: types.ToolResultBlock) -> context.Message:
    found = block.content
    if isinstance(found, list):
        found = content([text for text in map(_text_of, found) if text])
    return {"role": "tool", "content": found or "", "tool_call_id": block.tool_use_id}


def _text_of(block: dict[str, msgspec.Raw]) -> str:
    text: object = msgspec.json.decode(block.get("text", msgspec.Raw(b'""')))
    return text if isinstance(text, str) else ""


def _call(use: types.ToolUseBlock) -> dict[str, object]:
    arguments = json.dumps(plain_object(use.input), ensure_ascii=False)
    function = {"name": use.name, "arguments": arguments}
    return {"id": use.id, "type": "function", "function": function}


def _tool(tool: dict[str, object]) -> context.Message:
    """A tool as templates know it."""
    function = {
        "name": tool.get("name", ""),
        "description": tool.get("description", ""),
        "parameters": tool.get("input_schema", {}),
    }
    return {"type": "function", "function": function}


def _content(value: types.Content, param: str, model: str) -> str | list[dict[str, str]]:
    if isinstance(value, str):
        return value
    texts: list[str] = []
    for index, block in enumerate(value):
        match block:
            case types.TextBlock():
                texts.append(block.text)
            case types.ThinkingBlock() | types.RedactedThinkingBlock():
                pass  # earlier thoughts are no part of the conversation
            case types.ToolUseBlock() | types.ToolResultBlock():
                raise unsupported(f"{param}[{index}].type", "Tool calling")
            case _:
                what = f"Other content than text, for the model {model[:200]!r},"
                raise unsupported(f"{param}[{index}].type", what)
    return content(texts)


class MessageReply:
    """Writes one answer as a message or as its events; knows whether its text block is open."""

    def __init__(self, request_id: str, model: str) -> None:
        self._id = f"msg_{request_id}"
        self._request_id = request_id
        self._model = model
        self._is_open = False

    def head(self) -> bytes:
        """Nothing: the first event tells the usage."""
        return b""

    def begin(self, usage: Usage) -> bytes:
        """The message without content; of the usage, what goes in."""
        message = self._message([], None, None, replace(usage, completion=0))
        return _event({"type": "message_start", "message": message})

    def text(self, text: str) -> bytes:
        """A piece of the text block, which is opened before the first (mutates)."""
        out = b""
        if not self._is_open:
            self._is_open = True
            block = {"type": "text", "text": ""}
            out = _event({"type": "content_block_start", "index": 0, "content_block": block})
        return out + sse.event(
            "content_block_delta",
            b'{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":'
            + orjson.dumps(text)
            + b"}}",
        )

    def keepalive(self) -> bytes:
        """The event that this API has for it."""
        return _event({"type": "ping"})

    def end(self, ended: Ended, usage: Usage) -> bytes:
        """The end of the text block and of the message, with the usage as it really was."""
        out = _event({"type": "content_block_stop", "index": 0}) if self._is_open else b""
        delta = {"stop_reason": _stop_reason(ended), "stop_sequence": ended.stop, **_why(ended)}
        out += _event({"type": "message_delta", "delta": delta, "usage": _usage(usage)})
        return out + _event({"type": "message_stop"})

    def error(self, error: ApiError) -> bytes:
        """The error event, after which nothing comes."""
        return sse.event("error", error_bytes(error, Flavor.ANTHROPIC, self._request_id))

    def whole(self, text: str, ended: Ended, usage: Usage) -> bytes:
        """The body of an answer that isn't streamed."""
        content = [{"type": "text", "text": text}] if text else []
        message = self._message(content, _stop_reason(ended), ended.stop, usage)
        return orjson.dumps(message | _why(ended))

    def _message(
        self,
        content: list[dict[str, str]],
        stop_reason: str | None,
        stop_sequence: str | None,
        usage: Usage,
    ) -> dict[str, object]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": stop_sequence,
            "usage": _usage(usage),
        }


def _event(value: dict[str, object]) -> bytes:
    return sse.event(str(value["type"]), orjson.dumps(value))


def _stop_reason(ended: Ended) -> str:
    if ended.stop is not None:
        return "stop_sequence"
    is_cut = ended.reason in (FinishReason.LENGTH, FinishReason.REPETITION)
    return "max_tokens" if is_cut else "end_turn"


def _why(ended: Ended) -> dict[str, object]:
    """What the API has no word for."""
    is_loop = ended.reason is FinishReason.REPETITION
    return {"finish_details": {"reason": ended.reason.value}} if is_loop else {}


def _usage(usage: Usage) -> dict[str, int]:
    return {
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.completion,
    }
