"""How servers of others are started, asked and ended: recipes, read from TOML.

Knows nothing about processes; a recipe is text until its places are filled.
"""

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import cast

from omlx.bench.failure import BenchError

_MAX_BYTES = 100_000
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,39}")
_PLACE = re.compile(r"\{([a-z_]+)\}")
_HINT = "docs/guide/compare.md describes recipes"
_READY_S, _STOP_S = 180.0, 30.0
PLACES = (
    "python", "bin", "model", "gguf", "home", "port", "window", "streams", "cores",
)  # fmt: skip


class Weights(StrEnum):
    """In what form a server wants the model: MLX's own folder, or a GGUF file in float32."""

    MLX = "mlx"
    GGUF = "gguf"


@dataclass(frozen=True, slots=True)
class Recipe:
    """A server as a command with places like {port}, and what is known of it.

    `ready` is a path that answers 200 once it serves, `request_model` what requests call the
    model, `body` further fields of each request. `facts` go into reports as they are. `package` is
    the PyPI package in its venv whose version counts. Times are in seconds.
    """

    name: str
    title: str
    command: tuple[str, ...]
    ready: str
    request_model: str
    weights: Weights = Weights.MLX
    package: str = ""
    venv: str = ""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    body: Mapping[str, object] = field(default_factory=dict[str, object])
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    ready_s: float = _READY_S
    stop_s: float = _STOP_S

    def filled(self, places: Mapping[str, str]) -> tuple[list[str], dict[str, str], str]:
        """Command, environment and the model's name in requests, with all places filled."""
        command = [fill(word, places) for word in self.command]
        env = {key: fill(value, places) for key, value in self.env.items()}
        return command, env, fill(self.request_model, places)


def fill(text: str, places: Mapping[str, str]) -> str:
    """The text with each {place} replaced; other braces stay as they are."""
    return _PLACE.sub(lambda found: places.get(found[1], found[0]), text)


def shipped() -> tuple[str, ...]:
    """The names of the recipes that come with omlx."""
    folder = resources.files("omlx.bench") / "peers"
    names = [entry.name for entry in folder.iterdir() if entry.name.endswith(".toml")]
    return tuple(sorted(name.removesuffix(".toml") for name in names))


def shipped_recipe(name: str) -> Recipe:
    """A recipe that comes with omlx; BenchError names those there are."""
    if name not in shipped():
        raise BenchError(
            f"there is no peer {name!r}",
            hint=f"known are {', '.join(shipped())}; --recipe FILE takes one of your own",
        )
    text = (resources.files("omlx.bench") / "peers" / f"{name}.toml").read_text()
    return parse_recipe(text, name=name, where=f"the recipe of {name}")


def load_recipe(path: Path) -> Recipe:
    """A recipe of the user's; its name is that of the file unless it says another."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise BenchError(f"{path} is too large for a recipe", hint=_HINT)
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
        raise BenchError(f"{path} can't be read: {reason}") from None
    return parse_recipe(text, name=path.stem.lower(), where=str(path))


def parse_recipe(text: str, *, name: str, where: str) -> Recipe:
    """Read and check a recipe; BenchError names the key that is wrong and what it must be."""
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BenchError(f"{where} is not valid TOML: {error}", hint=_HINT) from None
    return _Reader(raw, where).recipe(name)


class _Reader:
    """Checks each key of one recipe."""

    _KEYS = (
        "name", "title", "command", "ready", "request_model", "weights", "package", "venv",
        "env", "body", "facts", "ready_s", "stop_s",
    )  # fmt: skip

    def __init__(self, raw: Mapping[str, object], where: str) -> None:
        self._raw = raw
        self._where = where

    def recipe(self, default_name: str) -> Recipe:
        for key in self._raw:
            if key not in self._KEYS:
                near = difflib.get_close_matches(key, self._KEYS, 1)
                hint = f"did you mean {near[0]}?" if near else f"keys are {', '.join(self._KEYS)}"
                raise BenchError(f"{self._where}: {key} is no key of a recipe", hint=hint)
        name = self._text("name", default_name)
        if not _NAME.fullmatch(name):
            raise self._wrong("name", "up to 40 small letters, digits, dots and dashes", name)
        command = self._command()
        ready = self._text("ready", "/v1/models")
        if not ready.startswith("/"):
            raise self._wrong("ready", "a path such as /health", ready)
        weights = self._text("weights", Weights.MLX.value)
        if weights not in [*Weights]:
            raise self._wrong("weights", " or ".join(Weights), weights)
        made = Recipe(
            name=name,
            title=self._text("title", name),
            command=command,
            ready=ready,
            request_model=self._text("request_model", "{model}"),
            weights=Weights(weights),
            package=self._text("package", ""),
            venv=self._text("venv", ""),
            env=self._texts("env"),
            body=self._table("body"),
            facts=self._texts("facts"),
            ready_s=self._seconds("ready_s", _READY_S),
            stop_s=self._seconds("stop_s", _STOP_S),
        )
        self._check_places(made)
        return made

    def _command(self) -> tuple[str, ...]:
        raw = self._raw.get("command")
        words = cast(list[object], raw) if isinstance(raw, list) else []
        found = [word for word in words if isinstance(word, str) and "\0" not in word]
        if not found or len(found) != len(words):
            raise self._wrong(
                "command",
                'a list of texts, as ["server", "--port", "{port}"]',
                self._raw.get("command"),
            )
        if not any("{port}" in word for word in found):
            raise BenchError(
                f"{self._where}: command has no {{port}}",
                hint="the bench chooses a free port, which the command must hand to the server",
            )
        return tuple(found)

    def _check_places(self, recipe: Recipe) -> None:
        for text in (*recipe.command, *recipe.env.values(), recipe.request_model):
            for place in _PLACE.findall(text):
                if place not in PLACES:
                    raise BenchError(
                        f"{self._where}: {{{place}}} is no place of a recipe",
                        hint=f"places are {', '.join('{' + name + '}' for name in PLACES)}",
                    )

    def _text(self, key: str, default: str) -> str:
        value = self._raw.get(key, default)
        if not isinstance(value, str) or "\0" in value:
            raise self._wrong(key, "a text", value)
        return value

    def _seconds(self, key: str, default: float) -> float:
        value = self._raw.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 3600:
            raise self._wrong(key, "seconds, above 0 and at most 3600", value)
        return float(value)

    def _table(self, key: str) -> Mapping[str, object]:
        value = self._raw.get(key, {})
        if not isinstance(value, dict):
            raise self._wrong(key, "a table", value)
        return cast(Mapping[str, object], value)

    def _texts(self, key: str) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for name, value in self._table(key).items():
            if not isinstance(value, str) or "\0" in value:
                raise self._wrong(f"{key}.{name}", "a text", value)
            found[name] = value
        return found

    def _wrong(self, key: str, what: str, value: object) -> BenchError:
        shown = "is missing" if value is None else f"is {value!r}"
        return BenchError(f"{self._where}: {key} {shown}, but must be {what}", hint=_HINT)
