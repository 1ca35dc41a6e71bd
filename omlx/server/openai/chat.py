"""POST /v1/chat/completions: its requests into the internal form.

Knows nothing about templates, tokens, engines or how answers are written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import orjson

from omlx.server.body import decode
from omlx.server.context import Message
from omlx.server.errors import Flavor, bad_field, unsupported
from omlx.server.generation import (
    About,
    Generation,
    Reply,
    Wishes,
    content,
    number,
    seed,
    stop_strings,
    tool_name,
    whole,
)
from omlx.server.openai import asked, types
from omlx.server.openai.chat_reply import ChatReply

_DECODER = msgspec.json.Decoder(types.ChatRequest)
MOST_CHOICES = 16
_MOST_LOGPROBS = 20


@dataclass(frozen=True, slots=True)
class Chat:
    """The dialect of chat completions."""

    flavor: Flavor = Flavor.OPENAI

    def decode(self, body: bytes, tenant: str = "") -> Generation:
        """The request in a body; ApiError names the field that is wrong."""
        request = decode(_DECODER, body)
        _refuse_unsupported(request)
        if not request.messages:
            raise bad_field("$.messages", "Must hold at least one message")
        tools = asked.chat_tools(request.tools or ())
        names = [tool_name(tool) for tool in tools]
        return Generation(
            model=request.model,
            messages=_messages(request.messages, request.model),
            request_class=asked.request_class(request.service_tier),
            tools=tools,
            tool_choice=asked.tool_choice(
                request.tool_choice, names, is_parallel=request.parallel_tool_calls is not False
            ),
            form=asked.response_form(request.response_format)
            or asked.structured_form(request.structured_outputs),
            thinking=asked.thinking(request),
            variables=asked.variables(request.chat_template_kwargs),
            num_choices=num_choices(request.n, request.best_of),
            logprobs=_logprobs(request),
            wishes=wishes(request),
            stop=stops(request.stop),
            is_stream=bool(request.stream),
            wants_usage=request.wants_usage,
        )

    def reply(self, about: About) -> Reply:
        """The writer of the answer to one request."""
        return ChatReply(about)


def _refuse_unsupported(request: types.ChatRequest) -> None:
    if request.functions:
        raise unsupported("$.functions", "Function calling other than by `tools`")
    if any(kind != "text" for kind in request.modalities or ()):
        raise unsupported("$.modalities", "Output other than text")


def num_choices(n: float | None, best_of: float | None) -> int:
    """How many answers are wanted; 400 where it is too many, or others are to be left out."""
    number_of = whole(n, "$.n", low=1) or 1
    if number_of > MOST_CHOICES:
        raise bad_field("$.n", f"At most {MOST_CHOICES} answers are given")
    if best_of is not None and best_of != number_of:
        message = "Every answer that is computed is given: `best_of` must be the same as `n`"
        raise bad_field("$.best_of", message)
    return number_of


def stops(wanted: str | list[str] | None) -> tuple[str, ...]:
    """The stop strings of a body, which may be one string."""
    return stop_strings([wanted] if isinstance(wanted, str) else wanted or [], "$.stop")


def _logprobs(request: types.ChatRequest) -> int | None:
    top = whole(request.top_logprobs, "$.top_logprobs", low=0)
    if top is not None and top > _MOST_LOGPROBS:
        raise bad_field("$.top_logprobs", f"Must be between 0 and {_MOST_LOGPROBS}")
    if top and not request.logprobs:
        raise bad_field("$.top_logprobs", "Needs `logprobs` to be true")
    return (top or 0) if request.logprobs else None


def _messages(messages: Sequence[types.Message], model: str) -> list[Message]:
    """The messages as templates know them; results of tools tell the name of their tool."""
    called: dict[str, str] = {}
    made: list[Message] = []
    for index, message in enumerate(messages):
        made.append(_message(message, f"$.messages[{index}]", model, called))
    return made


def _message(message: types.Message, param: str, model: str, called: dict[str, str]) -> Message:
    more: Message = {}
    match message:
        case types.SystemMessage() | types.DeveloperMessage():
            role = "system"
        case types.UserMessage():
            role = "user"
        case types.AssistantMessage():
            role, more = "assistant", _said_before(message, param)
            called.update((call.id, call.function.name) for call in message.tool_calls or ())
        case types.ToolMessage():
            role, tool_id = "tool", message.tool_call_id or ""
            # Not the client's own word first: some leave it out of later requests.
            name = called.get(tool_id) or message.name
            more = {"tool_call_id": tool_id} | ({"name": name} if name else {})
    return {
        "role": role,
        "content": text_content(message.content, f"{param}.content", model),
        **more,
    }


def _said_before(message: types.AssistantMessage, param: str) -> Message:
    if bytes(message.function_call) != b"null":
        raise unsupported(f"{param}.function_call", "Function calling other than by `tool_calls`")
    reasoning = message.reasoning_content or message.reasoning
    more: dict[str, object] = {"reasoning_content": reasoning} if reasoning else {}
    if message.tool_calls:
        more["tool_calls"] = [_call(call) for call in message.tool_calls]
    return more


def _call(call: types.ToolCall) -> dict[str, object]:
    function = {"name": call.function.name, "arguments": _arguments(call.function.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def _arguments(given: str | Mapping[str, msgspec.Raw] | None) -> str:
    """The arguments as text, which only some clients send as an object."""
    if given is None or isinstance(given, str):
        return given or ""
    return orjson.dumps(msgspec.json.decode(msgspec.json.encode(given))).decode()


def text_content(value: types.Content, param: str, model: str) -> str | list[dict[str, str]]:
    """A message's content; 400 for what is not text."""
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


def wishes(request: types.SampledRequest) -> Wishes:
    """What a body says about sampling."""
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
        min_tokens=whole(request.min_tokens, "$.min_tokens", low=0) or 0,
        logit_bias=asked.logit_bias(request.logit_bias),
    )
