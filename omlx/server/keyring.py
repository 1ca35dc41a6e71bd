"""The keys that open a running server, read again whenever their file changes.

Knows nothing about requests. For the loop's thread.
"""

import logging
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from omlx.errors import SettingsError
from omlx.settings.keys import Key, Scope, new_key, read_keys

_log = logging.getLogger("omlx.server")
# The name of the one key of the settings; no key of the file can have it.
SETTINGS_KEY = "(settings)"
_Version = tuple[int, int, int] | None


class KeyRing:
    """The keys of a file and the one of the settings, which is an admin's."""

    def __init__(self, path: Path | None, api_key: str | None) -> None:
        self._path = path
        self._own = () if api_key is None else (_settings_key(api_key),)
        self._keys: tuple[Key, ...] = self._own
        self._version: _Version = None
        # A server that had keys stays locked where the last one is taken away.
        self._had_any = bool(self._own)

    def load(self) -> None:
        """Read the file (mutates); SettingsError where it can't be used."""
        if self._path is None:
            return
        self._version = _version(self._path)
        self._keys = (*self._own, *read_keys(self._path))
        self._had_any = self._had_any or bool(self._keys)

    def refresh(self) -> None:
        """Read the file again if it has changed; a broken one leaves the keys as they were."""
        if self._path is None or _version(self._path) == self._version:
            return
        try:
            self.load()
        except SettingsError as error:
            _log.error("the API keys stay as they were: %s", error)

    @property
    def has_any(self) -> bool:
        """Whether there is, or has been, any key."""
        return self._had_any

    def has_admin(self) -> bool:
        """Whether a key opens the server's own affairs now."""
        now = datetime.now(UTC)
        return any(key.scope is Scope.ADMIN and not key.has_expired(now) for key in self._keys)

    def holds(self, key: Key) -> bool:
        """Whether a key that was found before is still there, and has not expired."""
        now = datetime.now(UTC)
        return any(
            one.name == key.name and one.digest == key.digest and one.scope is key.scope
            for one in self._keys
            if not one.has_expired(now)
        )

    def find(self, sent: Sequence[bytes]) -> Key | None:
        """The key that was sent, unless it has expired; each is compared with all, every time."""
        found = [key for one in sent for key in self._keys if key.is_of(one)]
        now = datetime.now(UTC)
        return next((key for key in found if not key.has_expired(now)), None)


def _settings_key(api_key: str) -> Key:
    """The one key of the settings, in the form of the others."""
    key, _ = new_key("settings", now=datetime.now(UTC), scope=Scope.ADMIN)
    sent = api_key.encode("utf-8", "surrogateescape")
    return replace(key.hashed(sent), name=SETTINGS_KEY, prefix="")


def _version(path: Path) -> _Version:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
