"""API keys as a file keeps them: names, salted hashes, scopes, limits; never the keys themselves.

Knows nothing about requests or how limits are kept to.

A key is 256 random bits, so there is nothing to guess: one SHA-256 over a salt of its own and the
key is enough. A slow hash, as passwords need it, would only cost every request the time.
"""

import base64
import fcntl
import hashlib
import hmac
import os
import re
import secrets
import stat
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar, cast

from omlx.errors import SettingsError
from omlx.settings.replacing import replace_text

MARK = "omlx-"
PREFIX_CHARS = 6
_KEY_BYTES = 32
_SALT_BYTES = 16
_HASH_BYTES = 32
_MAX_FILE_BYTES = 1_000_000
_MAX_LIMIT = 10**9
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HEAD = "# Written by omlx key. Only hashes of keys are in here; a lost key can't be told again.\n"
E = TypeVar("E", bound=Enum)


class Scope(Enum):
    """What a key opens: the models, or the server's own affairs, too."""

    INFERENCE = "inference"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a key may use; None is no limit. Tokens are those of prompts and answers together."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent: int | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """One key, as far as it is kept: `prefix` is what people know it by."""

    name: str
    prefix: str
    salt: bytes = field(repr=False)
    digest: bytes = field(repr=False)
    scope: Scope = Scope.INFERENCE
    limits: Limits = field(default_factory=Limits)
    created: datetime = datetime.fromtimestamp(0, UTC)
    expires: datetime | None = None

    def is_of(self, sent: bytes) -> bool:
        """Whether this is the key that was sent; takes the same time whatever that is."""
        return hmac.compare_digest(_digest(self.salt, sent), self.digest)

    def hashed(self, sent: bytes) -> "Key":
        """The same for another text that clients send."""
        return replace(self, digest=_digest(self.salt, sent))

    def has_expired(self, now: datetime) -> bool:
        """Whether it is of no use any more."""
        return self.expires is not None and now >= self.expires

    def shown(self, now: datetime) -> dict[str, object]:
        """What may be told of it, as plain values."""
        return {
            "name": self.name,
            "prefix": self.prefix,
            "scope": self.scope.value,
            "requests_per_minute": self.limits.requests_per_minute,
            "tokens_per_minute": self.limits.tokens_per_minute,
            "concurrent": self.limits.concurrent,
            "created": self.created.isoformat(timespec="seconds"),
            "expires": self.expires.isoformat(timespec="seconds") if self.expires else None,
            "has_expired": self.has_expired(now),
        }


def new_key(
    name: str,
    *,
    now: datetime,
    scope: Scope = Scope.INFERENCE,
    limits: Limits | None = None,
    expires: datetime | None = None,
) -> tuple[Key, str]:
    """A key that nobody has had before, and what clients send; ValueError for a bad name."""
    check_name(name)
    text = base64.urlsafe_b64encode(secrets.token_bytes(_KEY_BYTES)).rstrip(b"=").decode()
    sent, salt = MARK + text, secrets.token_bytes(_SALT_BYTES)
    key = Key(
        name,
        text[:PREFIX_CHARS],
        salt,
        _digest(salt, sent.encode()),
        scope,
        limits or Limits(),
        now.replace(microsecond=0),
        expires,
    )
    return key, sent


def check_name(name: str) -> None:
    """ValueError where a key can't be called so."""
    if not _NAME.fullmatch(name):
        raise ValueError("a key's name is 1 to 64 letters, digits and . _ -")


def check_limit(value: int | None) -> int | None:
    """A limit as it is; ValueError where it is none."""
    if value is not None and not 1 <= value <= _MAX_LIMIT:
        raise ValueError(f"a limit is a number from 1 to {_MAX_LIMIT}")
    return value


def _digest(salt: bytes, sent: bytes) -> bytes:
    return hashlib.sha256(b"omlx key\0" + salt + sent).digest()


def read_keys(path: Path) -> tuple[Key, ...]:
    """The keys of a file, none where it is missing; SettingsError says what is wrong with it.

    A file that others can read or change is not believed.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise SettingsError([f"{path}: cannot be read: {error.strerror or error}"]) from None
    try:
        _check_file(path, os.fstat(handle))
        data = os.read(handle, _MAX_FILE_BYTES + 1)
    except OSError as error:
        raise SettingsError([f"{path}: cannot be read: {error.strerror or error}"]) from None
    finally:
        os.close(handle)
    if len(data) > _MAX_FILE_BYTES:
        raise SettingsError([f"{path}: too large for a file of keys"])
    try:
        tree = tomllib.loads(data.decode())
        return tuple(_keys(tree))
    except (ValueError, RecursionError) as error:
        raise SettingsError([f"{path}: {error}"], hint="omlx key makes this file") from None


def _check_file(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise SettingsError([f"{path}: not a file"])
    if status.st_uid not in (os.getuid(), 0):
        raise SettingsError([f"{path}: belongs to another user"])
    if status.st_mode & 0o077:
        raise SettingsError([f"{path}: other users can read it"], hint=f"chmod 600 {path}")


def write_keys(path: Path, keys: Iterable[Key]) -> None:
    """Put keys in place of those in a file, all or none of them; OSError."""
    replace_text(path, _HEAD + "".join(_table(key) for key in keys))


def _table(key: Key) -> str:
    limits = key.limits
    rows: list[tuple[str, object]] = [
        ("prefix", key.prefix),
        ("salt", key.salt.hex()),
        ("hash", key.digest.hex()),
        ("scope", key.scope.value),
        ("requests_per_minute", limits.requests_per_minute),
        ("tokens_per_minute", limits.tokens_per_minute),
        ("concurrent", limits.concurrent),
        ("created", key.created),
        ("expires", key.expires),
    ]
    lines = [f"{name} = {_literal(value)}" for name, value in rows if value is not None]
    return "\n".join(["", f'[key."{key.name}"]', *lines, ""])


def _literal(value: object) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    return f'"{value}"' if isinstance(value, str) else str(value)


def _keys(tree: Mapping[str, object]) -> list[Key]:
    unknown = tree.keys() - {"key"}
    if unknown:
        raise ValueError(f"unknown table {min(unknown)!r}")
    tables = tree.get("key", {})
    if not isinstance(tables, dict):
        raise ValueError('there must be tables such as [key."laptop"]')
    named = cast(dict[str, object], tables)
    return [_key(name, _Table(name, table)) for name, table in named.items()]


class _Table:
    """One table of the file, whose values are taken out one after the other."""

    def __init__(self, name: str, table: object) -> None:
        if not isinstance(table, dict):
            raise ValueError(f"key {name!r} must be a table")
        self._name = name
        self._rest = dict(cast(dict[str, Any], table))

    def take(self, field_name: str, kind: type[Any], *, is_needed: bool = False) -> Any:
        """A value of a kind, None where it is missing (mutates)."""
        value = self._rest.pop(field_name, None)
        if value is None and not is_needed:
            return None
        if not isinstance(value, kind) or isinstance(value, bool):
            raise ValueError(f"key {self._name!r}: {field_name} is missing or of a wrong kind")
        return value

    def limit(self, field_name: str) -> int | None:
        """A limit (mutates)."""
        return check_limit(self.take(field_name, int))

    def time(self, field_name: str) -> datetime | None:
        """A time, in UTC where it doesn't say (mutates)."""
        value = self.take(field_name, datetime)
        return value if value is None or value.tzinfo else value.replace(tzinfo=UTC)

    def hexadecimal(self, field_name: str, size: int) -> bytes:
        """So many bytes (mutates)."""
        value = bytes.fromhex(self.take(field_name, str, is_needed=True))
        if len(value) != size:
            raise ValueError(f"key {self._name!r}: {field_name} must be {size} bytes")
        return value

    def end(self) -> None:
        """ValueError where something is left."""
        if self._rest:
            raise ValueError(f"key {self._name!r}: unknown field {min(self._rest)!r}")


def _key(name: str, table: _Table) -> Key:
    check_name(name)
    key = Key(
        name,
        table.take("prefix", str, is_needed=True)[:PREFIX_CHARS],
        table.hexadecimal("salt", _SALT_BYTES),
        table.hexadecimal("hash", _HASH_BYTES),
        Scope(table.take("scope", str) or Scope.INFERENCE.value),
        Limits(
            table.limit("requests_per_minute"),
            table.limit("tokens_per_minute"),
            table.limit("concurrent"),
        ),
        table.time("created") or datetime.fromtimestamp(0, UTC),
        table.time("expires"),
    )
    table.end()
    return key


def change_keys(path: Path, change: Callable[[Sequence[Key]], Iterable[Key]]) -> None:
    """Put what `change` makes of a file's keys in their place, one process after the other.

    SettingsError, OSError, and what `change` raises.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        write_keys(path, change(read_keys(path)))
    finally:
        os.close(folder)


def with_key(key: Key) -> Callable[[Sequence[Key]], list[Key]]:
    """A change that adds a key; ValueError where its name is taken."""

    def change(keys: Sequence[Key]) -> list[Key]:
        if any(known.name == key.name for known in keys):
            raise ValueError(f"there is a key {key.name!r} already")
        return [*keys, key]

    return change


def without_key(name: str) -> Callable[[Sequence[Key]], list[Key]]:
    """A change that removes a key; KeyError where there is none."""

    def change(keys: Sequence[Key]) -> list[Key]:
        left = [key for key in keys if key.name != name]
        if len(left) == len(keys):
            raise KeyError(name)
        return left

    return change
