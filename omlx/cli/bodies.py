"""Reads the body of an API request from a file, and makes of it the prompt that a server would.

Knows nothing about caches or servers that run.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from omlx.errors import ModelError, OmlxError
from omlx.models.locate import ModelEntry, resolve
from omlx.models.names import names_of
from omlx.models.text import TextModel
from omlx.server.canonical import canonical
from omlx.server.either import either_dialect
from omlx.server.errors import ApiError
from omlx.server.generation import Generation
from omlx.server.prompt import Encoded, encode
from omlx.storage.toolsets import ToolSets

if TYPE_CHECKING:
    from omlx.settings.build import Resolved


@dataclass(frozen=True, slots=True)
class PromptFile:
    """One body: the request in it, the model it is for, and the prompt."""

    path: Path
    model: ModelEntry
    text: TextModel
    prompt: Encoded
    has_tools: bool


def read_body(path: Path) -> Generation:
    """The request in a file, in whichever dialect it is written; OmlxError."""
    try:
        dialect, data = either_dialect(path.read_bytes())
    except OSError as error:
        raise OmlxError(f"{path} can't be read: {error.strerror or error}") from None
    except ValueError as error:
        raise OmlxError(f"{path} is not valid JSON: {error}") from None
    try:
        return dialect.decode(data)
    except ApiError as error:
        raise OmlxError(f"{path}: {error.message}") from None


def prompt_file(
    path: Path, resolved: "Resolved", *, like: PromptFile | None = None, salt: str = ""
) -> PromptFile:
    """A body and the prompt it makes for its model, or for that of `like`; OmlxError.

    `salt` is that of the requests it is compared with.
    """
    generation = read_body(path)
    if like is not None:
        entry, text = like.model, like.text
    else:
        entry = _model(generation.model, resolved)
        text = TextModel.load(entry.path)
    try:
        stable = _stable(generation, entry, resolved, salt)
        return PromptFile(path, entry, text, encode(text, stable), bool(generation.tools))
    except ApiError as error:
        raise OmlxError(f"{path}: {error.message}") from None


def _stable(
    generation: Generation, entry: ModelEntry, resolved: "Resolved", salt: str
) -> Generation:
    """The request in the form that a server gives it; orders of tools are only read."""
    sets = ToolSets(resolved.prompts_path, clock=time.time, is_read_only=True)
    try:
        rules = resolved.for_model(entry.id, entry.path).prompt
        return canonical(generation, rules, sets, salt=salt).generation
    finally:
        sets.close()


def _model(name: str, resolved: "Resolved") -> ModelEntry:
    """The model of that name, the default model, or the only one there is."""
    from omlx.cli.found import discover_models, no_models

    entries = discover_models(resolved).models
    if not entries:
        raise no_models(resolved)
    default = resolved.settings.server.default_model
    names = names_of(entries, resolved)
    named = names.find(name) or (names.find(default) if default else None)
    found = named.entry if named else None
    if found is None and len(entries) == 1:
        return entries[0]
    if found is None:
        known = ", ".join(entry.id for entry in entries)
        raise ModelError(f"there is no model {name!r}", hint=f"found: {known}")
    return found


def model_text(model_id: str, resolved: "Resolved") -> TextModel | None:
    """The text side of a model by its id; None where it is not found or can't be used."""
    from omlx.cli.found import search

    found = search(resolved.model_dirs, hub_cache=resolved.hub_cache)
    entry = resolve(found.models, model_id)
    try:
        return None if entry is None else TextModel.load(entry.path)
    except ModelError:
        return None
