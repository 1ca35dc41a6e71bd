"""Edits of JSON, TOML and YAML: what is set is set, and every other byte stays."""

import json
import tomllib
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from omlx.launch import jsonc, tomltext, yamltext


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", '{\n  "a": 1\n}\n'),
        ("{}", '{\n  "a": 1\n}'),
        ("{ }\n", '{\n  "a": 1\n}\n'),
        ("{\n  // only this\n}\n", '{\n  // only this\n  "a": 1\n}\n'),
        ('{"b": 2}', '{"b": 2, "a": 1}'),
        ('{"b": 2,}', '{"b": 2, "a": 1,}'),
        ('{\n  "b": 2\n}\n', '{\n  "b": 2,\n  "a": 1\n}\n'),
        ('{\n  "b": 2, // two\n}\n', '{\n  "b": 2, // two\n  "a": 1,\n}\n'),
        ('{\n  "b": 2 // two\n}\n', '{\n  "b": 2, // two\n  "a": 1\n}\n'),
        ('{\n  "b": 2 /* two */\n}\n', '{\n  "b": 2, /* two */\n  "a": 1\n}\n'),
        ('{\r\n\t"b": "x"\r\n}\r\n', '{\r\n\t"b": "x",\r\n\t"a": 1\r\n}\r\n'),
        ('{"a": 2}', '{"a": 1}'),
        ('{"a": {"b": [1, 2]}, "c": 3}', '{"a": 1, "c": 3}'),
        ("{a: 'x', b: 'it''s'}".replace("''", "\\'"), "{a: 1, b: 'it\\'s'}"),
        ('{"a": 2, "a": 3}', '{"a": 2, "a": 1}'),
        ('{"a": true}', '{"a": 1}'),
        ('\ufeff{"b": 1}', '\ufeff{"b": 1, "a": 1}'),
    ],
)
def test_json_with_one_value(text: str, expected: str) -> None:
    assert jsonc.set_values(text, {("a",): 1}) == expected
    assert jsonc.set_values(expected, {("a",): 1}) == expected


def test_json_below_objects_that_are_missing_or_there() -> None:
    text = '{\n  "p": {\n    "mine": {} // mine\n  },\n  "z": 0\n}\n'
    changed = jsonc.set_values(text, {("p", "x", "y"): [1], ("q", "r"): "s", ("z",): None})
    assert changed == (
        '{\n  "p": {\n    "mine": {}, // mine\n    "x": {\n      "y": [\n        1\n      ]\n'
        '    }\n  },\n  "z": null,\n  "q": {\n    "r": "s"\n  }\n}\n'
    )


@pytest.mark.parametrize(
    "text",
    ["[1]", "3", '"a"', "{", '{"a" 1}', '{"a": }', '{"a": 1 "b": 2}', "{}x", '{"a": b}', "{'a}",
     '{"a": "\\q"}', "{" * 500, '{"a":' * 500, "/* never ends", '{"a": 1,,}', "{a b: 1}"],
)  # fmt: skip
def test_what_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        jsonc.set_values(text, {("new",): 1})


def test_json_where_something_else_is_in_the_way() -> None:
    with pytest.raises(ValueError, match="is no object"):
        jsonc.set_values('{"a": [1]}', {("a", "b"): 1})


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=8,
)
_OBJECTS = st.dictionaries(st.text(max_size=4), _VALUES, max_size=4)


@given(_OBJECTS, st.sampled_from([None, 1, 4, "\t"]), st.text(max_size=4), _VALUES)
def test_json_of_any_form(before: dict[str, Any], indent: Any, key: str, value: Any) -> None:
    text = json.dumps(before, indent=indent, ensure_ascii=False)
    changed = jsonc.set_values(text, {(key,): value})
    assert json.loads(changed) == {**before, key: value}
    assert jsonc.read(text) == before


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 'a = "x"\n'),
        ("# head\n\n[t]\nb = 1\n", '# head\na = "x"\n\n[t]\nb = 1\n'),
        ("b = 1 # one\n[t]\n", 'b = 1 # one\na = "x"\n[t]\n'),
        ("a = 3 # three\nb = 1\n", 'a = "x" # three\nb = 1\n'),
        ("'a' = 'y'\r\nb = 1\r\n", "'a' = \"x\"\r\nb = 1\r\n"),
        ('a = [\n  "#", # no\n]\nb = 1\n', 'a = "x"\nb = 1\n'),
        ('b = """\na = 1\n[t]\n"""\n', 'b = """\na = 1\n[t]\n"""\na = "x"\n'),
        ("[t]\na = 1\n", 'a = "x"\n\n[t]\na = 1\n'),
        ("b = 1", 'b = 1\na = "x"\n'),
        ("b = {c = [1, 2]}\n[[t]]\n", 'b = {c = [1, 2]}\na = "x"\n[[t]]\n'),
    ],
)
def test_toml_before_the_tables(text: str, expected: str) -> None:
    assert tomltext.set_top(text, {"a": "x"}) == expected
    assert tomltext.set_top(expected, {"a": "x"}) == expected


def test_toml_tables() -> None:
    text = "a = 1\n\n[p.x]\nb = 2 # two\nc = 3\n\n# after\n[q]\n"
    changed = tomltext.set_table(text, "p.x", {"b": 5, "d": "e"})
    assert changed == 'a = 1\n\n[p.x]\nb = 5\nd = "e"\n\n# after\n[q]\n'
    assert tomltext.set_table("a = 1", "p.y", {"b": True}) == "a = 1\n\n[p.y]\nb = true\n"
    assert tomllib.loads(tomltext.set_table(text, "p.y", {"b": 1}))["p"]["y"] == {"b": 1}


def test_toml_lists_of_tables() -> None:
    text = '[[m]]\nname = "a"\n\n[[m]]\nname = "b"\nold = 1\n\n[x]\n'
    changed = tomltext.set_item(text, "m", {"name": "b", "new": 2}, by="name")
    assert changed == '[[m]]\nname = "a"\n\n[[m]]\nname = "b"\nnew = 2\n\n[x]\n'
    added = tomltext.set_item(text, "m", {"name": "c"}, by="name")
    assert added == text + '\n[[m]]\nname = "c"\n'


@pytest.mark.parametrize(
    "call",
    [
        lambda: tomltext.set_top("a = ", {"b": 1}),
        lambda: tomltext.set_top("a.b = 1\n", {"a": 1}),
        lambda: tomltext.set_table("p = 3\n", "p.x", {"b": 1}),
        lambda: tomltext.set_table("p = {x = {b = 2}}\n", "p.x", {"b": 1}),
        lambda: tomltext.set_item('m = [{name = "a"}]\n', "m", {"name": "b"}, by="name"),
        lambda: tomltext.set_item("m = 3\n", "m", {"name": "b"}, by="name"),
        lambda: yamltext.set_top("a: [1\n", {"b": 1}),
        lambda: yamltext.set_top("- a\n", {"b": 1}),
        lambda: yamltext.set_top("a: !!python/object/apply:os.system [id]\n", {"b": 1}),
        lambda: yamltext.set_in("m: {a: 1}\n", "m", {"b": 1}),
        lambda: yamltext.set_item("m: [{name: a}]\n", "m", {"name": "b"}, by="name"),
        lambda: yamltext.set_item("m: 3\n", "m", {"name": "b"}, by="name"),
        lambda: yamltext.set_top("{a: 1}\n", {"b": 1}),
    ],
)
def test_what_cannot_be_changed_safely_is_refused(call: Any) -> None:
    with pytest.raises(ValueError):
        call()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 'a: "x"\n'),
        ("b: 1 # one\n", 'b: 1 # one\na: "x"\n'),
        ("a: 3 # three\nb: 1\n", 'a: "x" # three\nb: 1\n'),
        ("a:\n  - 1\n  # in\n# out\nb: 1\n", 'a: "x"\n  # in\n# out\nb: 1\n'),
        ("'a' : y\r\nb: 1\r\n", 'a: "x"\r\nb: 1\r\n'),
        ("b: |\n  a: 1\n  text\n", 'b: |\n  a: 1\n  text\na: "x"\n'),
        ("---\nb: 1", '---\nb: 1\na: "x"\n'),
    ],
)
def test_yaml_at_the_top(text: str, expected: str) -> None:
    assert yamltext.set_top(text, {"a": "x"}) == expected
    assert yamltext.set_top(expected, {"a": "x"}) == expected


def test_yaml_in_a_mapping() -> None:
    text = "m: # mine\n    a: 1 # one\n    b:\n        c: 2\nn: 3\n"
    changed = yamltext.set_in(text, "m", {"a": 5, "d": "e"})
    assert changed == 'm: # mine\n    d: "e"\n    a: 5 # one\n    b:\n        c: 2\nn: 3\n'
    assert yamltext.set_in("m: gpt # usual\nn: 1\n", "m", {"a": 1}) == "m: # usual\n  a: 1\nn: 1\n"
    assert yaml.safe_load(yamltext.set_in("", "m", {"a": 1})) == {"m": {"a": 1}}


def test_yaml_lists() -> None:
    text = "m:\n  # first\n  - name: a\n    x: 1\n  - name: b # two\n    y: [1]\n# end\nn: 1\n"
    changed = yamltext.set_item(text, "m", {"name": "b", "z": {"k": 1}}, by="name")
    assert yaml.safe_load(changed)["m"] == [{"name": "b", "z": {"k": 1}}, {"name": "a", "x": 1}]
    assert "# first\n" in changed and "# end\nn: 1\n" in changed
    added = yamltext.set_item("m:\n- name: a\n", "m", {"name": "c"}, by="name")
    assert added == 'm:\n- name: "c"\n- name: a\n'
