"""The settings as a flat list: the path, flag, variable and kind of each, derived from the schema.

Knows nothing about values from files, variables or the command line.
"""

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from omlx.settings.option import Option, Unit
from omlx.settings.schema import Settings


class Kind(Enum):
    """How a value is written and read."""

    BOOL = "true or false"
    INT = "whole number"
    FLOAT = "number"
    TEXT = "text"
    PATH = "path"
    PATHS = "list of paths"
    NAMES = "table of names"
    TEXTS = "list of texts"
    SIZE = "size"
    DURATION = "duration"


@dataclass(frozen=True, slots=True)
class Leaf:
    """One setting; `path` is its TOML key with dots, `words` are values beside those of `kind`."""

    path: str
    kind: Kind
    words: tuple[str, ...]
    default: object
    option: Option

    @property
    def group(self) -> str:
        """The table it is in; empty at the top level."""
        return self.path.rpartition(".")[0]

    @property
    def key(self) -> str:
        """Its name within the table."""
        return self.path.rpartition(".")[2]

    @property
    def flag(self) -> str:
        """Its option on the command line."""
        return self.option.flag or "--" + self.key.replace("_", "-")

    @property
    def env(self) -> str:
        """Its environment variable."""
        return "OMLX_" + self.path.replace(".", "_").upper()


_KINDS: Mapping[Any, Kind] = types.MappingProxyType(
    {
        bool: Kind.BOOL,
        int: Kind.INT,
        float: Kind.FLOAT,
        str: Kind.TEXT,
        Path: Kind.PATH,
        tuple[Path, ...]: Kind.PATHS,
        tuple[str, ...]: Kind.TEXTS,
        tuple[tuple[str, str], ...]: Kind.NAMES,
    }
)
_UNITS = types.MappingProxyType({Unit.SIZE: Kind.SIZE, Unit.DURATION: Kind.DURATION})


def _leaf(path: str, annotation: Any, default: object) -> Leaf:
    assert typing.get_origin(annotation) is Annotated, path
    base, option = typing.get_args(annotation)
    is_union = typing.get_origin(base) in (types.UnionType, typing.Union)
    parts = typing.get_args(base) if is_union else (base,)
    words: list[str] = []
    kinds: list[Kind] = []
    for part in parts:
        if typing.get_origin(part) is Literal:
            words += typing.get_args(part)
        elif part is not types.NoneType:
            kinds.append(_KINDS[part])
    assert len(kinds) == 1, path
    kind = kinds[0] if option.unit is None else _UNITS[option.unit]
    return Leaf(path, kind, tuple(words), default, option)


def _walk(group: Any, prefix: str) -> Iterator[Leaf]:
    hints = typing.get_type_hints(cast(Any, type(group)), include_extras=True)
    for item in fields(group):
        value = getattr(group, item.name)
        if is_dataclass(value):
            yield from _walk(value, f"{prefix}{item.name}.")
        else:
            yield _leaf(prefix + item.name, hints[item.name], value)


@cache
def leaves() -> Mapping[str, Leaf]:
    """All settings by path, in the order of the schema."""
    return types.MappingProxyType({leaf.path: leaf for leaf in _walk(Settings(), "")})


def groups() -> tuple[str, ...]:
    """The names of the tables."""
    return tuple(dict.fromkeys(leaf.group for leaf in leaves().values() if leaf.group))


def with_values(default: Any, values: Mapping[str, object], *, prefix: str = "") -> Any:
    """A copy of a schema object (a group or the whole) that has the values given by path."""
    changed: dict[str, object] = {}
    for item in fields(default):
        value = getattr(default, item.name)
        if is_dataclass(value):
            changed[item.name] = with_values(value, values, prefix=f"{prefix}{item.name}.")
        else:
            changed[item.name] = values.get(prefix + item.name, value)
    return type(default)(**changed)
