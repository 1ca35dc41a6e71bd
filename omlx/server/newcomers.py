"""Serves models that have come since the server started, such as those that were just fetched.

Knows nothing about how they came. For the loop's thread.
"""

from collections.abc import MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path

from omlx.errors import ModelError
from omlx.models.arch.known import Architectures
from omlx.models.fits import why_too_large
from omlx.models.locate import ModelEntry, discover
from omlx.models.names import Named
from omlx.server.context import EnginePool
from omlx.settings.build import ModelSettings, Resolved


class Newcomers:
    """Adds models to what a server serves; `settings` and `profiles` by name are mutated."""

    def __init__(
        self,
        resolved: Resolved,
        pool: EnginePool,
        settings: MutableMapping[str, ModelSettings],
        profiles: MutableMapping[str, Sequence[str]],
    ) -> None:
        self._resolved = resolved
        self._pool = pool
        self._settings = settings
        self._profiles = profiles

    def take(self, folder: str) -> str:
        """Serve the model in a folder, and say under which name; OmlxError.

        One that is served already stays what it is: its files are looked at when it is loaded.
        """
        path = Path(folder)
        known = {entry.path.resolve(): entry.id for entry in self._pool.models()}
        if path.resolve() in known:
            return known[path.resolve()]
        entry = self._named(_found(path))
        reason = why_too_large(entry, self._resolved.ceiling_bytes)
        if reason is not None:
            raise ModelError(reason)
        names = [*self._resolved.profiles_of(entry.id, entry.path)]
        for named in (Named(entry), *(Named(entry, name) for name in names)):
            self._settings[named.id] = self._resolved.for_model(
                entry.id, entry.path, profile=named.profile
            )
        self._profiles[entry.id] = names
        self._pool.add(entry)
        return entry.id

    def _named(self, entry: ModelEntry) -> ModelEntry:
        """Under its own name, or with that of its owner where another model has it."""
        taken = {one.id for one in self._pool.models()}
        for name in (entry.id, f"{entry.path.parent.name}/{entry.path.name}"):
            if name not in taken:
                return replace(entry, id=name)
        raise ModelError(f"another model is served as {entry.id!r}", hint="omlx restart names both")


def _found(path: Path) -> ModelEntry:
    found = discover([path], why_not=Architectures.installed().why_not)
    if not found.models:
        reason = found.problems[0].reason if found.problems else "there is no model in it"
        raise ModelError(f"{path}: {reason}")
    return found.models[0]
