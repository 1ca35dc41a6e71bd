"""Models and running servers as commands find them, with errors that say what to do.

Knows nothing about how they are shown.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from omlx.errors import ModelError, ServerError

if TYPE_CHECKING:
    from omlx.client import RunningServer
    from omlx.models.locate import Discovery
    from omlx.settings.build import Resolved

NO_MODELS_HINT = (
    "omlx model pull demo gets a small model, omlx serve --demo also serves it, "
    "and --model-dir names a folder of models"
)


def discover_models(resolved: "Resolved") -> "Discovery":
    """The models in the model folders; ModelError for a folder that was named and can't be read."""
    for folder in resolved.settings.models.dir:
        check_folder(folder)
    return search(resolved.model_dirs, hub_cache=resolved.hub_cache)


def search(dirs: Sequence[Path], *, hub_cache: Path | None = None) -> "Discovery":
    """The models that can be served below folders and in a Hugging Face cache."""
    from omlx.models.arch.known import Architectures
    from omlx.models.locate import discover

    return discover(dirs, hub_cache=hub_cache, why_not=Architectures.installed().why_not)


def check_folder(folder: Path) -> None:
    """ModelError unless it is a folder that can be listed."""
    try:
        with os.scandir(folder):
            return
    except OSError as error:
        reason = error.strerror or str(error)
    raise ModelError(f"the model folder {folder} cannot be read: {reason}")


def no_models(resolved: "Resolved") -> ModelError:
    """The error of a command that needs a model where there is none."""
    return ModelError(f"no models in {searched(resolved)}", hint=NO_MODELS_HINT)


def searched(resolved: "Resolved") -> str:
    """Where models were looked for."""
    cache = resolved.hub_cache
    places = [*resolved.model_dirs, *([cache] if cache is not None and cache.is_dir() else [])]
    return ", ".join(str(place) for place in places)


def live_servers(
    resolved: "Resolved", cache_dir: Path
) -> tuple[list[tuple["RunningServer", Mapping[str, object]]], list[str]]:
    """The servers that run and use this cache, each with its status; and why others don't say."""
    from omlx.client import get_json, running_servers

    found: list[tuple[RunningServer, Mapping[str, object]]] = []
    problems: list[str] = []
    for server in running_servers(resolved.state_dir):
        if server.cache_dir is not None and server.cache_dir != cache_dir:
            continue
        try:
            status = get_json(
                server.address,
                "/admin/api/status",
                api_key=resolved.settings.server.api_key,
                certificate=server.certificate,
            )
        except ServerError as error:
            problems.append(error.message + (f" ({error.hint})" if error.hint else ""))
        else:
            found.append((server, status))
    return found, problems
