"""Finds models below directories and names them.

Knows nothing about loading them and reads no weights.
"""

import logging
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from omlx.errors import ModelError
from omlx.models.config import (
    context_window,
    mapping,
    positive_int,
    read_json,
    read_json_if_there,
)

DEMO_ID = "SmolLM2-135M-Instruct"

_log = logging.getLogger("omlx.models")
_MAX_DEPTH = 8
_HUB_PREFIX = "models--"


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model on disk."""

    id: str
    path: Path
    model_type: str
    context_window: int | None
    weight_bytes: int
    dtype: str | None
    quantization: str | None


@dataclass(frozen=True, slots=True)
class Problem:
    """A folder that looks like a model and can't be served, with the reason."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Discovery:
    """What was found: models sorted by id, and folders that were skipped."""

    models: tuple[ModelEntry, ...]
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class _Named:
    entry: ModelEntry
    org: str


def discover(dirs: Sequence[Path]) -> Discovery:
    """Every model at or below the directories; a folder that can't be served is logged."""
    found: list[_Named] = []
    problems: list[Problem] = []
    for folder in _model_folders(dirs):
        try:
            found.append(_named(folder))
        except ModelError as error:
            problems.append(Problem(folder, error.message))
    models, doubles = _with_ids(found)
    problems += doubles
    for problem in problems:
        _log.warning("skipped %s: %s", problem.path, problem.reason)
    return Discovery(tuple(sorted(models, key=lambda entry: entry.id)), tuple(problems))


def resolve(entries: Iterable[ModelEntry], name: str) -> ModelEntry | None:
    """The model that a name means: its id, its `org/name`, or "demo"; None where none does."""
    entries = list(entries)
    by_id = {entry.id: entry for entry in entries}
    if name in by_id:
        return by_id[name]
    if name == "demo":
        return next((entry for entry in entries if entry.path.name == DEMO_ID), None)
    return next((entry for entry in entries if "/".join(_org_and_name(entry.path)) == name), None)


def _model_folders(dirs: Sequence[Path]) -> Iterator[Path]:
    """Folders with a config.json and weights, each real folder once however it is linked."""
    seen: set[tuple[int, int]] = set()
    for top in dirs:
        yield from _walk(top.expanduser(), depth=0, seen=seen)


def _walk(folder: Path, *, depth: int, seen: set[tuple[int, int]]) -> Iterator[Path]:
    try:
        stat = folder.stat()
        if (stat.st_dev, stat.st_ino) in seen:
            return
        seen.add((stat.st_dev, stat.st_ino))
        names = sorted(os.listdir(folder))  # noqa: PTH208 (names only: cheaper than paths)
    except OSError as error:
        # A models directory that does not exist yet is an empty one.
        if not isinstance(error, FileNotFoundError) or depth:
            _log.warning("can't look into %s: %s", folder, error.strerror)
        return
    if "config.json" in names and any(name.endswith(".safetensors") for name in names):
        yield folder
        return
    if depth == _MAX_DEPTH:
        return
    for name in _current_snapshot(folder, names):
        if not name.startswith(".") and (folder / name).is_dir():
            yield from _walk(folder / name, depth=depth + 1, seen=seen)


def _current_snapshot(folder: Path, names: Sequence[str]) -> Sequence[str]:
    """Of a Hugging Face cache's snapshots the one that `main` names, else all."""
    if folder.name != "snapshots" or not folder.parent.name.startswith(_HUB_PREFIX):
        return names
    try:
        main = (folder.parent / "refs" / "main").read_text("utf-8").strip()
    except (OSError, ValueError):
        return names
    return [main] if main in names else names


def _named(folder: Path) -> _Named:
    config = read_json(folder / "config.json")
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not model_type:
        raise ModelError("config.json names no model_type")
    org, name = _org_and_name(folder)
    entry = ModelEntry(
        id=name,
        path=folder,
        model_type=model_type,
        context_window=context_window(config, read_json_if_there(folder / "tokenizer_config.json")),
        weight_bytes=_weight_bytes(folder),
        dtype=_dtype(config),
        quantization=_quantization(config),
    )
    return _Named(entry, org)


def _org_and_name(folder: Path) -> tuple[str, str]:
    """Owner and name, also from a Hugging Face cache's models--org--name/snapshots/revision."""
    folder = folder.absolute()
    hub = folder.parent.parent.name
    if folder.parent.name == "snapshots" and hub.startswith(_HUB_PREFIX):
        org, _, name = hub.removeprefix(_HUB_PREFIX).rpartition("--")
        return org, name
    return folder.parent.name, folder.name


def _with_ids(found: Sequence[_Named]) -> tuple[list[ModelEntry], list[Problem]]:
    """Entries under unique ids: the folder's name, `org/name` where that is not unique."""
    by_name: dict[str, list[_Named]] = defaultdict(list)
    for named in found:
        by_name[named.entry.id].append(named)
    taken: dict[str, ModelEntry] = {}
    doubles: list[Problem] = []
    for name, group in by_name.items():
        for named in group:
            model_id = name if len(group) == 1 or not named.org else f"{named.org}/{name}"
            if model_id in taken:
                reason = f"the id {model_id!r} already means {taken[model_id].path}"
                doubles.append(Problem(named.entry.path, reason))
            else:
                taken[model_id] = replace(named.entry, id=model_id)
    return list(taken.values()), doubles


def _weight_bytes(folder: Path) -> int:
    try:
        return sum(file.stat().st_size for file in _weight_files(folder))
    except OSError as error:
        # In a Hugging Face cache: a link to a file whose download was cut.
        raise ModelError(f"the weights are incomplete: {error.strerror}") from None


def _weight_files(folder: Path) -> Sequence[Path]:
    """The files of the index where there is one, else all safetensors files."""
    index = folder / "model.safetensors.index.json"
    if not index.exists():
        return list(folder.glob("*.safetensors"))
    named = set(mapping(read_json(index).get("weight_map")).values())
    files = sorted(folder / name for name in named if isinstance(name, str))
    missing = [file.name for file in files if not file.exists()]
    if missing:
        raise ModelError(f"the weights are incomplete: {missing[0]} is missing")
    return files


def _dtype(config: Mapping[str, object]) -> str | None:
    text = mapping(config.get("text_config"))
    for source in (config, text):
        for key in ("torch_dtype", "dtype"):
            value = source.get(key)
            if isinstance(value, str):
                return value.removeprefix("torch.")
    return None


def _quantization(config: Mapping[str, object]) -> str | None:
    """For people, such as "4-bit affine, group 64"."""
    settings = mapping(config.get("quantization")) or mapping(config.get("quantization_config"))
    bits = positive_int(settings.get("bits"))
    if bits is None:
        method = settings.get("quant_method")
        return method if isinstance(method, str) else None
    mode = settings.get("mode", "affine")
    group = positive_int(settings.get("group_size"))
    return f"{bits}-bit {mode}" + (f", group {group}" if group else "")
