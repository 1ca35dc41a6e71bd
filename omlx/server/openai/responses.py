"""POST /v1/responses: its requests into the internal form.

Knows nothing about templates, tokens, engines or how answers are written.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from omlx.server.body import decode, plain_object
from omlx.server.context import Message
from omlx.server.errors import ApiError, Flavor, bad_field, unsupported
from omlx.server.generation import (
    About,
    Form,
    FormKind,
    Generation,
    Reply,
    Wishes,
    number,
    whole,
)
from omlx.server.openai import asked
from omlx.server.openai import responses_types as types
from omlx.server.openai.responses_input import ItemReader, as_items
from omlx.server.openai.responses_items import Style
from omlx.server.openai.responses_reply import Asked, ResponsesReply, response_id
from omlx.server.openai.responses_store import ResponseStore
from omlx.server.openai.responses_tools import Toolset, choose_tools, read_tools

_DECODER = msgspec.json.Decoder(types.ResponsesRequest)
_ECHO_DECODER = msgspec.json.Decoder(types.Echo)
_ITEMS_DECODER = msgspec.json.Decoder(list[msgspec.Raw])
_MOST_LOGPROBS = 20
_LOGPROBS = "message.output_text.logprobs"
_SEALED = "reasoning.encrypted_content"
_SUMMARIES = ("auto", "concise", "detailed")
_TIERS = ("auto", "default", "flex", "scale", "priority")


@dataclass(frozen=True, slots=True)
class Responses:
    """The dialect of the Responses API, with the answers that are kept for later requests."""

    store: ResponseStore = field(default_factory=ResponseStore)
    flavor: Flavor = Flavor.OPENAI

    def decode(self, body: bytes, tenant: str = "") -> Generation:
        """The request in a body; ApiError names the field that is wrong."""
        request = decode(_DECODER, body)
        _refuse_unsupported(request)
        tools, choice = choose_tools(
            request.tool_choice,
            read_tools(request.tools or ()),
            is_parallel=request.parallel_tool_calls is not False,
        )
        before, now = self._before(request, tenant), as_items(request.input)
        messages, places = self._messages(request, [*before, *now], tools, tenant)
        options = request.reasoning or types.ReasoningOptions()
        logprobs = _logprobs(request)
        include = request.include or ()
        style = Style(
            tools.origins,
            has_scores=logprobs is not None,
            is_summary=options.summary in _SUMMARIES,
            is_sealed=_SEALED in include,
        )
        is_kept = request.store is not False
        items = b"[" + b",".join(map(bytes, [*before, *now])) + b"]" if is_kept else None
        return Generation(
            model=request.model,
            messages=messages,
            places=places,
            system_places=[0] if request.instructions else (),
            request_class=asked.request_class(request.service_tier),
            tools=tools.tools,
            tool_places=tools.places,
            tool_choice=choice,
            form=_form(request.text),
            thinking=asked.thinking_by_effort(options.effort, "$.reasoning.effort"),
            logprobs=logprobs,
            wishes=Wishes(
                temperature=number(request.temperature, "$.temperature", low=0, high=5),
                top_p=number(request.top_p, "$.top_p", low=0, high=1),
                max_tokens=whole(request.max_output_tokens, "$.max_output_tokens", low=1),
            ),
            is_stream=bool(request.stream),
            own=Asked(_repeated(request, decode(_ECHO_DECODER, body)), style, items),
        )

    def reply(self, about: About) -> Reply:
        """The writer of the answer to one request."""
        return ResponsesReply(about, self.store)

    def _before(self, request: types.ResponsesRequest, tenant: str) -> list[msgspec.Raw]:
        """The items that the request goes on from; 400 where they are not known."""
        wanted = request.previous_response_id
        if wanted is None:
            return []
        kept = self.store.get(tenant, wanted)
        if kept is None:
            message = f"The response {wanted[:100]!r} is not kept here (any more)"
            param = "$.previous_response_id"
            code = "previous_response_not_found"
            raise ApiError(400, f"{message} - at `{param}`", param=param, code=code)
        return [*_ITEMS_DECODER.decode(kept.items), *_output_of(kept.response)]

    def _messages(
        self,
        request: types.ResponsesRequest,
        items: Sequence[msgspec.Raw],
        tools: Toolset,
        tenant: str,
    ) -> tuple[list[Message], list[int]]:
        """The messages, and the number of each one's first item."""
        num_before = len(items) - len(as_items(request.input))
        reader = ItemReader(request.model, tools, lambda item_id: self._find(item_id, tenant))
        for index, item in enumerate(items):
            at = index - num_before
            is_now = at >= 0 and not isinstance(request.input, str)
            reader.read(item, f"$.input[{at}]" if is_now else "$.input", index)
        reader.finish()
        if not reader.messages:
            raise bad_field("$.input", "Must hold at least one message or result of a tool")
        if not request.instructions:
            return reader.messages, reader.places
        system: Message = {"role": "system", "content": request.instructions}
        return [system, *reader.messages], [-1, *reader.places]

    def _find(self, item_id: str, tenant: str) -> msgspec.Raw | None:
        """An item of an answer that is kept; its id has the request's in the middle."""
        kept = self.store.get(tenant, response_id(item_id.partition("_")[2].rpartition("_")[0]))
        for item in _output_of(kept.response) if kept else ():
            if plain_object(item).get("id") == item_id:
                return item
        return None


class _Output(msgspec.Struct):
    output: list[msgspec.Raw]


def _output_of(response: bytes) -> list[msgspec.Raw]:
    return msgspec.json.decode(response, type=_Output).output


def _refuse_unsupported(request: types.ResponsesRequest) -> None:
    if request.background:
        raise unsupported("$.background", "An answer in the background")
    if request.conversation is not None:
        message = (
            "A conversation that is kept apart (`previous_response_id` goes on from an answer)"
        )
        raise unsupported("$.conversation", message)
    if request.prompt is not None:
        raise unsupported("$.prompt", "A prompt that is kept apart")


def _logprobs(request: types.ResponsesRequest) -> int | None:
    top = whole(request.top_logprobs, "$.top_logprobs", low=0) or 0
    if top > _MOST_LOGPROBS:
        raise bad_field("$.top_logprobs", f"Must be between 0 and {_MOST_LOGPROBS}")
    return top if top or _LOGPROBS in (request.include or ()) else None


def _form(options: types.TextOptions | None) -> Form | None:
    wanted = options.format if options else None
    param = "$.text.format"
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return Form(FormKind.OBJECT, param=param)
    if wanted.type != "json_schema":
        message = f"Must be text, json_object or json_schema, not {wanted.type[:40]!r}"
        raise bad_field(f"{param}.type", message)
    if wanted.schema is None:
        raise bad_field(f"{param}.schema", "Must be a JSON schema")
    return Form(FormKind.SCHEMA, wanted.schema, f"{param}.schema")


def _repeated(request: types.ResponsesRequest, echo: types.Echo) -> dict[str, object]:
    """What an answer says of its request."""
    options = request.reasoning or types.ReasoningOptions()
    is_summary = options.summary in _SUMMARIES
    return {
        "instructions": echo.instructions,
        "max_output_tokens": whole(request.max_output_tokens, "$.max_output_tokens", low=1),
        "max_tool_calls": echo.max_tool_calls,
        "metadata": echo.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "prompt_cache_key": echo.prompt_cache_key,
        "reasoning": {
            "effort": options.effort,
            "summary": options.summary if is_summary else None,
        },
        "safety_identifier": echo.safety_identifier,
        "service_tier": request.service_tier if request.service_tier in _TIERS else "default",
        "temperature": request.temperature,
        "text": echo.text or {"format": {"type": "text"}},
        "tool_choice": echo.tool_choice or "auto",
        "tools": echo.tools or [],
        "top_logprobs": int(request.top_logprobs or 0),
        "top_p": request.top_p,
        "truncation": echo.truncation or "disabled",
        "user": echo.user,
    }
