"""Writes an answer as a message, or as the events of one.

Knows nothing about requests. Not in the API, and said all the same: `finish_details`, where a loop
was ended.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec
import orjson

from omlx.engine.request import FinishReason
from omlx.server import sse
from omlx.server.errors import ApiError, Flavor, error_bytes
from omlx.server.generation import About, Answer, Ended, Progress, ToolCall, Usage
from omlx.server.parse.said import CallArguments, CallBegan, CallEnded, Reasoning, Said, Text

# Clients send thoughts back only with a signature; nobody has to check this one.
SIGNATURE = "b21seA=="


class MessageReply:
    """The writer of one request's answer; knows which block of the stream is open."""

    def __init__(self, about: About) -> None:
        self._about = about
        self._id = f"msg_{about.request_id}"
        self._index = -1
        self._open: type[Said] | None = None

    def head(self) -> bytes:
        """Nothing: the first event tells the usage."""
        return b""

    def begin(self, usage: Usage) -> bytes:
        """The message without content; of the usage, what goes in."""
        message = self._message([], None, None, replace(usage, completion=0))
        return _event({"type": "message_start", "message": message})

    def said(self, part: Said, choice: int) -> bytes:
        """A piece of a block, which is opened before the first (mutates)."""
        match part:
            case Text():
                out = self._opened(Text, {"type": "text", "text": ""})
                return out + self._delta(b"text_delta", b"text", part.text)
            case Reasoning():
                block = {"type": "thinking", "thinking": "", "signature": ""}
                out = self._opened(Reasoning, block)
                return out + self._delta(b"thinking_delta", b"thinking", part.text)
            case CallBegan():
                return self._closed() + self._opened(CallBegan, self._use(part.index, part.name))
            case CallArguments():
                return self._delta(b"input_json_delta", b"partial_json", part.text)
            case CallEnded():
                return self._closed()

    def keepalive(self, progress: Progress | None) -> bytes:
        """The event that this API has for it."""
        return _event({"type": "ping"})

    def ended(self, ended: Ended, choice: int) -> bytes:
        """The end of the last block; what the message's end must say is kept (mutates)."""
        self._ended = ended
        return self._closed()

    def end(self, usage: Usage) -> bytes:
        """The end of the message, with the usage as it really was."""
        ended = self._ended
        delta = {"stop_reason": _stop_reason(ended), "stop_sequence": ended.stop, **_why(ended)}
        out = _event({"type": "message_delta", "delta": delta, "usage": _usage(usage)})
        return out + _event({"type": "message_stop"})

    def error(self, error: ApiError) -> bytes:
        """The error event, after which nothing comes."""
        return sse.event("error", error_bytes(error, Flavor.ANTHROPIC, self._about.request_id))

    def whole(self, answers: Sequence[Answer], usage: Usage) -> bytes:
        """The body of an answer that isn't streamed."""
        [answer] = answers
        content = [self._block(part) for part in answer.parts]
        ended = answer.ended
        message = self._message(content, _stop_reason(ended), ended.stop, usage)
        return orjson.dumps(message | _why(ended))

    def _block(self, part: Text | Reasoning | ToolCall) -> dict[str, object]:
        match part:
            case Text():
                return {"type": "text", "text": part.text}
            case Reasoning():
                return {"type": "thinking", "thinking": part.text, "signature": SIGNATURE}
            case ToolCall():
                return self._use(part.index, part.name, part.arguments)

    def _use(self, index: int, name: str, arguments: str = "") -> dict[str, object]:
        use_id = f"toolu_{self._about.request_id}{index:02x}"
        return {"type": "tool_use", "id": use_id, "name": name, "input": _parsed(arguments)}

    def _opened(self, kind: type[Said], block: Mapping[str, object]) -> bytes:
        if self._open is kind and kind is not CallBegan:
            return b""
        out = self._closed()
        self._index, self._open = self._index + 1, kind
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        return out + _event(start)

    def _closed(self) -> bytes:
        if self._open is None:
            return b""
        is_thinking, self._open = self._open is Reasoning, None
        signed = self._delta(b"signature_delta", b"signature", SIGNATURE) if is_thinking else b""
        return signed + _event({"type": "content_block_stop", "index": self._index})

    def _delta(self, kind: bytes, field: bytes, text: str) -> bytes:
        return sse.event(
            "content_block_delta",
            b'{"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":%b}}'
            % (self._index, kind, field, orjson.dumps(text)),
        )

    def _message(
        self,
        content: list[dict[str, object]],
        stop_reason: str | None,
        stop_sequence: str | None,
        usage: Usage,
    ) -> dict[str, object]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._about.model,
            "content": content,
            "stop_reason": stop_reason,
            "stop_sequence": stop_sequence,
            "usage": _usage(usage),
        }


def _parsed(arguments: str) -> object:
    """The input of a call; of one that a limit cut, nothing can be had."""
    try:
        return msgspec.json.decode(arguments.encode() or b"{}")
    except ValueError:
        return {}


def _event(value: Mapping[str, object]) -> bytes:
    return sse.event(str(value["type"]), orjson.dumps(value))


def _stop_reason(ended: Ended) -> str:
    if ended.stop is not None:
        return "stop_sequence"
    if ended.reason in (FinishReason.LENGTH, FinishReason.REPETITION):
        return "max_tokens"
    return "tool_use" if ended.has_calls else "end_turn"


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
