"""What a reply comes to, whatever the tokens, ids of calls and spaces around it: a key to find it.

Knows nothing about prompts or stores. Reasoning is no part of it, since clients leave it out.
"""

import json
from collections.abc import Iterable, Sequence
from typing import cast

from omlx.models.config import items, mapping
from omlx.models.messages import Message, texts_of
from omlx.server.generation import ToolCall
from omlx.server.parse.said import Reasoning, Text
from omlx.server.textkey import key_of

Call = tuple[str, str]


def key_of_reply(
    identity: str, salt: str, parts: Iterable[Text | Reasoning | ToolCall]
) -> bytes | None:
    """The key of what was said; None where that is nothing that comes back."""
    text, calls = "", list[Call]()
    for part in parts:
        match part:
            case Text():
                text += part.text
            case ToolCall():
                calls.append((part.name, part.arguments))
            case Reasoning():
                pass
    return _key(identity, salt, text, calls)


def key_of_message(identity: str, salt: str, message: Message) -> bytes | None:
    """The key of the reply that a message of the assistant's is; None for an empty one."""
    calls = [_call(call) for call in items(message.get("tool_calls"))]
    return _key(identity, salt, "".join(texts_of(message)), calls)


def core_of(message: Message) -> str:
    """What of a message a template is sure to print, and first: its text, or its first call."""
    texts = [text.strip() for text in texts_of(message)]
    names = [_call(call)[0] for call in items(message.get("tool_calls"))]
    return next((core for core in (*texts, *names) if core), "")


def _call(call: object) -> Call:
    function = mapping(mapping(call).get("function"))
    name, arguments = function.get("name"), function.get("arguments")
    return str(name or ""), arguments if isinstance(arguments, str) else _json(arguments)


def _key(identity: str, salt: str, text: str, calls: Sequence[Call]) -> bytes | None:
    text = text.strip()
    if not text and not calls:
        return None
    named = (part for name, arguments in calls for part in (name, _canonical(arguments)))
    return key_of(b"omlx reply 1", (identity, salt, text, *named))


def _canonical(arguments: str) -> str:
    """Arguments in one form, whatever the order and spaces of their JSON."""
    try:
        return _json(cast(object, json.loads(arguments)))
    except (ValueError, RecursionError):
        return arguments.strip()


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
