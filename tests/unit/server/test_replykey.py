"""A reply has one key, whatever its tokens, its call ids, spaces around it and its JSON's form."""

import json

import pytest

from omlx.server.generation import ToolCall
from omlx.server.parse.said import Reasoning, Text
from omlx.server.replykey import core_of, key_of_message, key_of_reply

CALL = ToolCall(0, "read", '{"path": "a", "lines": [1, 2]}')


def message(content: object = "", *calls: object, **more: object) -> dict[str, object]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls), **more}


def call(name: str, arguments: object, call_id: str = "x") -> dict[str, object]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def key(*parts: Text | Reasoning | ToolCall, identity: str = "t", salt: str = "") -> bytes | None:
    return key_of_reply(identity, salt, parts)


@pytest.mark.parametrize(
    ("parts", "same"),
    [
        ([Text("Hello")], message("Hello")),
        ([Text("\n\nHello "), Text("there\n")], message([{"type": "text", "text": "Hello there"}])),
        ([Reasoning("hm"), Text("Hello")], message("Hello", reasoning_content="other")),
        ([CALL], message(None, call("read", '{"lines":[1,2],"path":"a"}'))),
        ([CALL], message("", call("read", {"lines": [1, 2], "path": "a"}))),
        ([Text("a"), CALL, Text("b")], message("ab", call("read", CALL.arguments, "y"))),
        ([ToolCall(0, "f", "{broken ")], message("", call("f", "{broken"))),
        ([ToolCall(0, "f", '"\ud83d"')], message("", call("f", '"\ud83d"'))),
    ],
)
def test_what_comes_back_has_the_same_key(parts, same) -> None:
    assert key(*parts) == key_of_message("t", "", same) is not None


def test_others_have_another() -> None:
    keys = [
        key(Text("a")),
        key(Text("b")),
        key(Text("a"), identity="u"),
        key(Text("a"), salt="s"),
        key(Text("a"), CALL),
        key(CALL),
        key(CALL, CALL),
        key(ToolCall(0, "read", '{"path": "b", "lines": [1, 2]}')),
        key(ToolCall(0, "write", CALL.arguments)),
        key(Text("read"), ToolCall(0, "", "")),
    ]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("parts", [(), (Text(" \n"),), (Reasoning("only thoughts"),)])
def test_nothing_has_none(parts) -> None:
    assert key(*parts) is None


def test_a_message_of_any_shape_is_survived() -> None:
    deep = json.loads("[" * 500 + "]" * 500)
    for content in (None, 3, [None, "x", {"text": 4}], {"a": 1}):
        for calls in (None, 3, [3], [{"function": 4}], [{"function": {"arguments": deep}}]):
            odd = {"role": "assistant", "content": content, "tool_calls": calls}
            key_of_message("t", "", odd)
            core_of(odd)
    assert key_of_message("t", "", message("", call("f", "[" * 100_000)))


def test_the_core_is_the_first_text_else_the_first_call() -> None:
    assert core_of(message("  a b\n", call("read", "{}"))) == "a b"
    assert core_of(message("\n", call("read", "{}"))) == "read"
    assert core_of(message([{"type": "text", "text": " "}, {"type": "text", "text": "x"}])) == "x"
    assert core_of(message()) == ""
