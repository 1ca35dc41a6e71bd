"""The prompts to warm that settings name: files of request bodies, checked before anything starts.

Knows nothing about engines, or about which models there are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from omlx.errors import SettingsError
from omlx.server.either import either_dialect
from omlx.server.errors import ApiError
from omlx.server.generation import Dialect
from omlx.settings.build import Resolved

_LINES = (".jsonl", ".ndjson")
_MOST_BODIES = 1000
_HINT = "a file holds the JSON body of a request; one that ends in .jsonl has a body on each line"


@dataclass(frozen=True, slots=True)
class WarmPrompt:
    """One body, and the model that it names; `where` is its file, and its line among several."""

    where: str
    model: str
    dialect: Dialect
    body: bytes


def read_warm_prompts(resolved: Resolved) -> list[WarmPrompt]:
    """All bodies in the files that settings name; SettingsError lists every one that is wrong."""
    cache = resolved.settings.cache
    prompts: list[WarmPrompt] = []
    problems: list[str] = []
    for path in cache.warm_prompts:
        try:
            prompts += _read(path, resolved.settings.server.max_body, problems)
        except OSError as error:
            problems.append(f"{path}: cannot be read: {error.strerror or error}")
    if len(prompts) > _MOST_BODIES:
        problems.append(f"{len(prompts)} prompts to warm are too many; at most {_MOST_BODIES}")
    if problems:
        place = resolved.origins["cache.warm_prompts"].where
        named = [f"{place}: 'cache.warm_prompts': {problem}" for problem in problems]
        raise SettingsError(named, hint=_HINT)
    return prompts


def _read(path: Path, max_bytes: int, problems: list[str]) -> list[WarmPrompt]:
    """The bodies of one file; what is wrong with it is added to `problems`. OSError."""
    if path.exists() and not path.is_file():
        raise OSError(0, "not a file")
    with path.open("rb") as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise OSError(0, f"larger than server.max_body, {max_bytes} bytes")
    found: list[WarmPrompt] = []
    for where, body in _bodies(path, data):
        try:
            found.append(_prompt(where, body))
        except ApiError as error:
            problems.append(f"{where}: {error.message}")
        except ValueError as error:
            problems.append(f"{where}: not valid JSON: {error}")
    if not found and not problems:
        problems.append(f"{path}: holds no request body")
    return found


def _bodies(path: Path, data: bytes) -> Iterator[tuple[str, bytes]]:
    if path.suffix not in _LINES:
        yield str(path), data
        return
    for number, line in enumerate(data.splitlines(), 1):
        if line.strip():
            yield f"{path}:{number}", line


def _prompt(where: str, data: bytes) -> WarmPrompt:
    """A body as a prompt; ApiError names the field that is wrong, ValueError the place in it."""
    dialect, body = either_dialect(data.removeprefix(b"\xef\xbb\xbf"))
    return WarmPrompt(where, dialect.decode(body).model, dialect, body)
