"""Values of settings: check and convert them, and write them as TOML.

Knows nothing about where a value comes from.
"""

import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from omlx.settings.leaf import Kind, Leaf
from omlx.units import parse_duration, parse_size

# What is shown of a secret.
MASK = "********"
_BOOLS = {
    "true": True, "yes": True, "on": True, "1": True,
    "false": False, "no": False, "off": False, "0": False,
}  # fmt: skip
_TYPE_NAMES: Mapping[Any, str] = {
    bool: "true or false", int: "a whole number", float: "a number", str: "text",
    dict: "a table", list: "a list", tuple: "a list",
}  # fmt: skip
_SIZES = (
    (10**12, "TB"), (2**40, "TiB"), (10**9, "GB"), (2**30, "GiB"),
    (10**6, "MB"), (2**20, "MiB"), (10**3, "kB"), (2**10, "KiB"),
)  # fmt: skip
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,199}")
_DURATIONS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def convert(leaf: Leaf, value: object, *, base: Path, from_text: bool = False) -> object:
    """The value as the schema has it; ValueError says what is wrong, without the name.

    Relative paths start at `base`. With `from_text` a string may stand for any type, as on a
    command line.
    """
    if leaf.words and value in leaf.words:
        return value
    result = _by_kind(leaf, value, base=base, from_text=from_text)
    _check_limits(leaf, result)
    return result


def _by_kind(leaf: Leaf, value: object, *, base: Path, from_text: bool) -> object:
    match leaf.kind:
        case Kind.BOOL:
            return _to_bool(leaf, value, from_text=from_text)
        case Kind.INT:
            return _to_int(leaf, value, from_text=from_text)
        case Kind.FLOAT:
            return _to_float(leaf, value, from_text=from_text)
        case Kind.SIZE:
            if isinstance(value, str | int) and not isinstance(value, bool):
                return parse_size(value)
            raise _wrong(leaf, value)
        case Kind.DURATION:
            if isinstance(value, str | int | float) and not isinstance(value, bool):
                return parse_duration(value)
            raise _wrong(leaf, value)
        case Kind.TEXT:
            return _to_text(leaf, value)
        case Kind.PATH:
            return _to_path(leaf, value, base)
        case Kind.PATHS:
            if from_text and isinstance(value, str):
                value = [part for part in value.split(os.pathsep) if part]
            if not isinstance(value, list | tuple):
                raise _wrong(leaf, value)
            return tuple(_to_path(leaf, item, base) for item in cast(Sequence[object], value))
        case Kind.NAMES:
            return _to_names(leaf, value, from_text=from_text)
        case Kind.TEXTS:
            return _to_texts(leaf, value, from_text=from_text)


def expected(leaf: Leaf) -> str:
    """What a setting accepts, in words."""
    text = {
        Kind.INT: "a whole number",
        Kind.FLOAT: "a number",
        Kind.TEXT: "text",
        Kind.PATH: "a path",
        Kind.PATHS: "a list of paths",
        Kind.NAMES: 'a table such as {short = "model"}',
        Kind.TEXTS: "a list of texts",
        Kind.SIZE: 'a size such as "8GB" or "512MiB"',
        Kind.DURATION: 'a duration such as "15m" or "2s"',
        Kind.BOOL: "true or false",
    }[leaf.kind]
    if leaf.option.choices:
        text = "one of " + ", ".join(leaf.option.choices)
    return " or ".join([text, *(f'"{word}"' for word in leaf.words)])


def _wrong(leaf: Leaf, value: object) -> ValueError:
    got = repr(value) if isinstance(value, str) else _TYPE_NAMES.get(type(value), "something else")
    return ValueError(f"expected {expected(leaf)}, got {got}")


def _to_bool(leaf: Leaf, value: object, *, from_text: bool) -> bool:
    if from_text and isinstance(value, str):
        value = _BOOLS.get(value.strip().lower(), value)
    if not isinstance(value, bool):
        raise _wrong(leaf, value)
    return value


def _to_int(leaf: Leaf, value: object, *, from_text: bool) -> int:
    if from_text and isinstance(value, str):
        digits = value.strip()
        if len(digits) > 20 or not digits.removeprefix("-").isascii():
            raise _wrong(leaf, value)
        try:
            return int(digits)
        except ValueError:
            raise _wrong(leaf, value) from None
    if not isinstance(value, int) or isinstance(value, bool):
        raise _wrong(leaf, value)
    return value


def _to_float(leaf: Leaf, value: object, *, from_text: bool) -> float:
    if from_text and isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            raise _wrong(leaf, value) from None
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise _wrong(leaf, value)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ValueError(f"expected {expected(leaf)}, got one that is not finite")
    return number


def _to_text(leaf: Leaf, value: object) -> str:
    if not isinstance(value, str):
        raise _wrong(leaf, value)
    if not value.strip():
        raise ValueError(f"expected {expected(leaf)}, got an empty one")
    if any(ord(char) < 32 or ord(char) == 127 for char in value):
        raise ValueError("control characters are not allowed")
    if not value.isprintable() and any("\ud800" <= char <= "\udfff" for char in value):
        raise ValueError("not UTF-8 text")
    if leaf.option.choices and value not in leaf.option.choices:
        raise _wrong(leaf, value)
    return value


def _to_texts(leaf: Leaf, value: object, *, from_text: bool) -> tuple[str, ...]:
    """Texts from a list, or from text with commas between them."""
    if from_text and isinstance(value, str):
        value = [value]
    if not isinstance(value, list | tuple):
        raise _wrong(leaf, value)
    texts = [_to_text(leaf, item).strip() for item in cast(Sequence[object], value)]
    if from_text:
        texts = [part.strip() for text in texts for part in text.split(",") if part.strip()]
    return tuple(texts)


def _to_path(leaf: Leaf, value: object, base: Path) -> Path:
    if not isinstance(value, str | Path):
        raise _wrong(leaf, value)
    if not str(value) or "\0" in str(value):
        raise ValueError(f"expected {expected(leaf)}, got {str(value)!r}")
    try:
        return base / Path(value).expanduser()
    except RuntimeError:
        raise ValueError(f"{str(value)!r} names a user that does not exist") from None


def _to_names(leaf: Leaf, value: object, *, from_text: bool) -> tuple[tuple[str, str], ...]:
    """Pairs of names, from a table, or from text such as "a=b" or "a=b,c=d"."""
    if from_text and isinstance(value, str):
        value = value.split(",")
    if from_text and isinstance(value, list | tuple):
        texts = [str(text) for text in cast(Sequence[object], value)]
        parts = [part.strip() for text in texts for part in text.split(",") if part.strip()]
        if wrong := next((part for part in parts if "=" not in part), None):
            raise ValueError(f"expected NAME=MODEL, got {wrong!r}")
        pairs = [part.partition("=")[::2] for part in parts]
    elif isinstance(value, dict):
        pairs = list(cast(dict[str, object], value).items())
    else:
        raise _wrong(leaf, value)
    named: dict[str, str] = {}
    for name, target in pairs:
        if not isinstance(target, str):
            raise ValueError(f"the name {name!r} must stand for text")
        name, target = name.strip(), target.strip()
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is no name: letters, digits and . _ - / : @, up to 200, may be in it"
            )
        if not target:
            raise ValueError(f"the name {name!r} stands for nothing")
        if named.setdefault(name, target) != target:
            raise ValueError(f"the name {name!r} is given twice")
    return tuple(named.items())


def _check_limits(leaf: Leaf, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return
    low, high = leaf.option.low, leaf.option.high
    if (low is None or value >= low) and (high is None or value <= high):
        return
    shown = show(leaf, value)
    if low is not None and high is not None:
        raise ValueError(f"{shown} is not within {show(leaf, low)} to {show(leaf, high)}")
    if low is not None:
        raise ValueError(f"{shown} is less than {show(leaf, low)}")
    raise ValueError(f"{shown} is more than {show(leaf, cast(float, high))}")


def show(leaf: Leaf, value: object) -> str:
    """The value as people write it: "32MB", "10s", true, a path; "none" where there is none."""
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple) and leaf.kind is Kind.NAMES:
        return ",".join(f"{name}={target}" for name, target in cast(Sequence[Any], value))
    if isinstance(value, tuple) and leaf.kind is Kind.TEXTS:
        return ",".join(cast(Sequence[str], value))
    if isinstance(value, tuple):
        return os.pathsep.join(str(item) for item in cast(Sequence[object], value))
    if isinstance(value, int | float):
        if leaf.kind is Kind.SIZE:
            return _with_unit(value, _SIZES, "")
        if leaf.kind is Kind.DURATION:
            return _with_unit(value, _DURATIONS, "s")
        return f"{value:g}" if isinstance(value, float) else str(value)
    return str(value)


def masked(leaf: Leaf, value: object) -> object:
    """The value as JSON has it, and a mask for a secret."""
    if leaf.option.secret and value is not None:
        return MASK
    if leaf.kind is Kind.NAMES:
        return dict(cast(tuple[tuple[str, str], ...], value))
    if isinstance(value, tuple):
        return [str(item) for item in cast(tuple[object, ...], value)]
    return str(value) if isinstance(value, Path) else value


def _with_unit(value: float, units: Sequence[tuple[int, str]], smallest: str) -> str:
    for size, unit in units:
        if value >= size and value % size == 0:
            return f"{int(value) // size}{unit}"
    return f"{value:g}{smallest}" if isinstance(value, float) else f"{value}{smallest}"
