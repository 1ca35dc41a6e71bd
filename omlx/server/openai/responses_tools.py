"""The tools of the Responses API as functions that templates know, and what each was before.

Knows nothing about items or answers.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256

import msgspec
import orjson

from omlx.server.body import decode_part
from omlx.server.context import Message
from omlx.server.errors import bad_field, unsupported
from omlx.server.generation import Choice, ToolChoice, tool_name
from omlx.server.openai import asked
from omlx.server.openai import responses_types as types

_log = logging.getLogger("omlx.server")
_MOST_CHARS = 64  # of a name, as clients and grammars take it
_DIGEST_CHARS = 8
_NO_ARGUMENTS: Mapping[str, object] = {"type": "object", "properties": {}}
# What a custom tool takes is one text: its function has it under this name.
INPUT = "input"


@dataclass(frozen=True, slots=True)
class Origin:
    """What the client calls a tool, and in which group of tools."""

    name: str
    namespace: str | None = None
    is_custom: bool = False


@dataclass(frozen=True, slots=True)
class Toolset:
    """The tools of one request; `origins` are by the names that the model knows them by, and so
    are the `numbers` that they, or their groups, have in the body."""

    tools: Sequence[Message] = ()
    origins: Mapping[str, Origin] = field(default_factory=dict[str, Origin])
    numbers: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def places(self) -> Sequence[int]:
        """Where the body has each tool."""
        return [self.numbers[tool_name(tool)] for tool in self.tools]

    def flat(self, name: str, namespace: str | None = None) -> str:
        """By which name the model knows a tool, also one that is not offered any more."""
        for known, origin in self.origins.items():
            if origin.name == name and origin.namespace == namespace:
                return known
        return _joined(name, namespace)

    def only(self, names: Sequence[str]) -> "Toolset":
        """The same without the tools that are not named."""
        kept = [tool for tool in self.tools if tool_name(tool) in names]
        return Toolset(kept, {name: self.origins[name] for name in names}, self.numbers)


def read_tools(raw_tools: Sequence[msgspec.Raw]) -> Toolset:
    """The tools that a client runs; those for a server to run are left out, with a warning."""
    reader = _Reader()
    for index, raw in enumerate(raw_tools):
        reader.number = index
        reader.read(raw, f"$.tools[{index}]", None)
    return Toolset(reader.tools, reader.origins, reader.numbers)


class _Reader:
    def __init__(self) -> None:
        self.tools: list[Message] = []
        self.origins: dict[str, Origin] = {}
        self.numbers: dict[str, int] = {}
        self.number = 0

    def read(self, raw: msgspec.Raw, param: str, namespace: str | None) -> None:
        """Add a tool, or each of a group (mutates)."""
        kind = decode_part(types.Kind, raw, param).type
        if kind == "function":
            tool = decode_part(types.FunctionTool, raw, param)
            schema = tool.parameters or _NO_ARGUMENTS
            self._add(Origin(tool.name, namespace), tool.description, schema, param)
        elif kind == "custom":
            custom = decode_part(types.CustomTool, raw, param)
            origin = Origin(custom.name, namespace, is_custom=True)
            self._add(origin, _described(custom), _INPUT_SCHEMA, param)
        elif kind == "namespace" and namespace is None:
            group = decode_part(types.NamespaceTool, raw, param)
            for index, one in enumerate(group.tools):
                self.read(one, f"{param}.tools[{index}]", group.name)
        else:
            # Not its type: it is the client's text.
            _log.warning("a tool for another server to run is left out - at `%s`", param)

    def _add(
        self, origin: Origin, description: str | None, schema: Mapping[str, object], param: str
    ) -> None:
        if not origin.name:
            raise bad_field(f"{param}.name", "Must be the tool's name")
        name = _joined(origin.name, origin.namespace)
        if name in self.origins:
            name = _distinct(name, origin.name, origin.namespace, len(self.origins))
        self.origins[name] = origin
        self.numbers[name] = self.number
        function = {"name": name, "description": description or "", "parameters": schema}
        self.tools.append({"type": "function", "function": function})


_INPUT_SCHEMA: Mapping[str, object] = {
    "type": "object",
    "properties": {INPUT: {"type": "string"}},
    "required": [INPUT],
    "additionalProperties": False,
}


def _described(tool: types.CustomTool) -> str:
    """The description, with the grammar where the tool's text must follow one."""
    told = [tool.description] if tool.description else []
    if tool.format is not None and tool.format.definition:
        kind = tool.format.syntax or tool.format.type
        told.append(f"`{INPUT}` must follow this {kind} grammar:\n{tool.format.definition}")
    return "\n\n".join(told)


def _joined(name: str, namespace: str | None) -> str:
    if not namespace:
        return name
    joined = f"{namespace}{'' if namespace.endswith('__') else '__'}{name}"
    return joined if len(joined) <= _MOST_CHARS else _distinct(joined, name, namespace)


def _distinct(joined: str, name: str, namespace: str | None, number: int | None = None) -> str:
    """A name no longer than names may be, that no other tool gets; the same in every request."""
    parts = (namespace or "", name, "" if number is None else str(number))
    digest = sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:_DIGEST_CHARS]
    return f"{joined[: _MOST_CHARS - _DIGEST_CHARS - 1]}_{digest}"


def choose_tools(
    wanted: str | types.ToolChoice | None, tools: Toolset, *, is_parallel: bool
) -> tuple[Toolset, ToolChoice]:
    """How tools may be called, and which are left of them; 400 where that can't be."""
    param = "$.tool_choice"
    if not isinstance(wanted, types.ToolChoice):
        names = list(tools.origins)
        return tools, asked.tool_choice(wanted, names, is_parallel=is_parallel)
    if wanted.type == "allowed_tools":
        if wanted.mode not in ("auto", "required"):
            raise bad_field(f"{param}.mode", "Must be auto or required")
        names = [tools.flat(one.name, one.namespace) for one in wanted.tools if one.name]
        left = tools.only([name for name in dict.fromkeys(names) if name in tools.origins])
        mode = wanted.mode
        return left, asked.tool_choice(mode, list(left.origins), is_parallel=is_parallel)
    if wanted.type not in ("function", "custom"):
        raise unsupported(f"{param}.type", "A choice of a tool that the client doesn't run")
    name = tools.flat(wanted.name, wanted.namespace)
    if name not in tools.origins:
        raise bad_field(f"{param}.name", "Must name one of the tools")
    return tools, ToolChoice(Choice.REQUIRED, name, is_parallel=False)


def input_of(arguments: str) -> str:
    """The text for a custom tool in the arguments of its function; else all of them as they are."""
    try:
        value: object = orjson.loads(arguments)
    except ValueError:
        return arguments
    match value:
        case {"input": str(text)}:
            return text
        case str(text):
            return text
        case _:
            return arguments


def arguments_of(text: str) -> str:
    """The same the other way round."""
    return orjson.dumps({INPUT: text}).decode()
