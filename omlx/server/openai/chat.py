"""POST /v1/chat/completions: its requests into the internal form, its answers out of it.

Knows nothing about templates, tokens or engines.
"""

from dataclasses import dataclass

import msgspec
import orjson

from omlx.engine.request import FinishReason, RequestClass
from omlx.server import context, sse
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
    seed,
    stop_strings,
    whole,
)
from omlx.server.openai import types

_DECODER = msgspec.json.Decoder(types.ChatRequest)
_TIERS = {"priority": RequestClass.INTERACTIVE, "flex": RequestClass.BATCH}
_FINISH = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.REPETITION: "length",  # it is cut as well; `stop_reason` says why
}


@dataclass(frozen=True, slots=True)
class Chat:
    """The dialect of chat completions; tools are read for those who only explain a prompt."""

    flavor: Flavor = Flavor.OPENAI
    reads_tools: bool = False

    def decode(self, body: bytes) -> Generation:
        """The request in a body; ApiError names the field that is wrong."""
        request = decode(_DECODER, body)
        _refuse_unsupported(request, reads_tools=self.reads_tools)
        if not request.messages:
            raise bad_field("$.messages", "Must hold at least one message")
        stops = [request.stop] if isinstance(request.stop, str) else request.stop or []
        options = request.stream_options
        return Generation(
            model=request.model,
            messages=[
                _message(message, index, request.model, reads_tools=self.reads_tools)
                for index, message in enumerate(request.messages)
            ],
            request_class=_TIERS.get(request.service_tier or ""),
            tools=[plain_object(tool) for tool in request.tools or ()],
            wishes=_wishes(request),
            stop=stop_strings(stops, "$.stop"),
            is_stream=bool(request.stream),
            wants_usage=bool(options and options.include_usage),
        )

    def reply(self, request_id: str, model: str, created: int, *, wants_usage: bool) -> Reply:
        """The writer of the answer to one request."""
        return ChatReply(request_id, model, created, wants_usage=wants_usage)


def _refuse_unsupported(request: types.ChatRequest, *, reads_tools: bool) -> None:
    form = request.response_format
    refused = (
        (bool(request.tools) and not reads_tools, "$.tools", "Tool calling"),
        (bool(request.functions), "$.functions", "Function calling"),
        (request.n is not None and request.n != 1, "$.n", "More or less than one answer"),
        (bool(request.logprobs), "$.logprobs", "Returning log probabilities"),
        (bool(request.top_logprobs), "$.top_logprobs", "Returning log probabilities"),
        (bool(request.logit_bias), "$.logit_bias", "Biasing tokens"),
        (
            form is not None and form.type != "text",
            "$.response_format.type",
            "A response format other than text",
        ),
        (
            any(kind != "text" for kind in request.modalities or ()),
            "$.modalities",
            "Output other than text",
        ),
    )
    for is_asked, param, what in refused:
        if is_asked:
            raise unsupported(param, what)


def _message(
    message: types.Message, index: int, model: str, *, reads_tools: bool
) -> context.Message:
    param = f"$.messages[{index}]"
    more: context.Message = {}
    match message:
        case types.SystemMessage() | types.DeveloperMessage():
            role = "system"
        case types.UserMessage():
            role = "user"
        case types.AssistantMessage():
            role = "assistant"
            if message.function_call or (message.tool_calls and not reads_tools):
                raise unsupported(f"{param}.tool_calls", "Tool calling")
            if message.tool_calls:
                more = {"tool_calls": [plain_object(call) for call in message.tool_calls]}
        case types.ToolMessage():
            role = "tool"
            if not reads_tools:
                raise unsupported(f"{param}.role", "Tool calling")
            more = {"tool_call_id": message.tool_call_id}
    return {"role": role, "content": _content(message.content, f"{param}.content", model), **more}


def _content(value: types.Content, param: str, model: str) -> str | list[dict[str, str]]:
    if value is None or isinstance(value, str):
        return value or ""
    texts: list[str] = []
    for index, part in enumerate(value):
        match part:
            case types.TextPart():
                texts.append(part.text)
            case types.RefusalPart():
                texts.append(part.refusal)
            case _:
                what = f"Other content than text, for the model {model[:200]!r},"
                raise unsupported(f"{param}[{index}].type", what)
    return content(texts)


def _wishes(request: types.ChatRequest) -> Wishes:
    if request.max_completion_tokens is not None:
        limit, limit_param = request.max_completion_tokens, "$.max_completion_tokens"
    else:
        limit, limit_param = request.max_tokens, "$.max_tokens"
    top_k = whole(request.top_k, "$.top_k", low=-1)
    return Wishes(
        temperature=number(request.temperature, "$.temperature", low=0, high=5),
        top_p=number(request.top_p, "$.top_p", low=0, high=1),
        top_k=None if top_k is None else max(top_k, 0),
        min_p=number(request.min_p, "$.min_p", low=0, high=1),
        repetition_penalty=number(
            request.repetition_penalty, "$.repetition_penalty", low=0.01, high=10
        ),
        presence_penalty=number(request.presence_penalty, "$.presence_penalty", low=-2, high=2),
        frequency_penalty=number(request.frequency_penalty, "$.frequency_penalty", low=-2, high=2),
        seed=seed(request.seed, "$.seed"),
        max_tokens=whole(limit, limit_param, low=1),
    )


class ChatReply:
    """Writes one answer as a chat completion or as its chunks; holds no state of the answer."""

    def __init__(self, request_id: str, model: str, created: int, *, wants_usage: bool) -> None:
        self._id = f"chatcmpl-{request_id}"
        self._request_id = request_id
        self._model = model
        self._created = created
        self._wants_usage = wants_usage
        frame = orjson.dumps(
            {
                "id": self._id,
                "object": "chat.completion.chunk",
                "created": created,
                "model": model,
            }
        )
        self._chunk = frame[:-1] + b',"choices":['
        self._delta = self._chunk + b'{"index":0,"delta":'

    def head(self) -> bytes:
        """The role, which is all that is known at once."""
        return self._write(b'{"role":"assistant","content":""}', b"null")

    def begin(self, usage: Usage) -> bytes:
        """Nothing: usage comes at the end."""
        return b""

    def text(self, text: str) -> bytes:
        """One chunk of content."""
        return self._write(b'{"content":' + orjson.dumps(text) + b"}", b"null")

    def keepalive(self) -> bytes:
        """A comment: clients of this API accept it, and none takes it for content."""
        return sse.comment("keep-alive")

    def end(self, ended: Ended, usage: Usage) -> bytes:
        """The finish reason, the usage where it was asked for, and the end mark."""
        why = orjson.dumps(_why(ended))[1:-1]
        finish = orjson.dumps(_FINISH[ended.reason]) + (b"," + why if why else b"")
        out = self._write(b"{}", finish)
        if self._wants_usage:
            out += sse.data(self._chunk + b'],"usage":' + orjson.dumps(_usage(usage)) + b"}")
        return out + sse.data(b"[DONE]")

    def error(self, error: ApiError) -> bytes:
        """The error as the clients of this API look for it in a stream, and the end mark."""
        body = error_bytes(error, Flavor.OPENAI, self._request_id)
        return sse.data(body) + sse.data(b"[DONE]")

    def whole(self, text: str, ended: Ended, usage: Usage) -> bytes:
        """The body of an answer that isn't streamed."""
        message = {"role": "assistant", "content": text, "refusal": None}
        return orjson.dumps(
            {
                "id": self._id,
                "object": "chat.completion",
                "created": self._created,
                "model": self._model,
                "choices": [
                    {
                        "index": 0,
                        "message": message,
                        "logprobs": None,
                        "finish_reason": _FINISH[ended.reason],
                        **_why(ended),
                    }
                ],
                "usage": _usage(usage),
            }
        )

    def _write(self, delta: bytes, finish: bytes) -> bytes:
        return sse.data(self._delta + delta + b',"finish_reason":' + finish + b"}]}")


def _why(ended: Ended) -> dict[str, str]:
    """What the API has no word for."""
    is_loop = ended.reason is FinishReason.REPETITION
    return {"stop_reason": ended.reason.value} if is_loop else {}


def _usage(usage: Usage) -> dict[str, object]:
    return {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
    }
