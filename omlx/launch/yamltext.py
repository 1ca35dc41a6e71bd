"""Changes values at the top of YAML, and leaves every other byte as it is.

Knows nothing about files or clients. Every change is checked: what the new text says must be what
the old one said, and the new values; what can't be done so is refused.
"""

import json
import re
from collections.abc import Mapping
from typing import cast

import yaml

_TOP = re.compile(
    r"^(?=[^\s#-])(?:\"([^\"\n]*)\"|'([^'\n]*)'|([^\s:#][^:\n]*?))[ \t]*:(?=[ \t\r\n]|$)", re.M
)
_END = re.compile(r"^(?=[^\s#-]|---|\.\.\.)", re.MULTILINE)


def set_top(text: str, values: Mapping[str, str | int | bool]) -> str:
    """Set single values at the top."""
    expected = {**_load(text), **values}
    for key, value in values.items():
        text = _put(text, key, f"{key}: {_yaml(value)}")
    return _checked(text, expected)


def set_in(text: str, name: str, values: Mapping[str, str | int | bool]) -> str:
    """Set single values in a mapping at the top; one that is no mapping is replaced."""
    expected = _load(text)
    old = expected.get(name)
    kept = cast(dict[str, object], old) if isinstance(old, dict) else {}
    is_mapping = bool(kept)
    expected[name] = {**kept, **values}
    span = _span(text, name)
    if not is_mapping or span is None:
        lines = [f"{name}:", *(f"  {key}: {_yaml(value)}" for key, value in values.items())]
        return _checked(_put(text, name, _newline(text).join(lines)), expected)
    block = text[span[0] : span[1]]
    for key, value in values.items():
        block = _set_child(block, key, value)
    return _checked(text[: span[0]] + block + text[span[1] :], expected)


def set_item(text: str, name: str, values: Mapping[str, object], *, by: str) -> str:
    """Make an item of a list at the top, the first one, in place of one whose `by` is the same."""
    expected = _load(text)
    old = expected.get(name)
    if old is not None and not isinstance(old, list):
        raise ValueError(f"{name} is no list")
    items = cast(list[object], old or [])
    others = [one for one in items if not _is_same(one, by, values[by])]
    expected[name] = [dict(values), *others]
    span = _span(text, name)
    newline = _newline(text)
    if span is None or not items:
        return _checked(
            _put(text, name, newline.join([f"{name}:", *_item(values, "  ")])), expected
        )
    block = text[span[0] : span[1]]
    starts = [match.start() for match in re.finditer(r"^[ \t]*-(?=\s)", block, re.MULTILINE)]
    if not starts:
        raise ValueError(f"{name} is written in a way that can't be changed here")
    indent = re.match(r"[ \t]*", block[starts[0] :])
    assert indent is not None
    level = indent[0]
    starts = [at for at in starts if re.match(rf"{level}-", block[at:])]
    spans = list(zip(starts, [*starts[1:], len(block)], strict=True))
    same = [idx for idx, one in enumerate(items) if _is_same(one, by, values[by])]
    for idx in reversed(same if len(spans) == len(items) else []):
        block = block[: spans[idx][0]] + block[_content_end(block, *spans[idx]) :]
    written = newline.join(_item(values, level)) + newline
    block = block[: starts[0]] + written + block[starts[0] :]
    return _checked(text[: span[0]] + block + text[span[1] :], expected)


def _is_same(item: object, by: str, value: object) -> bool:
    return isinstance(item, dict) and cast(dict[str, object], item).get(by) == value


def _content_end(block: str, start: int, end: int) -> int:
    """Where an item ends, without the blank lines and comments after it."""
    lines = block[start:end].splitlines(keepends=True)
    while lines and (not lines[-1].strip() or lines[-1].lstrip().startswith("#")):
        lines.pop()
    return start + sum(len(line) for line in lines)


def _item(values: Mapping[str, object], indent: str) -> list[str]:
    lines = [f"{key}: {_yaml(value)}" for key, value in values.items()]
    return [f"{indent}{'- ' if idx == 0 else '  '}{line}" for idx, line in enumerate(lines)]


def _set_child(block: str, key: str, value: object) -> str:
    """Set a single value in the lines of a mapping, header included."""
    children = re.compile(r"^([ \t]+)(?=[^\s#-])", re.MULTILINE)
    first = children.search(block)
    if first is None:
        raise ValueError("it is written in a way that can't be changed here")
    indent, written = first[1], f"{key}: {_yaml(value)}"
    line = re.compile(
        rf"^{indent}(?:{re.escape(key)}|[\"']{re.escape(key)}[\"'])[ \t]*:[^\r\n]*", re.M
    )
    found = line.search(block)
    if found is None:
        at = first.start()
        return f"{block[:at]}{indent}{written}{_newline(block)}{block[at:]}"
    after = indent + written + _comment(found[0])
    return block[: found.start()] + after + block[found.end() :]


def _comment(line: str) -> str:
    """The comment after a value, with the blanks before it; empty where a quote leaves doubt."""
    found = re.search(r"[ \t]+#[^\"']*$", line)
    return found[0] if found else ""


def _put(text: str, name: str, written: str) -> str:
    """Make what a key at the top has, at its place or at the end."""
    newline, span = _newline(text), _span(text, name)
    if span is not None:
        first, _, others = written.partition(newline)
        first += _comment(text[span[0] : span[1]].partition("\n")[0].rstrip("\r"))
        below = newline + others if others else ""
        return text[: span[0]] + first + below + newline + text[span[1] :]
    if text and not text.endswith("\n"):
        text += newline
    return text + written + newline


def _span(text: str, name: str) -> tuple[int, int] | None:
    """From a key at the top to the end of what it has, without comments and blanks after it."""
    for match in _TOP.finditer(text):
        if (match[1] or match[2] or match[3]) != name:
            continue
        following = _END.search(text, match.end())
        end = following.start() if following else len(text)
        return match.start(), _content_end(text, match.start(), end)
    return None


def _load(text: str) -> dict[str, object]:
    try:
        value: object = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise ValueError(f"it is not YAML: {' '.join(str(error).split())[:200]}") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError("it is no YAML mapping")
    return cast(dict[str, object], value)


def _checked(text: str, expected: Mapping[str, object]) -> str:
    if _load(text) != expected:
        raise ValueError("it is written in a way that can't be changed here")
    return text


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _yaml(value: object) -> str:
    """A value on one line, which YAML takes as JSON writes it."""
    return json.dumps(value, ensure_ascii=False)
