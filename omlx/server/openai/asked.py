"""What the requests of the OpenAI dialects have in common: tools, forms, thinking, biases.

Knows nothing about messages or answers.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from omlx.engine.request import RequestClass
from omlx.server.body import decode_part
from omlx.server.context import Message
from omlx.server.errors import bad_field, unsupported
from omlx.server.generation import Choice, Form, FormKind, Thinking, ToolChoice, whole
from omlx.server.openai import types

_MOST_BIASED = 1024
_RESERVED = frozenset({"messages", "tools", "documents", "add_generation_prompt"})
_TIERS = MappingProxyType({"priority": RequestClass.INTERACTIVE, "flex": RequestClass.BATCH})
_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def function_tool(raw: msgspec.Raw, param: str) -> Message:
    """A tool as templates know it, with the keys in the client's order; 400 names what is wrong."""
    decode_part(types.Function, raw, param)
    return {"type": "function", "function": msgspec.json.decode(raw)}


def chat_tools(tools: Sequence[types.Tool]) -> list[Message]:
    """The tools of a chat completion."""
    made: list[Message] = []
    for index, tool in enumerate(tools):
        param = f"$.tools[{index}]"
        if tool.type != "function":
            raise unsupported(f"{param}.type", "A tool of another type than function")
        made.append(function_tool(tool.function, f"{param}.function"))
    return made


def tool_choice(
    wanted: str | types.ToolChoiceObject | None, names: Sequence[str], *, is_parallel: bool
) -> ToolChoice:
    """How tools may be called; 400 where that can't be."""
    param = "$.tool_choice"
    if isinstance(wanted, types.ToolChoiceObject):
        name = wanted.function.name if wanted.function else wanted.name
        if wanted.type not in ("function", "custom") or name is None:
            raise unsupported(param, "A choice of tools other than by the name of one")
        if name not in names:
            raise bad_field(param, f"Must name one of the tools, not {name[:100]!r}")
        return ToolChoice(Choice.REQUIRED, name, is_parallel=False)
    try:
        kind = Choice(wanted or "auto")
    except ValueError:
        known = ", ".join(choice.value for choice in Choice)
        raise bad_field(param, f"Must be one of {known}, or name a function") from None
    if kind is Choice.REQUIRED and not names:
        raise bad_field(param, "There are no tools of which one could be required")
    return ToolChoice(kind, is_parallel=is_parallel)


def response_form(wanted: types.ResponseFormat | None) -> Form | None:
    """The form that `response_format` asks for."""
    param = "$.response_format"
    match wanted:
        case None | types.ResponseFormat(type="text"):
            return None
        case types.ResponseFormat(type="json_object"):
            return Form(FormKind.OBJECT, param=param)
        case types.ResponseFormat(type="json_schema", json_schema=format_):
            schema = None if format_ is None else format_.schema
            if schema is None:
                raise bad_field(f"{param}.json_schema.schema", "Must be a JSON schema")
            value = _plain(schema) if isinstance(schema, dict) else schema
            return Form(FormKind.SCHEMA, value, f"{param}.json_schema.schema")
        case _:
            message = f"Must be text, json_object or json_schema, not {wanted.type[:40]!r}"
            raise bad_field(f"{param}.type", message)


def structured_form(wanted: types.StructuredOutputs | None) -> Form | None:
    """The form that `structured_outputs` asks for: one of its fields."""
    if wanted is None:
        return None
    param = "$.structured_outputs"
    fields = {"json": wanted.json, "regex": wanted.regex}
    fields |= {"choice": wanted.choice, "grammar": wanted.grammar}
    given = {name: value for name, value in fields.items() if value is not None}
    if len(given) != 1:
        raise bad_field(param, f"Must have one of {', '.join(fields)}")
    [(name, value)] = given.items()
    param = f"{param}.{name}"
    if name == "json":
        return Form(FormKind.SCHEMA, _schema(value, param), param)
    if name == "choice" and not value:
        raise bad_field(param, "Must hold at least one text")
    return Form(FormKind(name), value, param)


def thinking(request: types.ChatRequest) -> Thinking:
    """Whether and how much to think, by any of the fields that clients use for it."""
    effort, switch = request.reasoning_effort, request.thinking
    if effort is not None and effort not in _EFFORTS:
        raise bad_field("$.reasoning_effort", f"Must be one of {', '.join(_EFFORTS)}")
    is_on = request.enable_thinking
    if is_on is None and switch is not None:
        is_on = switch.type != "disabled"
    if is_on is None and effort == "none":
        is_on = False
    budget = whole(request.thinking_budget, "$.thinking_budget", low=0)
    if budget is None and switch is not None:
        budget = whole(switch.budget_tokens, "$.thinking.budget_tokens", low=0)
    return Thinking(is_on, budget=budget, effort=None if effort == "none" else effort)


def thinking_by_effort(effort: str | None, param: str) -> Thinking:
    """How much to think, where that is all that a client says about it."""
    if effort is not None and effort not in _EFFORTS:
        raise bad_field(param, f"Must be one of {', '.join(_EFFORTS)}")
    is_none = effort == "none"
    return Thinking(False if is_none else None, effort=None if is_none else effort)


def request_class(tier: str | None) -> RequestClass | None:
    """How urgent a request is by its `service_tier`, where that says so."""
    return _TIERS.get(tier or "")


def variables(wanted: Mapping[str, msgspec.Raw] | None) -> dict[str, object]:
    """The client's variables for the template; 400 for names that mean something else there."""
    for name in wanted or ():
        if name in _RESERVED or name.startswith("_"):
            message = f"The name {name[:40]!r} has another meaning in templates"
            raise bad_field("$.chat_template_kwargs", message)
    return _plain(wanted or {})


def logit_bias(wanted: Mapping[str, float] | None) -> tuple[tuple[int, float], ...]:
    """Biases by token id, in order; 400 for what is no id or out of range."""
    param = "$.logit_bias"
    if len(wanted or ()) > _MOST_BIASED:
        raise bad_field(param, f"At most {_MOST_BIASED} tokens can be biased")
    found: dict[int, float] = {}
    for token, bias in (wanted or {}).items():
        if not (token.isascii() and token.isdecimal()) or len(token) > 9:
            raise bad_field(param, f"Must have token ids as its keys, not {token[:40]!r}")
        if not -100 <= bias <= 100:
            raise bad_field(f"{param}.{token}", "Must be between -100 and 100")
        found[int(token)] = float(bias)
    return tuple(sorted(found.items()))


def _schema(value: object, param: str) -> object:
    if not isinstance(value, str):
        return _plain(value)
    try:
        schema: object = msgspec.json.decode(value.encode())
    except (ValueError, RecursionError):
        schema = None
    if not isinstance(schema, dict):
        raise bad_field(param, "Must be a JSON schema")
    return schema  # pyright: ignore[reportUnknownVariableType]


def _plain(value: object) -> dict[str, object]:
    """An object some of whose parts were left as they are, decoded."""
    return msgspec.json.decode(msgspec.json.encode(value))
