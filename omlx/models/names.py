"""What names mean: models by id, owner and name, "demo", their profiles, and aliases.

Knows nothing about engines or clients.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from omlx.errors import ModelError
from omlx.models.locate import ModelEntry, resolve
from omlx.settings.build import Resolved

SEPARATOR = ":"


@dataclass(frozen=True, slots=True)
class Named:
    """What a name stands for: a model, and the profile of it if one is meant."""

    entry: ModelEntry
    profile: str | None = None

    @property
    def id(self) -> str:
        """The name by which it is listed."""
        if self.profile is None:
            return self.entry.id
        return f"{self.entry.id}{SEPARATOR}{self.profile}"


def names_of(entries: Iterable[ModelEntry], resolved: Resolved) -> "Names":
    """The names that models have under these settings; SettingsError."""
    entries = tuple(entries)
    profiles = {entry.id: [*resolved.profiles_of(entry.id, entry.path)] for entry in entries}
    return Names(entries, profiles=profiles, aliases=dict(resolved.settings.models.alias))


class Names:
    """All names that a server answers to."""

    def __init__(
        self,
        entries: Iterable[ModelEntry],
        *,
        profiles: Mapping[str, Sequence[str]],
        aliases: Mapping[str, str],
    ) -> None:
        self._entries = tuple(entries)
        self._profiles = profiles
        self._aliases = aliases

    @property
    def profiles(self) -> Mapping[str, Sequence[str]]:
        """The profiles of each model by its id."""
        return self._profiles

    def find(self, name: str) -> Named | None:
        """What a name means; None where nothing has it. Ids come before aliases."""
        found = self._model(name)
        if found is not None:
            return found
        seen = {name}
        while (name := self._aliases.get(name, "")) and name not in seen:
            seen.add(name)
            if (found := self._model(name)) is not None:
                return found
        return None

    def listed(self) -> list[tuple[str, Named]]:
        """Every model, each profile after its model, and then the aliases, with their meaning."""
        all_of_them: list[tuple[str, Named]] = []
        for entry in self._entries:
            all_of_them.append((entry.id, Named(entry)))
            for profile in self._profiles.get(entry.id, ()):
                named = Named(entry, profile)
                all_of_them.append((named.id, named))
        known = {name for name, _ in all_of_them}
        for alias in self._aliases:
            if alias not in known and (named := self.find(alias)) is not None:
                all_of_them.append((alias, named))
        return all_of_them

    def close_to(self, name: str) -> str | None:
        """The name that somebody may have meant."""
        known = [listed for listed, _ in self.listed()]
        lower = {one.lower(): one for one in known}
        if found := lower.get(name.lower()):
            return found
        close = difflib.get_close_matches(name.lower(), lower, n=1, cutoff=0.6)
        return lower[close[0]] if close else None

    def check(self) -> list[str]:
        """What is odd about the aliases, as sentences; ModelError where they go in a circle."""
        odd: list[str] = []
        for alias in self._aliases:
            model = self._model(alias)
            if model is not None:
                odd.append(
                    f"models.alias: {alias!r} is ignored, since a model has that name "
                    f"({model.entry.path})"
                )
            elif self.find(alias) is None:
                odd.append(f"models.alias: {self._why_not(alias)}")
        return odd

    def why_not(self, name: str) -> str:
        """Why a name means nothing, with what may have been meant."""
        if name in self._aliases:
            return self._why_not(name)
        close = self.close_to(name)
        return f"did you mean {close!r}?" if close else ""

    def _model(self, name: str) -> Named | None:
        entry = resolve(self._entries, name)
        if entry is not None:
            return Named(entry)
        base, found, profile = name.rpartition(SEPARATOR)
        if not found:
            return None
        entry = resolve(self._entries, base)
        if entry is not None and profile in self._profiles.get(entry.id, ()):
            return Named(entry, profile)
        # A profile of what an alias means: fast:thinking.
        target = self._aliases.get(base)
        if target is None or target == base or SEPARATOR in target:
            return None
        entry = resolve(self._entries, target)
        if entry is not None and profile in self._profiles.get(entry.id, ()):
            return Named(entry, profile)
        return None

    def _why_not(self, alias: str) -> str:
        """What is wrong with an alias that means no model; ModelError for a circle."""
        way = [alias]
        target = self._aliases[alias]
        while target in self._aliases and target not in way:
            way.append(target)
            target = self._aliases[target]
        if target in way:
            raise ModelError(
                f"models.alias goes in a circle: {' = '.join([*way, target])}",
                hint="let one of them name a model",
            )
        close = self.close_to(target)
        meant = f" (did you mean {close!r}?)" if close else ""
        return f"{way[-1]!r} stands for {target!r}, which is no model here{meant}"
