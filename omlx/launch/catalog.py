"""The clients that are known, from profiles/clients: names, versions, how to install each.

Knows nothing about how one is set up or whether it is installed.
"""

import difflib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeVar, cast

from omlx.errors import SettingsError, UsageError

_MAX_FILE_BYTES = 100_000
_MAX_TOKENS = 10**7
_VERSION = re.compile(r"\d+(\.\d+)+")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")
T = TypeVar("T")
W = TypeVar("W", bound=StrEnum)
_EXECUTABLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Endpoint(StrEnum):
    """Which API a client speaks to the server."""

    MESSAGES = "messages"
    RESPONSES = "responses"
    CHAT = "chat"


class Kind(StrEnum):
    """An agent is started here; an editor only told how to reach the server."""

    AGENT = "agent"
    EDITOR = "editor"


@dataclass(frozen=True, slots=True)
class Client:
    """What is known of a client; `first_request_tokens` is the size of the first prompt it sends.

    It refuses windows below `least_window` itself; both are 0 where nobody knows. The first group
    of `version_pattern` is the version in what the executable prints.
    """

    name: str
    title: str
    kind: Kind
    endpoint: Endpoint
    first_request_tokens: int
    executables: tuple[str, ...] = ()
    version_args: tuple[str, ...] = ("--version",)
    version_pattern: str = r"(\d+\.\d+\.\d+)"
    least_version: str = "0.0"
    install: str = ""
    needs: str = ""
    least_window: int = 0

    @property
    def is_agent(self) -> bool:
        """Whether it can be started."""
        return self.kind is Kind.AGENT


def read_catalog(folder: Path) -> dict[str, Client]:
    """The clients by name, in the order of their names; SettingsError lists all that is wrong."""
    clients: dict[str, Client] = {}
    problems: list[str] = []
    for path in sorted(folder.glob("*.toml")):
        try:
            clients[path.stem] = _client(path)
        except _Invalid as invalid:
            problems.extend(f"{path}: {problem}" for problem in invalid.problems)
    if problems:
        raise SettingsError(problems, hint="these files come with omlx; install it again")
    return clients


def find_client(clients: Mapping[str, Client], name: str) -> Client:
    """A client by its name; UsageError says which there are."""
    client = clients.get(name)
    if client is not None:
        return client
    near = difflib.get_close_matches(name.lower(), _other_names(clients), n=1)
    known = _other_names(clients).get(near[0]) if near else None
    guess = f" (did you mean '{known}'?)" if known else ""
    raise UsageError(f"unknown client '{name}'{guess}", hint=f"there are: {', '.join(clients)}")


def _other_names(clients: Mapping[str, Client]) -> dict[str, str]:
    """The names that people may type, and the client each is for."""
    other = {exe: client.name for client in clients.values() for exe in client.executables}
    return {**other, **{name: name for name in clients}}


class _Invalid(Exception):
    def __init__(self, *problems: str) -> None:
        super().__init__(*problems)
        self.problems = problems


def _client(path: Path) -> Client:
    table = _read(path)
    taken = _Table(table)
    if not _NAME.fullmatch(path.stem):
        taken.problems.append(f"the file's name {path.stem!r} is no name of a client")
    kind = taken.one_of("kind", Kind, Kind.AGENT)
    is_agent = kind is Kind.AGENT
    client = Client(
        path.stem,
        taken.text("title"),
        kind,
        taken.one_of("endpoint", Endpoint, Endpoint.CHAT, is_required=True),
        taken.tokens("first_request_tokens", None if is_agent else 0),
        taken.texts("executables", () if not is_agent else None, _EXECUTABLE),
        taken.texts("version_args", ("--version",), None),
        taken.pattern("version_pattern", r"(\d+\.\d+\.\d+)"),
        taken.text("least_version", None if is_agent else "0.0", _VERSION),
        taken.text("install", None if is_agent else ""),
        taken.text("needs", ""),
        taken.tokens("least_window", 0),
    )
    taken.problems.extend(f"unknown key '{key}'" for key in table if key not in taken.known)
    if taken.problems:
        raise _Invalid(*taken.problems)
    return client


def _read(path: Path) -> dict[str, object]:
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES + 1)
        if len(raw) > _MAX_FILE_BYTES:
            raise _Invalid(f"has more than {_MAX_FILE_BYTES:,} bytes")
        return cast(dict[str, object], tomllib.loads(raw.decode("utf-8")))
    except OSError as error:
        raise _Invalid(f"cannot be read: {error.strerror or error}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise _Invalid(f"is not TOML: {error}") from None


class _Table:
    """Takes typed values out of a table and collects what is wrong with them."""

    def __init__(self, table: Mapping[str, object]) -> None:
        self._table = table
        self.known: set[str] = set()
        self.problems: list[str] = []

    def text(
        self, key: str, default: str | None = None, form: re.Pattern[str] | None = None
    ) -> str:
        """A text on one line."""
        value = self._take(key, default)
        if not isinstance(value, str) or not _is_line(value) or (default is None and not value):
            return self._bad(key, "a text on one line", "")
        if form is not None and not form.fullmatch(value):
            return self._bad(key, f"like {form.pattern}", "")
        return value

    def texts(
        self, key: str, default: tuple[str, ...] | None, form: re.Pattern[str] | None
    ) -> tuple[str, ...]:
        """A list of texts; one without a default may not be empty."""
        value = self._take(key, default)
        items = list(cast(list[object], value)) if isinstance(value, list | tuple) else [None]
        texts = [item for item in items if isinstance(item, str) and _is_line(item)]
        if len(texts) != len(items) or (default is None and not items):
            return self._bad(key, "a list of texts", ())
        if form is not None and not all(form.fullmatch(text) for text in texts):
            return self._bad(key, f"texts like {form.pattern}", ())
        return tuple(texts)

    def tokens(self, key: str, default: int | None) -> int:
        """A number of tokens."""
        value = self._take(key, default)
        if value == 0 == default:
            return 0
        if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _MAX_TOKENS:
            return self._bad(key, f"a whole number from 1 to {_MAX_TOKENS:,}", 1)
        return value

    def pattern(self, key: str, default: str) -> str:
        """A regular expression with one group."""
        text = self.text(key, default)
        try:
            num_groups = re.compile(text).groups
        except (re.error, RecursionError):
            num_groups = 0
        return text if num_groups == 1 else self._bad(key, "a pattern with one group", default)

    def one_of(self, key: str, words: type[W], default: W, *, is_required: bool = False) -> W:
        """One of the words of an enumeration."""
        value = self._take(key, None if is_required else default.value)
        for word in words:
            if word.value == value:
                return word
        return self._bad(key, f"one of {', '.join(word.value for word in words)}", default)

    def _take(self, key: str, default: object) -> object:
        self.known.add(key)
        return self._table.get(key, default)

    def _bad(self, key: str, expected: str, instead: T) -> T:
        what = "is missing, it must be" if key not in self._table else "must be"
        self.problems.append(f"{key} {what} {expected}")
        return instead


def _is_line(text: str) -> bool:
    return text.isprintable() and len(text) <= 500
