"""Gives chat messages the shape that a template can render, whatever the client sent.

Knows nothing about jinja or any one template.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import cast

from omlx.models.config import items, mapping

Message = Mapping[str, object]

# Names under which clients pass a message's reasoning; templates read the first or "thinking".
_REASONING = ("reasoning_content", "thinking", "reasoning")


def texts_of(message: Message) -> list[str]:
    """The texts of a message's content."""
    content = message.get("content")
    if isinstance(content, str):
        return [content]
    texts = [mapping(part).get("text") for part in items(content)]
    return [text for text in texts if isinstance(text, str)]


class Arguments(Enum):
    """How a tool call's arguments are given to the template."""

    MAPPING = "mapping"  # parsed where they are a JSON object, else as they came
    WRAPPED = "wrapped"  # the same, and anything else inside an object
    TEXT = "text"  # always the JSON text


@dataclass(frozen=True, slots=True)
class Form:
    """One way to write the same messages."""

    arguments: Arguments
    # Whether a message without content gets an empty one.
    is_blank_filled: bool


def forms(messages: Sequence[Message], preferred: Arguments) -> Iterator[Form]:
    """The forms worth trying, best first: one, unless messages lack content or call tools."""
    has_calls = any(message.get("tool_calls") for message in messages)
    has_blank = any(message.get("content") is None for message in messages)
    yield Form(preferred, is_blank_filled=False)
    if has_blank:
        yield Form(preferred, is_blank_filled=True)
    if has_calls:
        # Valid arguments keep their form as long as possible: earlier turns must render the same.
        for arguments in (Arguments.WRAPPED, Arguments.TEXT, Arguments.MAPPING):
            if arguments is not preferred:
                yield Form(arguments, is_blank_filled=True)


def shape(messages: Sequence[Message], form: Form, *, joint: str | None) -> list[dict[str, object]]:
    """New messages in a form; text parts are joined by `joint`, or kept where that is None."""
    return [_shape_message(message, form, joint) for message in messages]


def _shape_message(message: Message, form: Form, joint: str | None) -> dict[str, object]:
    # Templates handle an absent key better than None, which many would print.
    shaped = {key: value for key, value in message.items() if value is not None}
    reasoning = next((shaped[key] for key in _REASONING if key in shaped), None)
    if reasoning is not None:
        shaped = {"thinking": reasoning, **shaped, "reasoning_content": reasoning}
    if "content" in shaped:
        shaped["content"] = _content(shaped["content"], joint)
    elif form.is_blank_filled:
        shaped["content"] = _content("", joint)
    calls = shaped.get("tool_calls")
    if isinstance(calls, list):
        shaped["tool_calls"] = [_call(call, form.arguments) for call in cast(list[object], calls)]
    return shaped


def _content(content: object, joint: str | None) -> object:
    if isinstance(content, str):
        return content if joint is not None else [{"type": "text", "text": content}]
    if not isinstance(content, list) or joint is None:
        return cast(object, content)
    texts: list[str] = []
    for part in cast(list[object], content):
        match part:
            case str(text) | {"type": "text", "text": str(text)}:
                texts.append(text)
            case _:
                return cast(object, content)
    return joint.join(texts)


def _call(call: object, arguments: Arguments) -> object:
    entry = mapping(call)
    if "arguments" in entry:
        return {**entry, "arguments": _arguments(entry["arguments"], arguments)}
    function = mapping(entry.get("function"))
    return {**entry, "function": _call(function, arguments)} if function else call


def _arguments(value: object, form: Arguments) -> object:
    if form is Arguments.TEXT:
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    parsed = _parsed(value)
    if isinstance(parsed, dict) or form is Arguments.MAPPING:
        return cast(object, parsed)
    return {"arguments": parsed}


def _parsed(value: object) -> object:
    """The object in a JSON text, an empty one for no arguments, else the value as it came."""
    if value is None:
        return {}
    if not isinstance(value, str):
        return value
    if not value.strip() or value.strip() == "null":
        return {}
    try:
        parsed: object = json.loads(value)
    except (ValueError, RecursionError):
        return value
    return cast(object, parsed) if isinstance(parsed, dict) else value
