"""The request of the Anthropic Messages API, as far as its fields are read.

Knows nothing about what the fields lead to; unknown fields are ignored.
"""

import msgspec

Number = int | float


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    """A piece of text."""

    text: str


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    """What the model thought in an earlier turn."""


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


class ToolResultBlock(msgspec.Struct, tag_field="type", tag="tool_result"):
    """What a tool returned; of blocks the texts are read."""

    tool_use_id: str = ""
    content: str | list[dict[str, msgspec.Raw]] | None = None


Block = (
    TextBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ImageBlock
    | DocumentBlock
    | ToolUseBlock
    | ToolResultBlock
)
Content = str | list[Block]


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


class MessagesRequest(msgspec.Struct):
    """The body of POST /v1/messages."""

    model: str
    messages: list[Message]
    max_tokens: Number
    system: str | list[TextBlock] | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Number | None = None
    stop_sequences: list[str] | None = None
    stream: bool | None = None
    tools: list[msgspec.Raw] | None = None
