"""Finds models below directories and in the Hugging Face cache, and names them.

Knows nothing about loading them and reads no weights.
"""

import logging
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from omlx.errors import ModelError
from omlx.models.config import (
    context_window,
    mapping,
    positive_int,
    read_json,
    read_json_if_there,
)
from omlx.models.footprint import State, state_of

DEMO_ID = "SmolLM2-135M-Instruct"

# What a pull leaves beside a model: from where and which commit it is.
PULL_RECORD = ".omlx-pull.json"

_log = logging.getLogger("omlx.models")
_MAX_DEPTH = 8
_HUB_PREFIX = "models--"


class Source(StrEnum):
    """Where a model was found."""

    FOLDER = "folder"
    HUB_CACHE = "hub cache"


@dataclass(frozen=True, slots=True)
class ModelEntry:
    """One model on disk; `state` is what its tokens take in memory, None where it doesn't say.

    `revision` is the commit that it was fetched at, where that is known.
    """

    id: str
    path: Path
    model_type: str
    context_window: int | None
    weight_bytes: int
    dtype: str | None
    quantization: str | None
    source: Source = Source.FOLDER
    revision: str | None = None
    state: State | None = None

    def needed_bytes(self, num_tokens: int) -> int:
        """What the weights, and the state of so many tokens, take in memory: an estimate."""
        return self.weight_bytes + (self.state.bytes_of(num_tokens) if self.state else 0)


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


def discover(
    dirs: Sequence[Path],
    *,
    hub_cache: Path | None = None,
    why_not: Callable[[Mapping[str, object]], str | None] = lambda _: None,
) -> Discovery:
    """Every model at or below the directories and in the cache; what can't be served is logged.

    `why_not` is given the config of a model, and says why that can't be served, if so.
    """
    found: list[_Named] = []
    problems: list[Problem] = []
    seen: set[tuple[int, int]] = set()
    places = [(folder, Source.FOLDER) for folder in _model_folders(dirs, seen)]
    places += [(folder, Source.HUB_CACHE) for folder in _cached_models(hub_cache, seen)]
    for folder, source in places:
        try:
            named = _named(folder, source)
        except ModelError as error:
            problems.append(Problem(folder, error.message))
            continue
        reason = why_not(read_json(folder / "config.json"))
        if reason is None:
            found.append(named)
        elif source is Source.FOLDER:
            problems.append(Problem(folder, reason))
        else:  # others keep speech, image and embedding models there
            _log.debug("skipped %s: %s", folder, reason)
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


def _model_folders(dirs: Sequence[Path], seen: set[tuple[int, int]]) -> Iterator[Path]:
    """Folders with a config.json and weights, each real folder once however it is linked."""
    for top in dirs:
        yield from _walk(top.expanduser(), depth=0, seen=seen)


def _cached_models(cache: Path | None, seen: set[tuple[int, int]]) -> Iterator[Path]:
    """The current snapshot of every model in a Hugging Face cache, as far as it has weights."""
    if cache is None:
        return
    for repo in sorted(cache.glob(f"{_HUB_PREFIX}*")):
        for snapshot in _snapshots(repo):
            names = _names(snapshot)
            if not _holds_model(names):
                continue
            stat = snapshot.stat()
            if (stat.st_dev, stat.st_ino) not in seen:
                seen.add((stat.st_dev, stat.st_ino))
                yield snapshot
            break


def _snapshots(repo: Path) -> list[Path]:
    """The snapshots of a repository, the one that `main` names first, then the newest."""
    try:
        found = [path for path in (repo / "snapshots").iterdir() if path.is_dir()]
        times = {path: path.stat().st_mtime for path in found}
    except OSError:
        return []
    main = _main_revision(repo)
    return sorted(found, key=lambda path: (path.name != main, -times[path]))


def _main_revision(repo: Path) -> str | None:
    try:
        return (repo / "refs" / "main").read_text("utf-8").strip()
    except (OSError, ValueError):
        return None


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 (names only: cheaper than paths)
    except OSError:
        return []


def _holds_model(names: Sequence[str]) -> bool:
    return "config.json" in names and any(name.endswith(".safetensors") for name in names)


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
    if _holds_model(names):
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
    main = _main_revision(folder.parent)
    return [main] if main is not None and main in names else names


def _named(folder: Path, source: Source) -> _Named:
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
        source=source,
        revision=_revision(folder, source),
        state=state_of(config, _dtype(config)),
    )
    return _Named(entry, org)


def _revision(folder: Path, source: Source) -> str | None:
    if source is Source.HUB_CACHE or folder.parent.name == "snapshots":
        return folder.name
    try:
        commit = read_json_if_there(folder / PULL_RECORD).get("commit")
    except ModelError:
        return None
    return commit if isinstance(commit, str) else None


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
