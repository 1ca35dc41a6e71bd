"""Settings as `omlx config set` takes them: names, values, and how a file writes those.

Knows nothing about files.
"""

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from omlx.errors import SettingsError, UsageError

if TYPE_CHECKING:
    from omlx.settings.leaf import Leaf


def leaf_of(name: str) -> "Leaf":
    """The setting of a name; UsageError with the nearest ones if there is none."""
    from omlx.settings.leaf import leaves

    found = leaves().get(name)
    if found is None:
        raise UsageError(
            f"there is no setting {name!r}{_near(name)}", hint="omlx config show lists them all"
        )
    return found


def leaves_of(name: str) -> list["Leaf"]:
    """The setting of a name, or all of a table; UsageError."""
    from omlx.settings.leaf import groups, leaves

    if name in groups():
        return [leaf for leaf in leaves().values() if leaf.group == name]
    return [leaf_of(name)]


def _near(name: str) -> str:
    from omlx.settings.leaf import leaves

    key = name.rpartition(".")[2]
    close = difflib.get_close_matches(name, list(leaves()), n=3)
    close += [leaf.path for leaf in leaves().values() if leaf.key == key]
    close = list(dict.fromkeys(close))[:3]
    return f"; near it: {', '.join(close)}" if close else ""


def pairs_of(words: Sequence[str]) -> list[tuple["Leaf", str | None]]:
    """NAME VALUE, or any number of NAME=VALUE; a secret may be named alone. UsageError.

    A setting of several values may be named several times.
    """
    if len(words) == 2 and "=" not in words[0]:
        return [(leaf_of(words[0]), words[1])]
    found: list[tuple[Leaf, str | None]] = []
    for word in words:
        name, is_set, value = word.partition("=")
        leaf = leaf_of(name)
        if not is_set and not leaf.option.secret:
            raise UsageError(
                f"{name} needs a value", hint=f"omlx config set {name} VALUE, or {name}=VALUE"
            )
        found.append((leaf, value if is_set else None))
    return found


def converted(pairs: Sequence[tuple["Leaf", str]], cwd: Path) -> dict["Leaf", object]:
    """The values as a file has them; SettingsError lists every one that is wrong."""
    from omlx.settings.value import convert

    texts: dict[Leaf, list[str]] = {}
    for leaf, text in pairs:
        texts.setdefault(leaf, []).append(text)
    values: dict[Leaf, object] = {}
    problems: list[str] = []
    for leaf, given in texts.items():
        try:
            typed = [convert(leaf, text, base=cwd, from_text=True) for text in given]
            values[leaf] = _merged(leaf, typed)
        except ValueError as error:
            problems.append(f"{leaf.path}: {error}")
    if problems:
        raise SettingsError(problems)
    return values


def _merged(leaf: "Leaf", values: Sequence[object]) -> object:
    """One value of several; ValueError where only one is allowed."""
    if len(values) == 1:
        return _literal(leaf, values[0])
    if not all(isinstance(value, tuple) for value in values):
        raise ValueError("it is given twice")
    both = tuple(item for value in values for item in cast(tuple[object, ...], value))
    return _literal(leaf, both)


def _literal(leaf: "Leaf", value: object) -> object:
    """A value as TOML writes it: sizes and durations with their unit, paths as text."""
    from omlx.settings.leaf import Kind
    from omlx.settings.value import show

    if isinstance(value, tuple):
        items = cast(tuple[object, ...], value)
        if leaf.kind is Kind.NAMES:
            return dict(cast(tuple[tuple[str, str], ...], items))
        return [str(item) for item in items]
    if isinstance(value, str | bool):
        return value
    if leaf.kind in (Kind.SIZE, Kind.DURATION):
        return show(leaf, value)
    return str(value) if isinstance(value, Path) else value
