"""The request of the Responses API, as far as its fields are read.

Knows nothing about what the fields lead to; unknown fields are ignored.
"""

from typing import Annotated

import msgspec

from omlx.server.shape import MAX_MESSAGES, MAX_PARTS, MAX_TOOLS

_MESSAGES = msgspec.Meta(max_length=MAX_MESSAGES)
_TOOLS = msgspec.Meta(max_length=MAX_TOOLS)
_PARTS = msgspec.Meta(max_length=MAX_PARTS)

Number = int | float


class Part(msgspec.Struct):
    """A part of a message, of a thought or of what a tool returned."""

    type: str = ""
    text: str = ""
    refusal: str = ""


Content = str | Annotated[list[Part], _PARTS] | None


class Kind(msgspec.Struct):
    """What an item or a tool is; a message may leave its type out."""

    type: str = ""
    role: str = ""


class MessageItem(msgspec.Struct):
    """What was said by whom."""

    role: str
    content: Content = None


class ReasoningItem(msgspec.Struct):
    """What the model thought; clients send back what they were given, or a part of it."""

    summary: list[Part] | None = None
    content: list[Part] | None = None
    encrypted_content: str | None = None


class CallItem(msgspec.Struct):
    """A call of a function, or of a custom tool, which has an input instead of arguments."""

    name: str
    call_id: str = ""
    namespace: str | None = None
    arguments: str | dict[str, object] | None = None
    input: str = ""


class OutputItem(msgspec.Struct):
    """What a tool returned."""

    call_id: str = ""
    output: Content = None


class ReferenceItem(msgspec.Struct):
    """An item of an earlier answer that is kept here."""

    id: str


class FunctionTool(msgspec.Struct):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, object] | None = None


class CustomFormat(msgspec.Struct):
    """What the input of a custom tool looks like."""

    type: str = "text"
    syntax: str = ""
    definition: str = ""


class CustomTool(msgspec.Struct):
    """A tool that takes any text."""

    name: str
    description: str | None = None
    format: CustomFormat | None = None


class NamespaceTool(msgspec.Struct):
    """A group of tools."""

    name: str
    tools: list[msgspec.Raw] = []


class NamedTool(msgspec.Struct):
    """A tool as a choice names it."""

    type: str = "function"
    name: str = ""
    namespace: str | None = None


class ToolChoice(msgspec.Struct):
    """The tools that may or must be called."""

    type: str = "function"
    name: str = ""
    namespace: str | None = None
    mode: str = "auto"
    tools: list[NamedTool] = []


class TextFormat(msgspec.Struct):
    """In which form the answer must be."""

    type: str = "text"
    schema: dict[str, object] | bool | None = None


class TextOptions(msgspec.Struct):
    """How the answer is written; `verbosity` is nothing that a model here can be told."""

    format: TextFormat | None = None


class ReasoningOptions(msgspec.Struct):
    """How much to think, and whether the client wants to see it as a summary."""

    effort: str | None = None
    summary: str | None = None


class ResponsesRequest(msgspec.Struct):
    """The body of POST /v1/responses."""

    model: str
    input: str | Annotated[list[msgspec.Raw], _MESSAGES] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    tools: Annotated[list[msgspec.Raw], _TOOLS] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    max_output_tokens: Number | None = None
    top_logprobs: Number | None = None
    include: list[str] | None = None
    stream: bool | None = None
    service_tier: str | None = None
    background: bool | None = None
    conversation: object = None
    prompt: object = None


class Echo(msgspec.Struct):
    """What an answer says of its request in the client's own words."""

    instructions: object = None
    tools: list[object] | None = None
    tool_choice: object = None
    text: object = None
    metadata: dict[str, str] | None = None
    max_tool_calls: int | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    truncation: str | None = None
    user: str | None = None
