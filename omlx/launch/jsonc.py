"""Changes single values in JSON with comments, and leaves every other byte as it is.

Knows nothing about files or clients. Reads JSON, JSON with comments and trailing commas, and of
JSON5 what people write by hand: keys without quotes and texts in single quotes.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

_MAX_DEPTH = 100
_BLANK = re.compile(r"(?:[ \t\r\n\f\v\ufeff\u00a0]|//[^\n\r]*|/\*.*?\*/)*", re.DOTALL)
_REST_OF_LINE = re.compile(r"(?:[ \t]|/\*[^\n]*?\*/)*(?://[^\n\r]*)?(?=\r?\n)")
_DOUBLE = re.compile(r'"(?:[^"\\\n]|\\.)*"', re.DOTALL)
_SINGLE = re.compile(r"'(?:[^'\\\n]|\\.)*'", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_$][\w$]*")
_ATOM = re.compile(r"[-+.\w]+")
_WORDS: Mapping[str, object] = {"true": True, "false": False, "null": None}

Path = tuple[str, ...]


@dataclass(slots=True)
class _Node:
    """A value and where it stands; an object has members, which are None for all else."""

    start: int
    end: int
    value: object
    members: "list[_Member] | None" = None


@dataclass(slots=True)
class _Member:
    key: str
    start: int
    node: _Node
    comma: int | None = field(default=None)


def set_values(text: str, values: Mapping[Path, object]) -> str:
    """The text with a value at each path; objects that are missing on the way are made.

    ValueError where the text is not JSON, or something else than an object is on the way.
    """
    if not text.strip("\ufeff \t\r\n"):
        text += "{}\n"
    expected = read(text)
    for path, value in values.items():
        _put(expected, path, value)
        text = _set(text, path, value)
    assert read(text) == expected, "an edit of JSON changed something else"
    return text


def read(text: str) -> object:
    """What the text says; ValueError where it is not JSON."""
    return _parse(text).value


def _put(root: object, path: Path, value: object) -> None:
    here = root
    for key in path[:-1]:
        if not isinstance(here, dict):
            break
        here = cast(dict[str, object], here).setdefault(key, {})
    if not isinstance(here, dict):
        raise ValueError(f"{'.'.join(path)} can't be set: what holds it is no object")
    cast(dict[str, object], here)[path[-1]] = json.loads(json.dumps(value))


def _set(text: str, path: Path, value: object) -> str:
    node = _parse(text)
    for depth, key in enumerate(path):
        member = _member(node, key)
        if member is None:
            for missing in reversed(path[depth + 1 :]):
                value = {missing: value}
            return _insert(text, node, key, value)
        node = member.node
        if depth == len(path) - 1:
            if node.value == value and type(node.value) is type(value):
                return text
            return _replace(text, member, value)
    raise ValueError("nothing says where")


def _member(node: _Node, key: str) -> _Member | None:
    """The last one of that key, which is the one that counts."""
    found = [member for member in node.members or () if member.key == key]
    return found[-1] if found else None


def _replace(text: str, member: _Member, value: object) -> str:
    indent = _indent_at(text, member.start)
    written = _write(text, value, indent or "")
    return text[: member.node.start] + written + text[member.node.end :]


def _insert(text: str, node: _Node, key: str, value: object) -> str:
    members, closing = node.members, node.end - 1
    if members is None:
        raise ValueError(f"{key} can't be set: what holds it is no object")
    newline = _newline(text)
    outer = _indent_at(text, node.start) or ""
    if not members:
        inner = outer + _step(text)
        written = f"{inner}{json.dumps(key)}: {_write(text, value, inner)}"
        tail = text[node.start + 1 : closing]
        kept = tail.rstrip() if tail.strip() else ""
        return f"{text[: node.start + 1]}{kept}{newline}{written}{newline}{outer}{text[closing:]}"
    last = members[-1]
    inner = _indent_at(text, last.start)
    at = last.node.end if last.comma is None else last.comma + 1
    if inner is None or "\n" not in text[at:closing]:
        written = f", {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
        return text[: last.node.end] + written + text[last.node.end :]
    rest = _REST_OF_LINE.match(text, at)
    line_end = rest.end() if rest and rest.end() <= closing else at
    written = f"{newline}{inner}{json.dumps(key)}: {_write(text, value, inner)}"
    if last.comma is not None:
        return text[:line_end] + written + "," + text[line_end:]
    end = last.node.end
    return text[:end] + "," + text[end:line_end] + written + text[line_end:]


def _write(text: str, value: object, indent: str) -> str:
    """A value as the text around it is written."""
    lines = json.dumps(value, ensure_ascii=False, indent=_step(text)).split("\n")
    return (_newline(text) + indent).join(lines)


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _step(text: str) -> str:
    """One level of indentation, as the first line that has one shows it."""
    found = re.search(r"^([ \t]+)[^\s/*]", text, re.MULTILINE)
    return found[1] if found and len(found[1]) <= 8 else "  "


def _indent_at(text: str, position: int) -> str | None:
    """The indentation of the line of a position; None if something stands before it there."""
    begin = text.rfind("\n", 0, position) + 1
    lead = text[begin:position].lstrip("\ufeff")
    if not lead.strip():
        return lead
    blank = re.match(r"[ \t]*", lead)
    return blank[0] if blank and lead[blank.end() :].startswith(('"', "'", "}")) else None


def _parse(text: str) -> _Node:
    node, at = _value(text, _blank(text, 0), 0)
    at = _blank(text, at)
    if at != len(text):
        raise _error(text, at, "the end was expected")
    if node.members is None:
        raise ValueError("it is no JSON object")
    return node


def _blank(text: str, at: int) -> int:
    found = _BLANK.match(text, at)
    assert found is not None
    return found.end()


def _error(text: str, at: int, what: str) -> ValueError:
    return ValueError(f"line {text.count(chr(10), 0, at) + 1} is not JSON: {what}")


def _value(text: str, at: int, depth: int) -> tuple[_Node, int]:
    if depth > _MAX_DEPTH:
        raise _error(text, at, "too many levels")
    first = text[at : at + 1]
    if first == "{":
        return _object(text, at, depth)
    if first == "[":
        return _array(text, at, depth)
    if first in ('"', "'") and first:
        value, end = _string(text, at)
        return _Node(at, end, value), end
    atom = _ATOM.match(text, at)
    if atom is None:
        raise _error(text, at, "a value was expected")
    if atom[0] in _WORDS:
        return _Node(at, atom.end(), _WORDS[atom[0]]), atom.end()
    try:
        number: object = json.loads(atom[0].lstrip("+"))
    except ValueError:
        raise _error(text, at, f"{atom[0][:20]!r} is no value") from None
    return _Node(at, atom.end(), number), atom.end()


def _object(text: str, start: int, depth: int) -> tuple[_Node, int]:
    members: list[_Member] = []
    at = _blank(text, start + 1)
    while text[at : at + 1] != "}":
        begin = at
        key, at = _key(text, at)
        at = _blank(text, at)
        if text[at : at + 1] != ":":
            raise _error(text, at, "a colon was expected")
        node, at = _value(text, _blank(text, at + 1), depth + 1)
        member = _Member(key, begin, node)
        members.append(member)
        at = _blank(text, at)
        if text[at : at + 1] == ",":
            member.comma = at
            at = _blank(text, at + 1)
        elif text[at : at + 1] != "}":
            raise _error(text, at, "a comma was expected")
    value = {member.key: member.node.value for member in members}
    return _Node(start, at + 1, value, members), at + 1


def _array(text: str, start: int, depth: int) -> tuple[_Node, int]:
    values: list[object] = []
    at = _blank(text, start + 1)
    while text[at : at + 1] != "]":
        node, at = _value(text, at, depth + 1)
        values.append(node.value)
        at = _blank(text, at)
        if text[at : at + 1] == ",":
            at = _blank(text, at + 1)
        elif text[at : at + 1] != "]":
            raise _error(text, at, "a comma was expected")
    return _Node(start, at + 1, values), at + 1


def _key(text: str, at: int) -> tuple[str, int]:
    if text[at : at + 1] in ('"', "'") and at < len(text):
        return _string(text, at)
    word = _WORD.match(text, at)
    if word is None:
        raise _error(text, at, "a key was expected")
    return word[0], word.end()


def _string(text: str, at: int) -> tuple[str, int]:
    pattern: Sequence[re.Pattern[str]] = (_DOUBLE, _SINGLE)
    found = pattern[text[at] == "'"].match(text, at)
    if found is None:
        raise _error(text, at, "a text does not end")
    written = found[0]
    if written[0] == "'":
        inside = written[1:-1].replace("\\'", "'")
        written = '"' + re.sub(r'(?<!\\)"', r"\"", inside) + '"'
    try:
        return str(json.loads(written, strict=False)), found.end()
    except ValueError:
        raise _error(text, at, "a text has an unknown escape") from None
