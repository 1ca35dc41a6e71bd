"""Settings from all layers: which value wins, who set it, and what it shadowed.

Knows nothing about what a setting does; problems of all layers are reported at once.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from omlx.errors import SettingsError
from omlx.settings import places
from omlx.settings.engines import Engine, Scheduler
from omlx.settings.layers import (
    Entry,
    Layer,
    Origin,
    OriginKind,
    from_cli,
    from_env,
    from_toml,
    suggest,
)
from omlx.settings.leaf import leaves, with_values
from omlx.settings.machine import Machine
from omlx.settings.prompts import Agent, Prompt
from omlx.settings.schema import Cache, Parser, Sampling, Settings
from omlx.settings.shipped import (
    family_layers,
    folder_layer,
    generation_layer,
    matches,
    matching,
)

_NOTHING: Mapping[str, object] = MappingProxyType({})
_PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HINT = "omlx serve --help lists every setting"


@dataclass(frozen=True, slots=True)
class Shadowed:
    """A value that lost to one of a stronger layer."""

    value: object
    origin: Origin


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """What holds for one model; of `cache`, `engine`, `scheduler` only what may differ by model."""

    sampling: Sampling
    context_window: int | None
    origins: Mapping[str, Origin]
    shadowed: Mapping[str, tuple[Shadowed, ...]]
    warnings: tuple[str, ...] = ()
    cache: Cache = field(default_factory=Cache)
    engine: Engine = field(default_factory=Engine)
    thinking: bool | None = None
    scheduler: Scheduler = field(default_factory=Scheduler)
    parser: Parser = field(default_factory=Parser)
    prompt: Prompt = field(default_factory=Prompt)
    agent: Agent = field(default_factory=Agent)


@dataclass(frozen=True, slots=True)
class Resolved:
    """The settings of this run, by value and by origin; all paths are absolute."""

    settings: Settings
    origins: Mapping[str, Origin]
    shadowed: Mapping[str, tuple[Shadowed, ...]]
    warnings: tuple[str, ...]
    home: Path
    cwd: Path
    profile: str | None
    machine: Machine | None
    hub_cache_dir: Path
    _given: tuple[Layer, ...]
    _files: tuple[Layer, ...]
    _families: tuple[Layer, ...]

    @property
    def model_dirs(self) -> tuple[Path, ...]:
        """The folders of models: those set, else models/ of the user's folder."""
        return self.settings.models.dir or (self.home / "models",)

    @property
    def ceiling_bytes(self) -> int | None:
        """What models and caches may take together on this machine; None if it is not known."""
        if self.machine is None:
            return None
        return self.machine.ceiling_bytes(self.settings.engine.memory_limit)

    @property
    def hub_cache(self) -> Path | None:
        """The Hugging Face cache, if its models are to be served."""
        wish = self.settings.models.hub_cache
        is_read = not self.settings.models.dir if wish == "auto" else wish
        return self.hub_cache_dir if is_read else None

    @property
    def cache_dir(self) -> Path:
        """The folder of the disk tier."""
        return self.settings.cache.dir or self.home / "cache"

    @property
    def state_dir(self) -> Path:
        """The folder of state files of running servers."""
        return places.state_dir(self.home)

    @property
    def keys_path(self) -> Path:
        """The file of the API keys that clients may send."""
        return places.keys_path(self.home)

    @property
    def journal_path(self) -> Path:
        """The file that keeps a row of figures of each request."""
        return places.journal_path(self.home)

    @property
    def kernels_path(self) -> Path:
        """The file of the verdicts on kernels."""
        return places.kernels_path(self.home)

    @property
    def prompts_path(self) -> Path:
        """The file that keeps what makes prompts stable."""
        return places.prompts_path(self.home)

    def profiles_of(self, model_id: str, model_dir: Path | None) -> Mapping[str, Origin]:
        """The names of a model's profiles, and where each is written; SettingsError."""
        shipped = self._own(model_dir)
        _raise_problems(shipped)
        layers = (*self._files, *shipped, *self._families)
        found = [p for layer in layers for p in layer.profiles if matches(p.glob, model_id)]
        return {p.name: p.origin for p in reversed(found)}

    def for_model(
        self, model_id: str, model_dir: Path | None, *, profile: str | None = None
    ) -> ModelSettings:
        """The settings of one model, or of a profile of it, whose values come before all others.

        SettingsError if the file beside its weights is wrong.
        """
        layers = self._shipped(model_id, model_dir)
        _raise_problems(layers)
        entries: list[Entry] = []
        if profile is not None:
            for layer in self._files:
                entries += matching(layer.entries, model_id, profile)
            for layer in self._own(model_dir):
                entries += [e for e in layer.entries if e.profile == profile]
            for layer in self._families:
                entries += matching(layer.entries, model_id, profile)
        entries += [e for layer in self._given for e in layer.entries]
        for layer in self._files:
            entries += matching(layer.entries, model_id)
        entries += [e for layer in self._files for e in layer.entries if e.glob is None]
        entries += [e for layer in layers for e in layer.entries if e.profile is None]
        paths = [path for path, leaf in leaves().items() if leaf.option.per_model]
        chosen = _choose((entry for entry in entries if entry.path in paths), paths)
        settings: Settings = with_values(Settings(), chosen.values)
        return ModelSettings(
            settings.sampling,
            settings.context_window,
            chosen.origins,
            chosen.shadowed,
            tuple(warning for layer in layers for warning in layer.warnings),
            settings.cache,
            settings.engine,
            thinking=settings.thinking,
            scheduler=settings.scheduler,
            parser=settings.parser,
            prompt=settings.prompt,
            agent=settings.agent,
        )

    def _shipped(self, model_id: str, model_dir: Path | None) -> list[Layer]:
        """The layers below the user's: the model's own file, its family, what its makers say."""
        family = [Layer(tuple(matching(layer.entries, model_id))) for layer in self._families]
        if model_dir is None:
            return family
        return [*self._own(model_dir), *family, generation_layer(model_dir)]

    def _own(self, model_dir: Path | None) -> list[Layer]:
        """The file beside a model's weights, unless it is read as that of the current folder."""
        if model_dir is None or model_dir.absolute() == self.cwd:
            return []
        return [folder_layer(model_dir)]


@dataclass(frozen=True, slots=True)
class _Chosen:
    values: Mapping[str, object]
    origins: Mapping[str, Origin]
    shadowed: Mapping[str, tuple[Shadowed, ...]]


def load(
    *,
    cli: Mapping[str, object] = _NOTHING,
    env: Mapping[str, str],
    cwd: Path,
    profile: str | None = None,
    profiles: Path | None = None,
    machine: Machine | None = None,
) -> Resolved:
    """Read all layers; SettingsError lists every problem. `profiles` is for those with omlx.

    The hardware profile of `machine` holds below all files of the user's, unless another one is
    asked for by name.
    """
    try:
        home = places.home(env)
    except RuntimeError as error:
        raise SettingsError([f"environment: OMLX_HOME: {error}"]) from None
    cwd = cwd.absolute()
    profiles = places.data_dir("profiles") if profiles is None else profiles
    name = env.get("OMLX_PROFILE") or None if profile is None else profile
    asked_by = "environment: OMLX_PROFILE" if profile is None else "--profile"
    given = (from_cli(cli, cwd), from_env(env, cwd))
    files = (
        _profile_layer(name, home, profiles, asked_by=asked_by),
        from_toml(cwd / "omlx.toml", shown="omlx.toml"),
        from_toml(home / "config.toml", shown=str(home / "config.toml")),
        _hardware_layer(machine, name, profiles),
        from_toml(profiles / "base.toml", shown=str(profiles / "base.toml")),
    )
    families = tuple(family_layers(profiles))
    layers = (*given, *files, *families)
    _raise_problems([*reversed(files), *families, *reversed(given)])
    general = (e for layer in (*given, *files) for e in layer.entries if e.glob is None)
    chosen = _choose(general, leaves())
    return Resolved(
        settings=with_values(Settings(), chosen.values),
        origins=chosen.origins,
        shadowed=chosen.shadowed,
        warnings=tuple(warning for layer in layers for warning in layer.warnings),
        home=home,
        cwd=cwd,
        profile=name,
        machine=machine,
        hub_cache_dir=places.hub_cache(env),
        _given=given,
        _files=files,
        _families=families,
    )


def known_profiles(home: Path, profiles: Path) -> list[str]:
    """The names that --profile accepts."""
    folders = places.profile_dirs(home, profiles)
    names = {path.stem for folder in folders for path in folder.glob("*.toml")}
    return sorted(names - {"base"})


def _hardware_layer(machine: Machine | None, profile: str | None, profiles: Path) -> Layer:
    """What comes with omlx for a machine like this one."""
    folder = profiles / "hardware"
    if machine is None or (profile and (folder / f"{profile}.toml").is_file()):
        return Layer()
    path = folder / f"{machine.profile}.toml"
    return from_toml(path, shown=str(path), kind=OriginKind.PROFILE)


def _profile_layer(name: str | None, home: Path, profiles: Path, *, asked_by: str) -> Layer:
    if name is None:
        return Layer()
    if _PROFILE_NAME.fullmatch(name):
        for folder in places.profile_dirs(home, profiles):
            path = folder / f"{name}.toml"
            if _may_exist(path):
                return from_toml(path, shown=str(path), kind=OriginKind.PROFILE)
    known = known_profiles(home, profiles)
    listed = f"; known: {', '.join(known)}" if known else f"; none in {places.profiles_dir(home)}"
    hint = suggest(name, known) or listed
    return Layer(problems=(f"{asked_by}: unknown profile '{name}'{hint}",))


def _may_exist(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return True  # reading it will say why


def _raise_problems(layers: Sequence[Layer]) -> None:
    problems = [problem for layer in layers for problem in layer.problems]
    if problems:
        raise SettingsError(problems, hint=_HINT)


def _choose(entries: Iterable[Entry], paths: Iterable[str]) -> _Chosen:
    """The first entry of each path wins; the order is from strong to weak."""
    values: dict[str, object] = {}
    origins: dict[str, Origin] = {}
    shadowed: dict[str, tuple[Shadowed, ...]] = {}
    for entry in entries:
        if entry.path in values:
            lost = Shadowed(entry.value, entry.origin)
            shadowed[entry.path] = (*shadowed.get(entry.path, ()), lost)
        else:
            values[entry.path] = entry.value
            origins[entry.path] = entry.origin
    default = Origin(OriginKind.DEFAULT, "default")
    ordered = {path: origins.get(path, default) for path in paths}
    return _Chosen(values, MappingProxyType(ordered), MappingProxyType(shadowed))
