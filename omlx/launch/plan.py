"""What a client is told about the server, and what it then takes to start it.

Knows nothing about any one client, and changes no file.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from omlx.errors import OmlxError

PROVIDER = "omlx"
KEY_VARIABLE = "LOCAL_KEY"
NO_KEY = "local"
TIMEOUT_S = 3600  # a long prompt takes minutes on a small machine, and the server shows it lives

_CERTIFICATE_VARIABLES = ("NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE")
_MAX_FILE_CHARS = 10_000_000
_OUTPUT_PART = 8
_MAX_OUTPUT = 32_000
_COMPACT_PART = 0.84
Change = Callable[[str], str]  # a file's text to the new one; ValueError where it can't be made


@dataclass(frozen=True, slots=True)
class Setup:
    """The server and the model as a client shall see them.

    `base` is the server's root without /v1; `key` is None where the server asks for none; `folder`
    is there for the client's files while it runs; `args` is what the user gives the client; `home`
    is the user's home folder and `env` the user's variables; `certificate` is the file of the
    server's own, if it has one.
    """

    base: str
    model: str
    small_model: str
    window: int
    folder: Path
    home: Path
    key: str | None = field(default=None, repr=False)
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    certificate: Path | None = None

    @property
    def v1(self) -> str:
        """The base URL of the OpenAI API."""
        return f"{self.base}/v1"

    @property
    def sent_key(self) -> str:
        """What the client sends as its key; most refuse to send none."""
        return self.key or NO_KEY

    def key_or(self, reference: str) -> str:
        """What stands for the key in a file that stays: never the key itself."""
        return NO_KEY if self.key is None else reference

    def place(self, variable: str, *parts: str) -> Path:
        """A folder below the user's home, or the one that a variable of theirs names."""
        named = self.env.get(variable)
        return Path(named).expanduser() if named else self.home.joinpath(*parts)

    @property
    def max_output(self) -> int:
        """Tokens of the window that are left for one answer."""
        return max(1, min(_MAX_OUTPUT, self.window // _OUTPUT_PART))

    @property
    def compact_at(self) -> int:
        """Tokens after which a client shall sum up what was said."""
        return int(self.window * _COMPACT_PART)


@dataclass(frozen=True, slots=True)
class Mirror:
    """A folder below the client's that stands for `source`, one of the user's, by links.

    `name` is its place; `own` are the names in it that are no links; `folders` are made in `source`
    before, so that what a client puts there is kept.
    """

    source: Path
    name: str
    own: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """How a client is started: `args` follow the executable, the user's own included.

    `files` are written below the setup's folder before it, and go with it. `pid_files` name
    processes that it leaves behind, by patterns below the user's home.
    """

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    unset: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    mirrors: tuple[Mirror, ...] = ()
    pid_files: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Edit:
    """A change of one of the user's files."""

    path: Path
    change: Change


@dataclass(frozen=True, slots=True)
class Recipe:
    """What is known of a client: how it is started, and which files a lasting setup changes.

    An editor has no `plan`: the user starts it. `says` is what a user should know, and
    `key_variable` what has to hold the key for a lasting setup, where the server asks for one.
    """

    plan: Callable[[Setup], Plan] | None = None
    edits: Callable[[Setup], tuple[Edit, ...]] | None = None
    says: Callable[[Setup], str] | None = None
    key_variable: str = ""


def with_certificate(plan: Plan, setup: Setup) -> Plan:
    """A plan whose client takes the server's certificate, beside those of the system."""
    if setup.certificate is None:
        return plan
    trusted = {name: str(setup.certificate) for name in _CERTIFICATE_VARIABLES}
    return replace(plan, env={**trusted, **plan.env})


def compact(value: object) -> str:
    """A value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def pretty(value: object) -> str:
    """A value as JSON that people read."""
    return json.dumps(value, ensure_ascii=False, indent=2) + "\n"


def read_text(path: Path) -> str:
    """One of the user's files as text, empty where it is missing; OmlxError where it is no text."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return file.read(_MAX_FILE_CHARS)
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        raise OmlxError(f"{path} is no UTF-8 text") from None
    except OSError as error:
        raise OmlxError(f"{path} cannot be read: {error.strerror or error}") from None
