"""Values by schema: what bare text becomes."""

import json

import pytest

from omlx.server.parse.typed import ANY, argument_types, as_json, functions, types_of
from tests.unit.server.parse.samples_xml import tool

ROOT = {
    "$defs": {"s": {"type": "string"}, "loop": {"$ref": "#/$defs/loop"}, "a/b": {"type": "null"}},
    "properties": {"a": {"$ref": "#/$defs/s"}},
    "additionalProperties": {"type": "integer"},
}
TYPES = [
    ({"type": "string"}, {"string"}),
    ({"type": "str"}, {"string"}),
    ({"type": "dict"}, {"object"}),
    ({"type": "any"}, set()),
    ({"type": ["integer", "null"]}, {"integer", "null"}),
    ({"type": "number", "nullable": True}, {"number", "null"}),
    ({"anyOf": [{"type": "string"}, {"type": "null"}]}, {"string", "null"}),
    ({"anyOf": [{"type": "string"}, {}]}, set()),
    ({"oneOf": [{"type": "object"}, {"$ref": "#/$defs/s"}]}, {"object", "string"}),
    ({"allOf": [{"description": "x"}, {"type": "boolean"}]}, {"boolean"}),
    ({"enum": ["a", "b"]}, {"string"}),
    ({"enum": [1, None]}, {"integer", "null"}),
    ({"const": True}, {"boolean"}),
    ({"$ref": "#/$defs/s"}, {"string"}),
    ({"$ref": "#/$defs/a~1b"}, {"null"}),
    ({"$ref": "#/$defs/loop"}, set()),
    ({"$ref": "#/nowhere"}, set()),
    ({}, set()),
    (True, set()),
    (None, set()),
]


@pytest.mark.parametrize(("schema", "types"), TYPES)
def test_types_that_a_schema_allows(schema: object, types: set[str]) -> None:
    assert types_of(schema, ROOT) == types


def test_types_of_an_argument() -> None:
    assert argument_types(ROOT, "a") == {"string"}
    assert argument_types(ROOT, "other") == {"integer"}
    assert argument_types({}, "a") == ANY


VALUES = [
    ("007", {"string"}, "007"),
    ("007", {"integer"}, "007"),
    ("007", set(), "007"),
    ("7", {"string"}, "7"),
    ("7", {"integer"}, 7),
    (" 7\n", {"integer"}, 7),
    ("7.0", {"integer"}, 7),
    ("7.5", {"integer"}, 7.5),
    ("7.0", {"number"}, 7.0),
    ("-1e3", {"number"}, -1e3),
    ("many", {"integer"}, "many"),
    ("true", {"boolean"}, True),
    ("False", {"boolean"}, False),
    ("true", {"string"}, "true"),
    ("1", {"boolean"}, 1),
    ("null", {"string"}, "null"),
    ("null", {"string", "null"}, None),
    ("None", {"integer", "null"}, None),
    ("null", {"integer"}, None),
    ("x", {"string", "null"}, "x"),
    ("7", {"string", "integer"}, 7),
    ("7 days", {"string", "integer"}, "7 days"),
    ('{"a": [1]}', {"object"}, {"a": [1]}),
    ("{'a': None}", {"object"}, {"a": None}),
    ('{"a": "x\ny"}', {"object"}, {"a": "x\ny"}),
    ("{a}", {"object"}, "{a}"),
    ("[1, 2]", {"array"}, [1, 2]),
    ("[1, 2]", {"object"}, [1, 2]),
    ("[1, 2]", {"string", "object"}, "[1, 2]"),
    ("{1, 2}", {"object"}, "{1, 2}"),
    ("[1, 2]", set(), [1, 2]),
    ("text", set(), "text"),
    ('"text"', set(), '"text"'),
    ("NaN", set(), "NaN"),
    ("Infinity", {"number"}, "Infinity"),
    ("", set(), ""),
    ("", {"integer"}, ""),
]


@pytest.mark.parametrize(("text", "types", "value"), VALUES)
def test_values(text: str, types: set[str], value: object) -> None:
    found = json.loads(as_json(text, frozenset(types)))
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "{" * 100_000, "9" * 10_000, '["\\ud800"]', "[1e999]"]
)
def test_odd_values_are_still_json(text: str) -> None:
    for types in (set(), {"array"}, {"object"}, {"string"}):
        assert as_json(text, frozenset(types)).isascii()


def test_keys_keep_their_order_and_numbers_their_digits() -> None:
    text = '{"b": 1.10, "a": 12345678901234567890.5}'
    assert as_json(text, frozenset({"object"})) == text


def test_tools_that_are_no_functions_have_no_schema() -> None:
    assert list(functions([{"type": "web_search"}, tool("f", {}), {"function": {"name": 1}}])) == [
        "f"
    ]
