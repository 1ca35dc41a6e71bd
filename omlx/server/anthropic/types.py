"""The request of the Anthropic Messages API, as far as its fields are read.

Knows nothing about what the fields lead to; unknown fields are ignored.
"""

from typing import Annotated

import msgspec

from omlx.server.shape import MAX_MESSAGES, MAX_PARTS, MAX_TOOLS

_MESSAGES = msgspec.Meta(max_length=MAX_MESSAGES)
_TOOLS = msgspec.Meta(max_length=MAX_TOOLS)
_PARTS = msgspec.Meta(max_length=MAX_PARTS)

Number = int | float


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    """A piece of text."""

    text: str


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    """What the model thought in an earlier turn; the signature of it means nothing here."""

    thinking: str = ""


class RedactedThinkingBlock(msgspec.Struct, tag_field="type", tag="redacted_thinking"):
    """What a model thought in an earlier turn, unreadable."""


class ImageBlock(msgspec.Struct, tag_field="type", tag="image"):
    """An image."""


class DocumentBlock(msgspec.Struct, tag_field="type", tag="document"):
    """A document."""


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A call of a tool."""

    id: str = ""
    name: str = ""
    input: msgspec.Raw = msgspec.Raw(b"{}")


class SearchResultBlock(msgspec.Struct, tag_field="type", tag="search_result"):
    """Something that a search found."""

    title: str = ""
    source: str = ""
    content: list[TextBlock] = []


class ToolReferenceBlock(msgspec.Struct, tag_field="type", tag="tool_reference"):
    """A tool that was found, and may be called from here on."""

    tool_name: str = ""


class ServerToolUseBlock(msgspec.Struct, tag_field="type", tag="server_tool_use"):
    """A call that another server answered."""


class WebSearchResultBlock(msgspec.Struct, tag_field="type", tag="web_search_tool_result"):
    """What such a call returned."""


Returned = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock


class ToolResultBlock(msgspec.Struct, tag_field="type", tag="tool_result"):
    """What a tool returned."""

    tool_use_id: str = ""
    content: str | Annotated[list[Returned], _PARTS] | None = None


Block = (
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ImageBlock
    | DocumentBlock
    | ToolUseBlock
    | ToolResultBlock
    | SearchResultBlock
    | ServerToolUseBlock
    | WebSearchResultBlock
)
Content = str | Annotated[list[Block], _PARTS]


class UserMessage(msgspec.Struct, tag_field="role", tag="user"):
    """What the user says."""

    content: Content


class AssistantMessage(msgspec.Struct, tag_field="role", tag="assistant"):
    """What the model said, or the beginning of what it shall say."""

    content: Content


class SystemMessage(msgspec.Struct, tag_field="role", tag="system"):
    """What the operator says in the middle of a conversation."""

    content: Content


class DeveloperMessage(msgspec.Struct, tag_field="role", tag="developer"):
    """Another word for a system message."""

    content: Content


Message = UserMessage | AssistantMessage | SystemMessage | DeveloperMessage


class ThinkingConfig(msgspec.Struct):
    """Whether the model thinks first, and how much."""

    type: str
    budget_tokens: Number | None = None


class ToolChoice(msgspec.Struct):
    """How tools may be called."""

    type: str
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class OutputFormat(msgspec.Struct):
    """In which form the answer must be."""

    type: str
    schema: msgspec.Raw = msgspec.Raw(b"null")


class OutputConfig(msgspec.Struct):
    """How much effort the model makes, and in which form it answers."""

    effort: str | None = None
    format: OutputFormat | None = None


class Tool(msgspec.Struct):
    """A tool that the client runs; one without a schema is another server's."""

    name: str = ""
    description: str | None = None
    input_schema: dict[str, msgspec.Raw] | None = None
    defer_loading: bool | None = None


class CountRequest(msgspec.Struct, kw_only=True):
    """The body of POST /v1/messages/count_tokens."""

    model: str
    messages: Annotated[list[Message], _MESSAGES]
    system: str | Annotated[list[TextBlock], _PARTS] | None = None
    tools: Annotated[list[msgspec.Raw], _TOOLS] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingConfig | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None


class MessagesRequest(CountRequest, kw_only=True):
    """The body of POST /v1/messages."""

    max_tokens: Number
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Number | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
