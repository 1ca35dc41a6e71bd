"""Writes answers as chat completions, or as the chunks of one.

Knows nothing about requests. Not in the API, and said all the same: `reasoning_content`, which
clients of models that think look for, and `stop_reason` where a loop was ended.
"""

from collections.abc import Mapping, Sequence

import orjson

from omlx.engine.request import FinishReason
from omlx.server import sse
from omlx.server.errors import ApiError, Flavor, error_bytes
from omlx.server.generation import About, Answer, Ended, Progress, ToolCall, Usage
from omlx.server.parse.said import (
    CallArguments,
    CallBegan,
    CallEnded,
    Reasoning,
    Said,
    Score,
    Text,
)

_FINISH = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.REPETITION: "length",  # it is cut as well; `stop_reason` says why
}


class ChatReply:
    """The writer of one request's answers; holds no state of them."""

    def __init__(self, about: About) -> None:
        self._about = about
        self._id = f"chatcmpl-{about.request_id}"
        frame = orjson.dumps(
            {
                "id": self._id,
                "object": "chat.completion.chunk",
                "created": about.created,
                "model": about.model,
                "system_fingerprint": about.fingerprint,
            }
        )
        self._chunk = frame[:-1] + b',"choices":['

    def head(self) -> bytes:
        """The role of each answer, which is all that is known at once."""
        first = b'{"role":"assistant","content":""}'
        return b"".join(
            self._write(first, choice) for choice in range(self._about.generation.num_choices)
        )

    def begin(self, usage: Usage) -> bytes:
        """Nothing: usage comes at the end."""
        return b""

    def said(self, part: Said, choice: int) -> bytes:
        """One chunk with more of an answer."""
        match part:
            case Text():
                logprobs = b""
                if self._about.generation.logprobs is not None:
                    logprobs = b',"logprobs":' + orjson.dumps(_logprobs(part.scores))
                return self._write(
                    b'{"content":' + orjson.dumps(part.text) + b"}", choice, logprobs
                )
            case Reasoning():
                return self._write(
                    b'{"reasoning_content":' + orjson.dumps(part.text) + b"}", choice
                )
            case CallBegan():
                function = {"name": part.name, "arguments": ""}
                call = {"id": self._call_id(part.index, choice), "type": "function"}
                return self._call(part.index, call | {"function": function}, choice)
            case CallArguments():
                return self._call(part.index, {"function": {"arguments": part.text}}, choice)
            case CallEnded():
                return b""

    def keepalive(self, progress: Progress | None) -> bytes:
        """A comment: clients of this API accept it, and none takes it for content."""
        if progress is None or progress.done >= progress.total:
            return sse.comment("keep-alive")
        return sse.comment(f"keep-alive, {progress.done} of {progress.total} tokens prefilled")

    def ended(self, ended: Ended, choice: int) -> bytes:
        """The finish reason of an answer."""
        why = orjson.dumps(_why(ended))[1:-1]
        finish = orjson.dumps(_finish(ended)) + (b"," + why if why else b"")
        return self._write(b"{}", choice, finish=finish)

    def end(self, usage: Usage) -> bytes:
        """The usage where it was asked for, and the end mark."""
        out = b""
        if self._about.generation.wants_usage:
            out = sse.data(self._chunk + b'],"usage":' + orjson.dumps(chat_usage(usage)) + b"}")
        return out + sse.data(b"[DONE]")

    def error(self, error: ApiError) -> bytes:
        """The error as the clients of this API look for it in a stream, and the end mark."""
        body = error_bytes(error, Flavor.OPENAI, self._about.request_id)
        return sse.data(body) + sse.data(b"[DONE]")

    def whole(self, answers: Sequence[Answer], usage: Usage) -> bytes:
        """The body of answers that aren't streamed."""
        return orjson.dumps(
            {
                "id": self._id,
                "object": "chat.completion",
                "created": self._about.created,
                "model": self._about.model,
                "system_fingerprint": self._about.fingerprint,
                "choices": [self._choice(answer, index) for index, answer in enumerate(answers)],
                "usage": chat_usage(usage),
            }
        )

    def _choice(self, answer: Answer, index: int) -> dict[str, object]:
        text = answer.text
        message: dict[str, object] = {
            "role": "assistant",
            "content": text if text or not answer.calls else None,
            "refusal": None,
        }
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if answer.calls:
            message["tool_calls"] = [self._whole_call(call, index) for call in answer.calls]
        wants_scores = self._about.generation.logprobs is not None
        return {
            "index": index,
            "message": message,
            "logprobs": _logprobs(answer.scores) if wants_scores else None,
            "finish_reason": _finish(answer.ended),
            **_why(answer.ended),
        }

    def _whole_call(self, call: ToolCall, choice: int) -> dict[str, object]:
        function = {"name": call.name, "arguments": call.arguments}
        return {
            "id": self._call_id(call.index, choice),
            "type": "function",
            "function": function,
        }

    def _call_id(self, index: int, choice: int) -> str:
        return call_id(self._about.request_id, index, choice)

    def _call(self, index: int, call: Mapping[str, object], choice: int) -> bytes:
        return self._write(orjson.dumps({"tool_calls": [{"index": index, **call}]}), choice)

    def _write(
        self, delta: bytes, choice: int, more: bytes = b"", *, finish: bytes = b"null"
    ) -> bytes:
        head = self._chunk + b'{"index":%d,"delta":' % choice
        return sse.data(head + delta + more + b',"finish_reason":' + finish + b"}]}")


def call_id(request_id: str, index: int, choice: int = 0) -> str:
    """The id of a call: no other call, of this or any other request, has the same."""
    return f"call_{request_id}{choice:x}{index:02x}"


def chat_usage(usage: Usage) -> dict[str, object]:
    """Token counts as chat completions and completions have them."""
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def _finish(ended: Ended) -> str:
    if ended.has_calls and ended.reason is FinishReason.STOP:
        return "tool_calls"
    return _FINISH[ended.reason]


def _why(ended: Ended) -> dict[str, str]:
    """What the API has no word for."""
    is_loop = ended.reason is FinishReason.REPETITION
    return {"stop_reason": ended.reason.value} if is_loop else {}


def _logprobs(scores: Sequence[Score]) -> dict[str, object]:
    return {"content": [_score(s) | {"top_logprobs": [_score(t) for t in s.top]} for s in scores]}


def _score(score: Score) -> dict[str, object]:
    return {"token": score.token, "logprob": score.logprob, "bytes": list(score.raw)}
