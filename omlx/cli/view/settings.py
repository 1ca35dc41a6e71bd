"""Settings as lines and as JSON, secrets masked.

Knows nothing about how they were found.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from omlx.cli.view.text import columns
from omlx.settings.build import ModelSettings, Resolved, Shadowed
from omlx.settings.layers import Origin
from omlx.settings.leaf import Leaf, leaves
from omlx.settings.schema import Settings
from omlx.settings.value import MASK, masked, show


@dataclass(frozen=True, slots=True)
class SettingLine:
    """One setting to be shown."""

    leaf: Leaf
    value: object
    origin: Origin
    shadowed: tuple[Shadowed, ...]


def setting_lines(
    settings: Settings | ModelSettings,
    origins: Mapping[str, Origin],
    shadowed: Mapping[str, tuple[Shadowed, ...]],
) -> list[SettingLine]:
    """The settings that have an origin, in the order of the schema."""
    return [
        SettingLine(leaves()[path], _value(settings, path), origin, shadowed.get(path, ()))
        for path, origin in origins.items()
    ]


def as_text(lines: Sequence[SettingLine], *, with_origin: bool) -> str:
    """One line a setting; with origins, one more for each shadowed value."""
    rows: list[tuple[str, ...]] = []
    for line in lines:
        row = (line.leaf.path, _text(line.leaf, line.value))
        rows.append((*row, str(line.origin)) if with_origin else row)
        if with_origin:
            rows += [
                ("", _text(line.leaf, lost.value), f"shadowed: {lost.origin}")
                for lost in line.shadowed
            ]
    return columns(rows)


def value_text(line: SettingLine) -> str:
    """A value alone; a secret is masked."""
    return _text(line.leaf, line.value)


def as_json(lines: Sequence[SettingLine], resolved: Resolved, *, with_origin: bool) -> str:
    """An object of settings by path; with origins each is an object of its own."""
    items = {
        line.leaf.path: _detailed(line) if with_origin else masked(line.leaf, line.value)
        for line in lines
    }
    whole = {"home": str(resolved.home), "profile": resolved.profile, "settings": items}
    return json.dumps(whole, indent=2)


def _detailed(line: SettingLine) -> dict[str, object]:
    return {
        "value": masked(line.leaf, line.value),
        "origin": _origin(line.origin),
        "shadowed": [
            {"value": masked(line.leaf, lost.value), "origin": _origin(lost.origin)}
            for lost in line.shadowed
        ],
    }


def _origin(origin: Origin) -> dict[str, str]:
    return {"kind": origin.kind.value, "where": origin.where}


def _value(settings: object, path: str) -> object:
    value: Any = settings
    for name in path.split("."):
        value = getattr(value, name)
    return value


def _text(leaf: Leaf, value: object) -> str:
    return MASK if leaf.option.secret and value is not None else show(leaf, value)
