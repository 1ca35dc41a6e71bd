"""What ships with a model or its family: profiles/models, omlx.toml and generation_config.json.

Knows nothing about what the user set.
"""

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import cast

from omlx.settings.layers import Entry, Layer, Origin, OriginKind, Scope, from_toml
from omlx.settings.leaf import leaves
from omlx.settings.value import convert

_GENERATION_KEYS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_MAX_JSON_BYTES = 1_000_000


def matches(glob: str, model_id: str) -> bool:
    """Whether a pattern names a model: by its whole id, or by the last part of one with "/"."""
    return fnmatchcase(model_id, glob) or fnmatchcase(model_id.rpartition("/")[2], glob)


def matching(entries: tuple[Entry, ...], model_id: str, profile: str | None = None) -> list[Entry]:
    """The entries of tables for this model, or for one of its profiles, the closest first."""
    found = [
        e
        for e in entries
        if e.glob is not None and matches(e.glob, model_id) and e.profile == profile
    ]
    return sorted(found, key=lambda entry: -_literal_chars(entry.glob or ""))


def _literal_chars(glob: str) -> int:
    return sum(char not in "*?[]" for char in glob)


def family_layers(profiles: Path) -> list[Layer]:
    """The tables of model families that come with omlx, one layer a file."""
    return [
        from_toml(path, shown=str(path), kind=OriginKind.MODEL, scope=Scope.TABLES)
        for path in sorted((profiles / "models").glob("*.toml"))
    ]


def folder_layer(model_dir: Path) -> Layer:
    """The omlx.toml beside a model's weights."""
    path = model_dir / "omlx.toml"
    return from_toml(path, shown=str(path), kind=OriginKind.MODEL, scope=Scope.ONE_MODEL)


def generation_layer(model_dir: Path) -> Layer:
    """The sampling that generation_config.json recommends; what can't be used only warns."""
    path = model_dir / "generation_config.json"
    try:
        with path.open("rb") as file:
            raw: object = json.loads(file.read(_MAX_JSON_BYTES))
    except FileNotFoundError:
        return Layer()
    except (OSError, ValueError, RecursionError) as error:
        return Layer(warnings=(f"{path}: ignored, it cannot be read: {error}",))
    if not isinstance(raw, dict):
        return Layer(warnings=(f"{path}: ignored, it is not a JSON object",))
    config = cast(Mapping[str, object], raw)
    if config.get("do_sample") is False:
        return Layer()
    return _recommended(path, config)


def _recommended(path: Path, config: Mapping[str, object]) -> Layer:
    entries: list[Entry] = []
    warnings: list[str] = []
    for key in _GENERATION_KEYS:
        value = config.get(key)
        if value is None:
            continue
        leaf = leaves()[f"sampling.{key}"]
        try:
            typed = convert(leaf, value, base=path.parent)
        except ValueError as error:
            warnings.append(f"{path}: {key} is ignored: {error}")
        else:
            entries.append(Entry(leaf.path, typed, Origin(OriginKind.MODEL, f"{path}: {key}")))
    return Layer(tuple(entries), warnings=tuple(warnings))
