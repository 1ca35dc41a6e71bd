"""Lines of keys in a TOML text, for error messages.

Knows nothing about settings; the text must be one that tomllib accepts.
"""

import re
import tomllib
from collections.abc import Mapping
from typing import Any, cast

Path = tuple[str, ...]

_PART = r""""(?:[^"\\\n]|\\.)*"|'[^'\n]*'|[A-Za-z0-9_-]+"""
_KEY = re.compile(rf"(?:{_PART})(?:[ \t]*\.[ \t]*(?:{_PART}))*")
_BLANK = re.compile(r"(?:[ \t\n]|#[^\n]*)+")
_HEADER = re.compile(r"\[\[?[ \t]*")
_VALUE_TOKEN = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*"{3,5}'  # strings of several lines may end in quotes of their own
    r"|'''(?:[^']|'(?!''))*'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'"
    r"|#[^\n]*"
    r"|[\[{]|[\]}]|\n"
    r"""|[^"'#\[\]{}\n]+""",
    re.DOTALL,
)


def locate(text: str) -> dict[Path, int]:
    """The line (from 1) where each key and table first appears; not those of inline tables."""
    text = text.replace("\r\n", "\n")
    lines: dict[Path, int] = {}
    table: Path = ()
    pos, line, counted = 0, 1, 0
    while (pos := _skip_blank(text, pos)) < len(text):
        line, counted = line + text.count("\n", counted, pos), pos
        header = _HEADER.match(text, pos)
        key = _KEY.match(text, header.end() if header else pos)
        if key is None:
            return lines  # not TOML after all; what was found still helps
        path = _split(key.group())
        if header:
            table = path
            _note(lines, (), path, line)
            pos = _skip_line(text, key.end())
        else:
            _note(lines, table, path, line)
            pos = _skip_value(text, text.index("=", key.end()) + 1)
    return lines


def line_of(lines: Mapping[Path, int], path: Path) -> int | None:
    """The line of a key, else of the nearest table around it."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return None


def _note(lines: dict[Path, int], table: Path, path: Path, line: int) -> None:
    for length in range(1, len(path) + 1):
        lines.setdefault(table + path[:length], line)


def _skip_blank(text: str, pos: int) -> int:
    match = _BLANK.match(text, pos)
    return match.end() if match else pos


def _skip_line(text: str, pos: int) -> int:
    end = text.find("\n", pos)
    return len(text) if end < 0 else end


def _skip_value(text: str, pos: int) -> int:
    depth = 0
    while match := _VALUE_TOKEN.match(text, pos):
        token = match.group()
        if token == "\n" and depth == 0:
            return pos
        if token in ("[", "{"):
            depth += 1
        elif token in ("]", "}"):
            depth -= 1
        pos = match.end()
    return len(text)


def _split(key: str) -> Path:
    found: list[str] = []
    node: Any = tomllib.loads(key + "=0")
    while isinstance(node, dict):
        name, node = next(iter(cast(dict[str, Any], node).items()))
        found.append(name)
    return tuple(found)
