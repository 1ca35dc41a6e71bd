"""Lines of TOML keys, with tomllib as the judge.

Knows nothing about settings.
"""

import tomllib
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from omlx.settings.locate import line_of, locate

TRICKY = '''\
# comment = 1
top = 1
[server]   # [no]
host = "a # b"
note = """
port = 1
[cache]
"""
"quoted.key" = 'x = 1'
port = 2
a.b.c = [
  1, # ] comment
  "]",
  {x = "}"},
]
d = """"four quotes""""
[cache]
dir = \'\'\'
dir = 2\'\'\'
size = 1

[model."qwen*".sampling]
temperature = 0.5
[[list]]
one = 1
[[list]]
two = 2
'''


def test_each_key_of_a_tricky_text_has_its_own_line() -> None:
    expected = {
        ("top",): 2,
        ("server",): 3,
        ("server", "host"): 4,
        ("server", "note"): 5,
        ("server", "quoted.key"): 9,
        ("server", "port"): 10,
        ("server", "a"): 11,
        ("server", "a", "b"): 11,
        ("server", "a", "b", "c"): 11,
        ("server", "d"): 16,
        ("cache",): 17,
        ("cache", "dir"): 18,
        ("cache", "size"): 20,
        ("model",): 22,
        ("model", "qwen*"): 22,
        ("model", "qwen*", "sampling"): 22,
        ("model", "qwen*", "sampling", "temperature"): 23,
        ("list",): 24,
        ("list", "one"): 25,
        ("list", "two"): 27,
    }
    assert locate(TRICKY) == expected
    assert locate(TRICKY.replace("\n", "\r\n")) == expected


def test_a_key_of_an_inline_table_is_on_the_line_of_that_table() -> None:
    lines = locate("[a]\nb = {c = 1, d = {e = 2}}\n")
    assert line_of(lines, ("a", "b", "d", "e")) == 2
    assert line_of(lines, ("z",)) is None


BARE = st.text("abcdefgh_-0123", min_size=1, max_size=4)
ANY_KEY = st.one_of(BARE, st.text("a.[]=# \"\\'\t\u00e9", max_size=4))
TEXT = st.text("ab=[]{}#\"'\\\n. \u00e9", max_size=12)


def _basic(text: str) -> str:
    table = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t"}
    return '"' + "".join(table.get(char, char) for char in text) + '"'


@st.composite
def written_keys(draw: st.DrawFn) -> str:
    key = draw(ANY_KEY)
    bare = key and all(char.isascii() and (char.isalnum() or char in "_-") for char in key)
    if bare and draw(st.booleans()):
        return key
    if not set(key) & {"'", "\n"} and draw(st.booleans()):
        return f"'{key}'"
    return _basic(key)


@st.composite
def written_values(draw: st.DrawFn, depth: int = 2) -> str:
    kinds = ["int", "basic", "multi", "literal", "multiliteral"]
    kind = draw(st.sampled_from(kinds + (["array", "inline"] if depth else [])))
    text = draw(TEXT)
    match kind:
        case "int":
            return str(draw(st.integers(-99, 99)))
        case "basic":
            return _basic(text)
        case "multi":
            return '"""' + text.replace("\\", "\\\\").replace('"""', '""\\"') + '"""'
        case "literal":
            return "'" + text.replace("'", "").replace("\n", "") + "'"
        case "multiliteral":
            return "'''" + text.replace("'", "") + "'''"
        case "array":
            items = draw(st.lists(written_values(depth - 1), max_size=3))
            gap = draw(st.sampled_from([", ", ",\n", ", # ] x = 1\n"]))
            return "[" + "".join(item + gap for item in items) + "]"
        case _:
            pairs = draw(st.lists(st.tuples(written_keys(), written_values(0)), max_size=2))
            return "{" + ", ".join(f"{key} = {value}" for key, value in pairs) + "}"


@st.composite
def documents(draw: st.DrawFn) -> str:
    """Statements that tomllib accepts one after another; the others are left out."""
    text = ""
    for _ in range(draw(st.integers(0, 8))):
        keys = " . ".join(draw(st.lists(written_keys(), min_size=1, max_size=3)))
        kind = draw(st.sampled_from(["pair", "pair", "table", "array table", "comment"]))
        statement = {
            "pair": lambda keys=keys: f"{keys} = {draw(written_values())}",
            "table": lambda keys=keys: f"[ {keys} ] # = 1",
            "array table": lambda keys=keys: f"[[{keys}]]",
            "comment": lambda: "  # [x] y = 1",
        }[kind]()
        candidate = text + draw(st.sampled_from(["", "  ", "\n"])) + statement + "\n"
        if _parses(candidate):
            text = candidate
    return text


def _parses(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def _holds(node: Any, path: tuple[str, ...]) -> bool:
    if not path:
        return True
    if isinstance(node, list):
        return any(_holds(item, path) for item in node)
    return isinstance(node, dict) and path[0] in node and _holds(node[path[0]], path[1:])


def _paths(node: Any, prefix: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(node, dict):
        for key, value in node.items():
            yield (*prefix, key)
            yield from _paths(value, (*prefix, key))


@settings(max_examples=150, deadline=None)
@given(documents())
def test_tomllib_finds_a_key_from_its_line_on_and_not_before(text: str) -> None:
    lines = text.split("\n")
    found = locate(text)
    for path, line in found.items():
        assert not _holds(tomllib.loads("\n".join(lines[: line - 1])), path)
        ends = range(line, len(lines) + 1)
        first = next(t for end in ends if _parses(t := "\n".join(lines[:end])))
        assert _holds(tomllib.loads(first), path)


@settings(max_examples=150, deadline=None)
@given(documents())
def test_every_key_has_a_line(text: str) -> None:
    found = locate(text)
    for path in _paths(tomllib.loads(text)):
        assert line_of(found, path) is not None
