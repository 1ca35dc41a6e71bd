"""POST /v1/messages: its requests into the internal form.

Knows nothing about templates, tokens, engines or how answers are written.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from omlx.server import context
from omlx.server.anthropic import types
from omlx.server.anthropic.reply import MessageReply
from omlx.server.body import decode, decode_part, plain_object
from omlx.server.errors import Flavor, bad_field, unsupported
from omlx.server.generation import (
    About,
    Choice,
    Form,
    FormKind,
    Generation,
    Reply,
    Thinking,
    ToolChoice,
    Wishes,
    content,
    number,
    stop_strings,
    tool_name,
    whole,
)

_log = logging.getLogger("omlx.server")
_DECODER = msgspec.json.Decoder(types.MessagesRequest)
_COUNT_DECODER = msgspec.json.Decoder(types.CountRequest)
_CHOICES = {
    "auto": Choice.AUTO,
    "any": Choice.REQUIRED,
    "tool": Choice.REQUIRED,
    "none": Choice.NONE,
}


@dataclass(frozen=True, slots=True)
class Messages:
    """The dialect of the Messages API."""

    flavor: Flavor = Flavor.ANTHROPIC

    def decode(self, body: bytes, tenant: str = "") -> Generation:
        """The request in a body; ApiError names the field that is wrong."""
        request = decode(_DECODER, body)
        return replace(
            _conversation(request),
            wishes=Wishes(
                temperature=number(request.temperature, "$.temperature", low=0, high=5),
                top_p=number(request.top_p, "$.top_p", low=0, high=1),
                top_k=whole(request.top_k, "$.top_k", low=0),
                max_tokens=whole(request.max_tokens, "$.max_tokens", low=1),
            ),
            stop=stop_strings(request.stop_sequences or [], "$.stop_sequences"),
            is_stream=bool(request.stream),
        )

    def reply(self, about: About) -> Reply:
        """The writer of the answer to one request; this dialect always sends the usage."""
        return MessageReply(about)


@dataclass(frozen=True, slots=True)
class Counting:
    """The dialect of counting tokens, whose requests have no answer but the count."""

    flavor: Flavor = Flavor.ANTHROPIC

    def decode(self, body: bytes, tenant: str = "") -> Generation:
        """The request in a body; ApiError names the field that is wrong."""
        return _conversation(decode(_COUNT_DECODER, body))

    def reply(self, about: About) -> Reply:
        """The writer of an answer that is never given."""
        return MessageReply(about)


def _conversation(request: types.CountRequest) -> Generation:
    if not request.messages:
        raise bad_field("$.messages", "Must hold at least one message")
    tools, later, tool_places = _tools(request.tools or ())
    reader = _Reader(request.model, later)
    system, system_places = _system(request.system)
    placed = [(-1, message) for message in system]
    for index, message in enumerate(request.messages):
        placed += [(index, one) for one in reader.read(message, f"$.messages[{index}].content")]
    return Generation(
        model=request.model,
        messages=[message for _, message in placed],
        places=[place for place, _ in placed],
        system_places=system_places,
        tools=tools,
        tool_places=tool_places,
        later_tools=list(later.values()),
        tool_choice=_tool_choice(request.tool_choice, [*map(tool_name, tools), *later]),
        thinking=_thinking(request),
        form=_form(request),
    )


def _system(
    system: str | list[types.TextBlock] | None,
) -> tuple[list[context.Message], list[int]]:
    """The system message, if there is one, and which blocks of the body's its texts are."""
    texts = [system or ""] if not isinstance(system, list) else [block.text for block in system]
    kept = [(place, text) for place, text in enumerate(texts) if text]
    message: context.Message = {"role": "system", "content": content([text for _, text in kept])}
    return [message] if kept else [], [place for place, _ in kept]


class _Reader:
    """Turns the messages of one request into messages as templates know them, in order."""

    def __init__(self, model: str, later: Mapping[str, context.Message]) -> None:
        self._model = model
        self._later = later
        self._called: dict[str, str] = {}

    def read(self, message: types.Message, param: str) -> list[context.Message]:
        """One message, after those that tell what tools returned (mutates)."""
        match message:
            case types.UserMessage():
                role = "user"
            case types.AssistantMessage():
                role = "assistant"
            case types.SystemMessage() | types.DeveloperMessage():
                role = "system"
        if isinstance(message.content, str):
            return [{"role": role, "content": message.content}]
        made: list[context.Message] = []
        texts: list[str] = []
        thoughts: list[str] = []
        calls: list[dict[str, object]] = []
        for index, block in enumerate(message.content):
            match block:
                case types.ToolResultBlock():
                    made.append(self._result(block, f"{param}[{index}].content"))
                case types.ToolUseBlock():
                    self._called[block.id] = block.name
                    calls.append(_call(block))
                case types.ThinkingBlock():
                    thoughts.append(block.thinking)
                case types.TextBlock():
                    texts.append(block.text)
                case types.SearchResultBlock():
                    texts.append(_found(block))
                case (
                    types.RedactedThinkingBlock()
                    | types.ServerToolUseBlock()
                    | types.WebSearchResultBlock()
                ):
                    pass  # nothing that could be read here
                case _:
                    raise self._not_text(f"{param}[{index}].type")
        if texts or calls or thoughts or not made:
            made.append(_message(role, texts, thoughts, calls))
        return made

    def _result(self, block: types.ToolResultBlock, param: str) -> context.Message:
        found = block.content
        if isinstance(found, list):
            found = content([self._returned(b, f"{param}[{i}]") for i, b in enumerate(found)])
        name = self._called.get(block.tool_use_id)
        more = {"name": name} if name else {}
        return {"role": "tool", "content": found or "", "tool_call_id": block.tool_use_id, **more}

    def _returned(self, block: types.Returned, param: str) -> str:
        match block:
            case types.TextBlock():
                return block.text
            case types.SearchResultBlock():
                return _found(block)
            case types.ToolReferenceBlock():
                # Here, not among the other tools: what comes before must stay the same.
                tool = self._later.get(block.tool_name)
                return json.dumps(tool, ensure_ascii=False) if tool else block.tool_name
            case _:
                raise self._not_text(f"{param}.type")

    def _not_text(self, param: str) -> Exception:
        return unsupported(param, f"Other content than text, for the model {self._model[:200]!r},")


def _message(
    role: str, texts: list[str], thoughts: list[str], calls: list[dict[str, object]]
) -> context.Message:
    message: dict[str, object] = {"role": role, "content": content(texts)}
    if any(thoughts):
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _found(block: types.SearchResultBlock) -> str:
    return "\n".join([block.title, block.source, *(text.text for text in block.content)])


def _call(use: types.ToolUseBlock) -> dict[str, object]:
    arguments = json.dumps(plain_object(use.input), ensure_ascii=False)
    function = {"name": use.name, "arguments": arguments}
    return {"id": use.id, "type": "function", "function": function}


def _tools(
    raw_tools: Sequence[msgspec.Raw],
) -> tuple[list[context.Message], dict[str, context.Message], list[int]]:
    """The tools as templates know them, by name those that are told of only later, and where the
    body has each of the first."""
    now: list[context.Message] = []
    places: list[int] = []
    later: dict[str, context.Message] = {}
    for index, raw in enumerate(raw_tools):
        param = f"$.tools[{index}]"
        tool = decode_part(types.Tool, raw, param)
        if tool.input_schema is None:
            # Not its name: it is the client's text.
            _log.warning("a tool without a schema, for another server to run, is left out")
            continue
        if not tool.name:
            raise bad_field(f"{param}.name", "Must be the tool's name")
        function = {
            "name": tool.name,
            "description": tool.description or "",
            "parameters": plain_object(raw)["input_schema"],
        }
        made = {"type": "function", "function": function}
        if tool.defer_loading:
            later[tool.name] = made
        else:
            now.append(made)
            places.append(index)
    return now, later, places


def _tool_choice(wanted: types.ToolChoice | None, names: Sequence[str]) -> ToolChoice:
    if wanted is None:
        return ToolChoice()
    kind = _CHOICES.get(wanted.type)
    if kind is None:
        raise bad_field("$.tool_choice.type", f"Must be one of {', '.join(_CHOICES)}")
    if wanted.type == "tool" and wanted.name not in names:
        raise bad_field("$.tool_choice.name", "Must name one of the tools")
    if kind is Choice.REQUIRED and not names:
        raise bad_field("$.tool_choice.type", "There are no tools of which one could be required")
    name = wanted.name if wanted.type == "tool" else None
    is_parallel = not wanted.disable_parallel_tool_use and name is None
    return ToolChoice(kind, name, is_parallel=is_parallel)


def _thinking(request: types.CountRequest) -> Thinking:
    """Silence means no thinking in this dialect."""
    effort = request.output_config.effort if request.output_config else None
    wanted = request.thinking
    if wanted is None:
        return Thinking(is_on_by_default=False, effort=effort)
    if wanted.type not in ("enabled", "adaptive", "disabled"):
        raise bad_field("$.thinking.type", "Must be one of enabled, adaptive, disabled")
    budget = whole(wanted.budget_tokens, "$.thinking.budget_tokens", low=0)
    return Thinking(wanted.type != "disabled", budget=budget, effort=effort)


def _form(request: types.CountRequest) -> Form | None:
    param, wanted = "$.output_format", request.output_format
    if request.output_config and request.output_config.format:
        param, wanted = "$.output_config.format", request.output_config.format
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type != "json_schema":
        raise bad_field(f"{param}.type", "Must be json_schema")
    schema = decode_part(dict[str, msgspec.Raw], wanted.schema, f"{param}.schema")
    return Form(FormKind.SCHEMA, plain_object(msgspec.Raw(msgspec.json.encode(schema))), param)
