"""The chat completion request of the OpenAI API, as far as its fields are read.

Knows nothing about what the fields lead to; unknown fields are ignored.
"""

from typing import Annotated

import msgspec

from omlx.server.shape import MAX_MESSAGES, MAX_PARTS, MAX_TOOLS

_MESSAGES = msgspec.Meta(max_length=MAX_MESSAGES)
_TOOLS = msgspec.Meta(max_length=MAX_TOOLS)
_PARTS = msgspec.Meta(max_length=MAX_PARTS)

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
Content = str | Annotated[list[Part], _PARTS] | None


class SystemMessage(msgspec.Struct, tag_field="role", tag="system"):
    """What the operator says."""

    content: Content


class DeveloperMessage(msgspec.Struct, tag_field="role", tag="developer"):
    """What newer clients call a system message."""

    content: Content


class UserMessage(msgspec.Struct, tag_field="role", tag="user"):
    """What the user says."""

    content: Content


class CalledFunction(msgspec.Struct):
    """What a call says; clients send the arguments as text, some as an object."""

    name: str
    arguments: str | dict[str, msgspec.Raw] | None = None


class ToolCall(msgspec.Struct):
    """A call of a tool in an earlier answer."""

    function: CalledFunction
    id: str = ""


class AssistantMessage(msgspec.Struct, tag_field="role", tag="assistant"):
    """What the model said."""

    content: Content = None
    tool_calls: list[ToolCall] | None = None
    function_call: msgspec.Raw = msgspec.Raw(b"null")
    reasoning_content: str | None = None
    reasoning: str | None = None


class ToolMessage(msgspec.Struct, tag_field="role", tag="tool"):
    """What a tool returned."""

    content: Content = None
    tool_call_id: str | None = None
    name: str | None = None


Message = SystemMessage | DeveloperMessage | UserMessage | AssistantMessage | ToolMessage


class SchemaFormat(msgspec.Struct):
    """A JSON schema with a name."""

    schema: dict[str, msgspec.Raw] | bool | None = None
    name: str = ""


class ResponseFormat(msgspec.Struct):
    """In which form the answer must be."""

    type: str
    json_schema: SchemaFormat | None = None


class StructuredOutputs(msgspec.Struct):
    """The same beyond what the API has words for, as vLLM names it; one of these."""

    json: dict[str, msgspec.Raw] | str | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None


class NamedFunction(msgspec.Struct):
    """The function that must be called."""

    name: str


class ToolChoiceObject(msgspec.Struct):
    """The tool that must be called."""

    type: str = "function"
    function: NamedFunction | None = None
    name: str | None = None


class Function(msgspec.Struct):
    """What a tool does and takes."""

    name: str
    description: str | None = None
    parameters: dict[str, msgspec.Raw] | None = None


class Tool(msgspec.Struct):
    """A tool that the model may call; of types other than function nothing is read here."""

    type: str = "function"
    function: msgspec.Raw = msgspec.Raw(b"null")


class ThinkingSwitch(msgspec.Struct):
    """Whether the model thinks first."""

    type: str
    budget_tokens: Number | None = None


class StreamOptions(msgspec.Struct):
    """What a stream carries besides the answer."""

    include_usage: bool | None = None


class SampledRequest(msgspec.Struct, kw_only=True):
    """What the bodies of chat completions and completions have in common."""

    model: str
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
    best_of: Number | None = None
    logit_bias: dict[str, Number] | None = None
    min_tokens: Number | None = None
    service_tier: str | None = None

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatRequest(SampledRequest, kw_only=True):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[list[Message], _MESSAGES]
    logprobs: bool | None = None
    top_logprobs: Number | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    tools: Annotated[list[Tool], _TOOLS] | None = None
    tool_choice: str | ToolChoiceObject | None = None
    parallel_tool_calls: bool | None = None
    functions: list[msgspec.Raw] | None = None
    modalities: list[str] | None = None
    reasoning_effort: str | None = None
    enable_thinking: bool | None = None
    thinking_budget: Number | None = None
    thinking: ThinkingSwitch | None = None
    chat_template_kwargs: dict[str, msgspec.Raw] | None = None


class CompletionRequest(SampledRequest, kw_only=True):
    """The body of POST /v1/completions."""

    prompt: str | list[str | int | list[int]]
    echo: bool | None = None
    suffix: str | None = None
    logprobs: Number | None = None
