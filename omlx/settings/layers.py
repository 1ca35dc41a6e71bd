"""The layers that settings come from: command line, environment, TOML files, each as entries.

Knows nothing about which layer wins.
"""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

from omlx.settings.leaf import Leaf, groups, leaves
from omlx.settings.locate import line_of, locate
from omlx.settings.value import convert

SPECIAL_VARIABLES = ("OMLX_HOME", "OMLX_PROFILE")
_PROFILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAX_FILE_BYTES = 1_000_000
_SYNTAX_PLACE = re.compile(r" \(at (?:line (\d+), column (\d+)|end of document)\)$")


class OriginKind(StrEnum):
    """Which kind of layer set a value."""

    CLI = "cli"
    ENV = "env"
    FILE = "file"
    PROFILE = "profile"
    MODEL = "model"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Origin:
    """Who set a value: a flag, a variable, or a file and line."""

    kind: OriginKind
    where: str

    def __str__(self) -> str:
        return self.where if self.kind is OriginKind.DEFAULT else f"{self.kind} {self.where}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One value of one layer; `glob` names the models that it is for, None is all.

    `profile` is set where it holds only for requests that name that profile of such a model.
    """

    path: str
    value: object
    origin: Origin
    glob: str | None = None
    profile: str | None = None


@dataclass(frozen=True, slots=True)
class Profile:
    """A profile of the models that a pattern matches, and where it is written."""

    glob: str
    name: str
    origin: Origin


@dataclass(frozen=True, slots=True)
class Layer:
    """What one place says; `problems` are sentences that begin with the place."""

    entries: tuple[Entry, ...] = ()
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    profiles: tuple[Profile, ...] = ()


class Scope(StrEnum):
    """What a TOML file may set."""

    ALL = "all settings and tables of models"
    TABLES = "tables of models only"
    ONE_MODEL = "the settings of the model beside it"


def suggest(word: str, known: Iterable[str]) -> str:
    """The end of a message: " (did you mean 'x'?)", or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f" (did you mean '{close[0]}'?)" if close else ""


def from_cli(values: Mapping[str, object], cwd: Path) -> Layer:
    """The options given on the command line, by path; None and () are options not given."""
    entries: list[Entry] = []
    problems: list[str] = []
    for path, value in values.items():
        if value is None or value == ():
            continue
        leaf = leaves().get(path)
        if leaf is None:
            problems.append(f"command line: unknown setting '{path}'{suggest(path, leaves())}")
            continue
        try:
            typed = convert(leaf, value, base=cwd, from_text=True)
        except ValueError as error:
            problems.append(f"{leaf.flag}: {error}")
        else:
            entries.append(Entry(path, typed, Origin(OriginKind.CLI, leaf.flag)))
    return Layer(tuple(entries), tuple(problems))


def from_env(env: Mapping[str, str], cwd: Path) -> Layer:
    """The OMLX_* variables; an empty one counts as not set, an unknown one only warns."""
    by_name = {leaf.env: leaf for leaf in leaves().values()}
    known = (*by_name, *SPECIAL_VARIABLES)
    entries: list[Entry] = []
    problems: list[str] = []
    warnings: list[str] = []
    for name in sorted(env):
        if not name.startswith("OMLX_") or name in SPECIAL_VARIABLES or env[name] == "":
            continue
        if name not in by_name:
            warnings.append(f"environment: unknown variable {name}{suggest(name, known)}")
            continue
        leaf = by_name[name]
        try:
            typed = convert(leaf, env[name], base=cwd, from_text=True)
        except ValueError as error:
            problems.append(f"environment: {name}: {error}")
        else:
            entries.append(Entry(leaf.path, typed, Origin(OriginKind.ENV, name)))
    return Layer(tuple(entries), tuple(problems), tuple(warnings))


def from_toml(
    path: Path, *, shown: str, kind: OriginKind = OriginKind.FILE, scope: Scope = Scope.ALL
) -> Layer:
    """A TOML file; one that is missing says nothing."""
    try:
        text = _read(path)
    except FileNotFoundError:
        return Layer()
    except UnicodeDecodeError as error:
        return Layer(problems=(f"{shown}: not UTF-8 text (byte {error.start})",))
    except OSError as error:
        return Layer(problems=(f"{shown}: cannot be read: {error.strerror or error}",))
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        return Layer(problems=(_syntax_problem(shown, error),))
    reader = _TomlReader(path, shown=shown, kind=kind, text=text)
    reader.read(data, scope)
    return Layer(tuple(reader.entries), tuple(reader.problems), (), tuple(reader.profiles))


def _read(path: Path) -> str:
    if path.exists() and not path.is_file():
        raise OSError(0, "not a file")
    with path.open("rb") as file:
        data = file.read(_MAX_FILE_BYTES + 1)
    if len(data) > _MAX_FILE_BYTES:
        raise OSError(0, "too large for a settings file")
    return data.decode("utf-8-sig")


def _syntax_problem(shown: str, error: Exception) -> str:
    if isinstance(error, RecursionError):
        return f"{shown}: not valid TOML: nested too deeply"
    message = str(error)
    place = _SYNTAX_PLACE.search(message)
    if place is None:
        return f"{shown}: not valid TOML: {message}"
    message = message[: place.start()]
    if place[1] is None:
        return f"{shown}: not valid TOML: {message} (at the end)"
    return f"{shown}:{place[1]}: not valid TOML: {message} (column {place[2]})"


class _TomlReader:
    """Turns the tables of one file into entries and problems."""

    def __init__(self, path: Path, *, shown: str, kind: OriginKind, text: str) -> None:
        self._base = path.parent
        self._shown = shown
        self._kind = kind
        self._lines = locate(text)
        self.entries: list[Entry] = []
        self.problems: list[str] = []
        self.profiles: list[Profile] = []

    def read(self, data: Mapping[str, Any], scope: Scope) -> None:
        """Read the whole file (mutates)."""
        for key, value in data.items():
            if key == "model" and scope is not Scope.ONE_MODEL:
                self._read_models(value)
            elif key == "profile" and scope is Scope.ONE_MODEL:
                self._read_profiles((), value)
            elif scope is Scope.TABLES:
                self._problem((key,), f"'{key}' is not a table of a model, as [model.\"name\"] is")
            else:
                self._read_key((), key, value, is_model=scope is Scope.ONE_MODEL)

    def _read_models(self, models: object) -> None:
        if not isinstance(models, dict):
            self._problem(("model",), "'model' must be a table such as [model.\"name\"]")
            return
        for glob, table in cast(dict[str, object], models).items():
            at = ("model", glob)
            if not isinstance(table, dict):
                self._problem(at, f'{_dotted(at)} must be a table such as [model."name"]')
                continue
            for key, value in cast(dict[str, object], table).items():
                if key == "profile":
                    self._read_profiles(at, value)
                else:
                    self._read_key(at, key, value, is_model=True)

    def _read_profiles(self, at: tuple[str, ...], profiles: object) -> None:
        at = (*at, "profile")
        if not isinstance(profiles, dict):
            self._problem(at, f'{_dotted(at)} must be a table such as [model."name".profile.fast]')
            return
        for name, table in cast(dict[str, object], profiles).items():
            here = (*at, name)
            if not isinstance(table, dict):
                self._problem(here, f"{_dotted(here)} must be a table of settings")
            elif not _PROFILE_NAME.fullmatch(name):
                self._problem(
                    here, f"{_dotted(here)}: a profile's name has letters, digits and . _ - only"
                )
            else:
                origin = Origin(self._kind, self._place(here))
                glob = at[1] if at[0] == "model" else "*"
                self.profiles.append(Profile(glob, name, origin))
                for key, value in cast(dict[str, object], table).items():
                    self._read_key(here, key, value, is_model=True)

    def _read_key(
        self, at: tuple[str, ...], key: str, value: object, *, is_model: bool, group: str = ""
    ) -> None:
        path = f"{group}.{key}" if group else key
        leaf = leaves().get(path)
        if leaf is not None and is_model and not leaf.option.per_model:
            self._problem((*at, key), f"'{path}' cannot be set for one model")
        elif leaf is not None:
            self._add((*at, key), leaf, value)
        elif not group and key in groups():
            if not isinstance(value, dict):
                self._problem((*at, key), f"{_dotted((*at, key))} must be a table")
                return
            for inner, item in cast(dict[str, object], value).items():
                self._read_key((*at, key), inner, item, is_model=is_model, group=key)
        else:
            hint = _hint(group, key, value, is_model=is_model)
            self._problem((*at, key), f"unknown key {_dotted((*at, key))}{hint}")

    def _add(self, at: tuple[str, ...], leaf: Leaf, value: object) -> None:
        try:
            typed = convert(leaf, value, base=self._base)
        except ValueError as error:
            self._problem(at, f"{_dotted(at)}: {error}")
            return
        origin = Origin(self._kind, self._place(at))
        glob = at[1] if at[0] == "model" else None
        inside = at if glob is None else at[2:]
        profile = inside[1] if inside[0] == "profile" else None
        self.entries.append(Entry(leaf.path, typed, origin, glob, profile))

    def _place(self, at: tuple[str, ...]) -> str:
        line = line_of(self._lines, at)
        return self._shown if line is None else f"{self._shown}:{line}"

    def _problem(self, at: tuple[str, ...], message: str) -> None:
        self.problems.append(f"{self._place(at)}: {message}")


def _dotted(at: tuple[str, ...]) -> str:
    parts = (part if re.fullmatch(r"[A-Za-z0-9_-]+", part) else f'"{part}"' for part in at)
    return f"'{'.'.join(parts)}'"


def _hint(group: str, key: str, value: object, *, is_model: bool) -> str:
    """What an unknown key may have meant: a name of its table, else one of another table."""
    allowed = [leaf for leaf in leaves().values() if leaf.option.per_model or not is_model]
    here = [leaf.key for leaf in allowed if leaf.group == group]
    if not group:
        here += dict.fromkeys(leaf.group for leaf in allowed if leaf.group)
        here += ["profile"] if is_model else ["model"]
    if group == "models" and isinstance(value, dict):
        return f" (did you mean '[model.\"{key}\"]'?)"
    elsewhere = {leaf.key: leaf.path for leaf in allowed if leaf.group != group}
    if key not in elsewhere and (found := suggest(key, here)):
        return found
    if close := difflib.get_close_matches(key, elsewhere, n=1):
        return f" (did you mean '{elsewhere[close[0]]}'?)"
    return f"; known: {', '.join(here)}" if here else ""
