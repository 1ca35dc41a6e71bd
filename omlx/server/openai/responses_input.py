"""The items of the Responses API as messages that templates know.

Knows nothing about tools beyond their names, and nothing about answers.
"""

import base64
import binascii
import logging
from collections.abc import Callable, Sequence

import msgspec
import orjson

from omlx.server.body import decode_part
from omlx.server.context import Message
from omlx.server.errors import bad_field, unsupported
from omlx.server.generation import content
from omlx.server.openai import responses_types as types
from omlx.server.openai.responses_tools import Toolset, arguments_of

_log = logging.getLogger("omlx.server")
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TEXTS = frozenset({"input_text", "output_text", "text", "summary_text", "reasoning_text", ""})
_SEAL = "omlx1:"
# How much of a thought is read back; a sealed one is the client's text.
_MOST_SEALED = 4_000_000


def sealed(reasoning: str) -> str:
    """A thought as clients carry it from an answer to the next request; they don't read it."""
    return _SEAL + base64.b64encode(reasoning.encode("utf-8", "replace")).decode()


def unsealed(text: str | None) -> str:
    """The thought in what a client carried; empty where another server sealed it."""
    if not text or not text.startswith(_SEAL) or len(text) > _MOST_SEALED:
        return ""
    try:
        return base64.b64decode(text.removeprefix(_SEAL), validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


def as_items(given: str | Sequence[msgspec.Raw] | None) -> list[msgspec.Raw]:
    """An input as items, which it may be or a plain text."""
    if isinstance(given, str):
        part = {"type": "input_text", "text": given}
        message = {"type": "message", "role": "user", "content": [part]}
        return [msgspec.Raw(orjson.dumps(message))]
    return list(given or ())


class ItemReader:
    """Turns the items of one request into messages in order.

    `find` gives an item of an earlier answer by its id. What the model said in one go, its
    reasoning, its text and its calls, is one message.
    """

    def __init__(
        self, model: str, tools: Toolset, find: Callable[[str], msgspec.Raw | None]
    ) -> None:
        self.messages: list[Message] = []
        self.places: list[int] = []
        self._model = model
        self._tools = tools
        self._find = find
        self._called: dict[str, str] = {}
        self._turn = _Turn()

    def read(self, raw: msgspec.Raw, param: str, place: int) -> None:
        """Take an item (mutates)."""
        kind = decode_part(types.Kind, raw, param)
        match kind.type or ("message" if kind.role else ""):
            case "message":
                self._message(decode_part(types.MessageItem, raw, param), param, place)
            case "reasoning":
                self._turn.begin(place)
                self._turn.thoughts += _thoughts(decode_part(types.ReasoningItem, raw, param))
            case "function_call" | "custom_tool_call" as of:
                self._turn.begin(place)
                call = decode_part(types.CallItem, raw, param)
                self._turn.calls.append(self._call(call, is_custom=of == "custom_tool_call"))
            case "function_call_output" | "custom_tool_call_output":
                output = decode_part(types.OutputItem, raw, param)
                self._add(self._output(output, param), place)
            case "item_reference":
                found = self._find(decode_part(types.ReferenceItem, raw, param).id)
                if found is None:
                    raise bad_field(f"{param}.id", "Must be the id of an item that is kept here")
                self.read(found, param, place)
            case _:
                # Not its type: it is the client's text.
                _log.info("an item of a type that is not read here is left out - at `%s`", param)

    def finish(self) -> None:
        """Take note that there are no more items (mutates)."""
        if self._turn.place is not None:
            self.places.append(self._turn.place)
            self.messages.append(self._turn.message())
            self._turn = _Turn()

    def _add(self, message: Message, place: int) -> None:
        self.finish()
        self.messages.append(message)
        self.places.append(place)

    def _message(self, item: types.MessageItem, param: str, place: int) -> None:
        role = _ROLES.get(item.role)
        if role is None:
            raise bad_field(f"{param}.role", f"Must be one of {', '.join(_ROLES)}")
        texts = self._texts(item.content, f"{param}.content")
        if role == "assistant":
            self._turn.begin(place)
            self._turn.texts += texts
        else:
            self._add({"role": role, "content": content(texts)}, place)

    def _call(self, item: types.CallItem, *, is_custom: bool) -> dict[str, object]:
        name = self._tools.flat(item.name, item.namespace)
        self._called[item.call_id] = name
        given = arguments_of(item.input) if is_custom else item.arguments
        text = given if isinstance(given, str) else orjson.dumps(given or {}).decode()
        function = {"name": name, "arguments": text}
        return {"id": item.call_id, "type": "function", "function": function}

    def _output(self, item: types.OutputItem, param: str) -> Message:
        texts = self._texts(item.output, f"{param}.output")
        name = self._called.get(item.call_id)
        more = {"name": name} if name else {}
        return {"role": "tool", "content": content(texts), "tool_call_id": item.call_id, **more}

    def _texts(self, given: types.Content, param: str) -> list[str]:
        """The texts of a content; 400 for what is not text."""
        if given is None or isinstance(given, str):
            return [given] if given else []
        texts: list[str] = []
        for index, part in enumerate(given):
            if part.type == "refusal":
                texts.append(part.refusal)
            elif part.type in _TEXTS:
                texts.append(part.text)
            else:
                what = f"Other content than text, for the model {self._model[:200]!r},"
                raise unsupported(f"{param}[{index}].type", what)
        return texts


class _Turn:
    """What the model said in one go, as far as it is known."""

    def __init__(self) -> None:
        self.place: int | None = None
        self.thoughts: list[str] = []
        self.texts: list[str] = []
        self.calls: list[dict[str, object]] = []

    def begin(self, place: int) -> None:
        """Note where the first item of it stands (mutates)."""
        if self.place is None:
            self.place = place

    def message(self) -> Message:
        """All of it."""
        message: dict[str, object] = {"role": "assistant", "content": content(self.texts)}
        if self.thoughts:
            message["reasoning_content"] = "\n".join(self.thoughts)
        if self.calls:
            message["tool_calls"] = self.calls
        return message


def _thoughts(item: types.ReasoningItem) -> list[str]:
    """The thought itself, else as it was sealed, else what it comes to."""
    own = [part.text for part in item.content or () if part.text]
    if own:
        return own
    carried = unsealed(item.encrypted_content)
    return [carried] if carried else [part.text for part in item.summary or () if part.text]
