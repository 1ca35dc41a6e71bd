"""Bodies in files: in which API they are written, and what is read of them."""

import json
from pathlib import Path

import pytest

from omlx.cli.bodies import read_body
from omlx.errors import OmlxError

USER = {"role": "user", "content": "hi"}
TOOL_USE = {"type": "tool_use", "id": "1", "name": "ls", "input": {}}
ANTHROPIC = [
    {"system": "be brief"},
    {"system": [{"type": "text", "text": "be brief"}]},
    {"stop_sequences": ["x"]},
    {"thinking": {"type": "enabled"}},
    {"tools": [{"name": "ls", "input_schema": {"type": "object"}}]},
    {"messages": [USER, {"role": "assistant", "content": [TOOL_USE]}, USER]},
]
OPENAI = [
    {},
    {"metadata": {"a": "b"}, "stop": ["x"]},
    {"messages": [{"role": "system", "content": "be brief"}, USER]},
    {"tools": [{"type": "function", "function": {"name": "ls"}}]},
    {"messages": [USER, {"role": "tool", "tool_call_id": "1", "content": "a"}]},
]


def read(tmp_path: Path, fields: dict[str, object]):
    path = tmp_path / "body.json"
    path.write_text(json.dumps({"model": "m", "messages": [USER], **fields}))
    return read_body(path)


@pytest.mark.parametrize("fields", ANTHROPIC)
def test_anthropic_bodies(tmp_path: Path, fields: dict[str, object]) -> None:
    """Their messages have places of their own; max_tokens may be missing."""
    generation = read(tmp_path, fields)
    assert generation.places[-1] >= 0
    assert read(tmp_path, {**fields, "max_tokens": 5}).messages == generation.messages


@pytest.mark.parametrize("fields", OPENAI)
def test_openai_bodies(tmp_path: Path, fields: dict[str, object]) -> None:
    generation = read(tmp_path, fields)
    assert generation.places == ()
    assert len(generation.tools) == len(fields.get("tools", []))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "not supported"),
        ({"messages": "x"}, "Expected `array`"),
        ({"model": None}, "Expected `str`"),
        ({"system": 5}, "Expected `str | array"),
    ],
)
def test_bodies_that_no_server_would_take(
    tmp_path: Path, fields: dict[str, object], said: str
) -> None:
    with pytest.raises(OmlxError, match="body.json") as caught:
        read(tmp_path, fields)
    assert said in caught.value.message
