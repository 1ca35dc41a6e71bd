"""The chat completion request of the OpenAI API, as far as its fields are read.

Knows nothing about what the fields lead to; unknown fields are ignored.
"""

import msgspec

Number = int | float


class TextPart(msgspec.Struct, tag_field="type", tag="text"):
    """A piece of text in a message."""

    text: str


class RefusalPart(msgspec.Struct, tag_field="type", tag="refusal"):
    """A refusal that an assistant gave."""

    refusal: str


class ImagePart(msgspec.Struct, tag_field="type", tag="image_url"):
    """An image."""


class AudioPart(msgspec.Struct, tag_field="type", tag="input_audio"):
    """A recording."""


class FilePart(msgspec.Struct, tag_field="type", tag="file"):
    """A document."""


Part = TextPart | RefusalPart | ImagePart | AudioPart | FilePart
Content = str | list[Part] | None


class SystemMessage(msgspec.Struct, tag_field="role", tag="system"):
    """What the operator says."""

    content: Content


class DeveloperMessage(msgspec.Struct, tag_field="role", tag="developer"):
    """What newer clients call a system message."""

    content: Content


class UserMessage(msgspec.Struct, tag_field="role", tag="user"):
    """What the user says."""

    content: Content


class AssistantMessage(msgspec.Struct, tag_field="role", tag="assistant"):
    """What the model said."""

    content: Content = None
    tool_calls: list[msgspec.Raw] | None = None
    function_call: msgspec.Raw | None = None


class ToolMessage(msgspec.Struct, tag_field="role", tag="tool"):
    """What a tool returned."""

    content: Content = None
    tool_call_id: str | None = None


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class ResponseFormat(msgspec.Struct):
    """In which form the answer must be."""

    type: str


class StreamOptions(msgspec.Struct):
    """What a stream carries besides the answer."""

    include_usage: bool | None = None


class ChatRequest(msgspec.Struct):
    """The body of POST /v1/chat/completions."""

    model: str
    messages: list[Message]
    max_tokens: Number | None = None
    max_completion_tokens: Number | None = None
    temperature: Number | None = None
    top_p: Number | None = None
    top_k: Number | None = None
    min_p: Number | None = None
    repetition_penalty: Number | None = None
    presence_penalty: Number | None = None
    frequency_penalty: Number | None = None
    seed: Number | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Number | None = None
    logprobs: bool | None = None
    top_logprobs: Number | None = None
    logit_bias: dict[str, Number] | None = None
    response_format: ResponseFormat | None = None
    tools: list[msgspec.Raw] | None = None
    functions: list[msgspec.Raw] | None = None
    modalities: list[str] | None = None
    service_tier: str | None = None
