"""Changes single values in TOML, and leaves every other byte as it is.

Knows nothing about files or clients. Every change is checked: what the new text says must be what
the old one said, and the new values; what can't be done so is refused.
"""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

Scalars = Mapping[str, str | int | bool]

_TOKEN = re.compile(
    r'"""(?:[^\\]|\\.)*?"""+|\'\'\'.*?\'\'\'+|"(?:[^"\\\n]|\\.)*"|\'[^\'\n]*\'|#[^\n]*|[\[\]{}\n]',
    re.DOTALL,
)
_HEADER = re.compile(r"[ \t]*\[(\[?)[ \t]*([^\]\n]+?)[ \t]*\]\]?[ \t]*(?:#[^\n]*)?\r?$")
_KEY = re.compile(r"[ \t]*([A-Za-z0-9_-]+|\"[^\"\n]*\"|'[^'\n]*')[ \t]*=[ \t]*")


@dataclass(frozen=True, slots=True)
class _Line:
    """A statement or a header, with the lines that it goes over; `header` names its table."""

    start: int
    end: int
    header: str = ""
    is_item: bool = False


def set_top(text: str, values: Scalars) -> str:
    """Set values that stand before the first table."""
    expected = {**_load(text), **values}
    for key, value in values.items():
        text = _set_top(text, key, value)
    return _checked(text, expected)


def set_table(text: str, name: str, values: Mapping[str, object]) -> str:
    """Make the whole of a table, at its place if it is there and else at the end."""
    expected = _load(text)
    here: dict[str, object] = expected
    keys = name.split(".")
    for key in keys[:-1]:
        below = here.setdefault(key, {})
        if not isinstance(below, dict):
            raise ValueError(f"{name} can't be set: {key} is no table")
        here = cast(dict[str, object], below)
    here[keys[-1]] = dict(values)
    return _checked(_put(text, f"[{name}]", values, _sections(text, name)), expected)


def set_item(text: str, name: str, values: Mapping[str, object], *, by: str) -> str:
    """Make an item of a list of tables, in place of the one whose `by` is the same."""
    expected = _load(text)
    items = expected.setdefault(name, [])
    if not isinstance(items, list):
        raise ValueError(f"{name} is no list of tables")
    tables = cast(list[dict[str, object]], items)
    same = [idx for idx, table in enumerate(tables) if table.get(by) == values[by]]
    sections = _sections(text, name)
    if same:
        tables[same[0]] = dict(values)
        sections = sections[same[0] : same[0] + 1]
    else:
        tables.append(dict(values))
        sections = []
    return _checked(_put(text, f"[[{name}]]", values, sections), expected)


def _load(text: str) -> dict[str, object]:
    try:
        return cast(dict[str, object], tomllib.loads(text.removeprefix("\ufeff")))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"it is not TOML: {error}") from None


def _checked(text: str, expected: Mapping[str, object]) -> str:
    if _load(text) != expected:
        raise ValueError("it is written in a way that can't be changed here")
    return text


def _put(
    text: str, header: str, values: Mapping[str, object], sections: Sequence[tuple[int, int]]
) -> str:
    newline = _newline(text)
    lines = [header, *(f"{key} = {_toml(value)}" for key, value in values.items())]
    block = newline.join(lines) + newline
    if sections:
        start, end = sections[0]
        return text[:start] + block + text[end:]
    if text and not text.endswith("\n"):
        text += newline
    return text + (newline if text.strip() else "") + block


def _sections(text: str, name: str) -> list[tuple[int, int]]:
    """Where the tables of that name are, from the header to the end of their last statement."""
    found: list[tuple[int, int]] = []
    is_here = False
    for line in _lines(text):
        if line.header:
            is_here = line.header == name
            if is_here:
                found.append((line.start, line.end))
        elif is_here and text[line.start : line.end].strip() and not _is_comment(text, line):
            found[-1] = (found[-1][0], line.end)
    return found


def _is_comment(text: str, line: _Line) -> bool:
    return text[line.start : line.end].lstrip().startswith("#")


def _set_top(text: str, key: str, value: str | int | bool) -> str:
    newline, written = _newline(text), f"{key} = {_toml(value)}"
    first, last = 0, 0
    for line in _lines(text):
        if line.header:
            break
        statement = _KEY.match(text, line.start)
        if statement and line.start <= statement.start() < line.end:
            last = line.end
            if statement[1].strip("\"'") == key:
                rest = _after_value(text, statement.end(), line.end)
                return text[: statement.end()] + _toml(value) + text[rest:]
        elif not last and _is_comment(text, line):
            first = line.end
    at = last or first
    before = text[:at]
    if before and not before.endswith("\n"):
        before += newline
    after = text[at:]
    gap = newline if after.strip() and not last and not after.startswith(("\n", "\r\n")) else ""
    return f"{before}{written}{newline}{gap}{after}"


def _after_value(text: str, start: int, end: int) -> int:
    """Where a value ends that begins there: before the blanks and the comment of its line."""
    stop = start
    for token in _TOKEN.finditer(text, start, end):
        if token[0].startswith("#") and "\n" not in text[token.end() : end].rstrip("\r\n"):
            return len(text[: token.start()].rstrip())
        stop = token.end()
    return len(text[:end].rstrip()) if text[start:end].strip() else stop


def _lines(text: str) -> Iterator[_Line]:
    """The headers and statements; one that goes over several lines is one."""
    start = at = depth = 0
    for token in _TOKEN.finditer(text):
        if token[0] in "[{" and text[start : token.start()].strip():
            depth += 1
        elif token[0] in "]}" and depth:
            depth -= 1
        elif token[0] == "\n" and not depth:
            yield _line(text, start, token.end())
            start = at = token.end()
    if at < len(text):
        yield _line(text, start, len(text))


def _line(text: str, start: int, end: int) -> _Line:
    header = _HEADER.match(text[start:end].rstrip("\n").lstrip("\ufeff"))
    if header is None:
        return _Line(start, end)
    name = ".".join(part.strip().strip("\"'") for part in header[2].split("."))
    return _Line(start, end, name, bool(header[1]))


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _toml(value: object) -> str:
    """A value in TOML: texts, numbers and truth values are written as in JSON, but for DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
