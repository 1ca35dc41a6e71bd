"""Token ids of earlier replies, in a sqlite file that may fail at any time.

Knows nothing about models or texts: a key says what was said, a place after what it was. A file
that can't be used is said once, left alone for a while, and never raises.
"""

import logging
import sqlite3
import sys
from array import array
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from omlx.storage.database import opened, transaction

_log = logging.getLogger("omlx.storage")
_LOCK_TIMEOUT_S = 0.5
_RETRY_S = 60.0
_WAL_BYTES = 4_000_000
_EACH = 32  # ways to have said the same
_MAX_REPLIES = 100_000
_MAX_KEYS = 500  # in one query
_LOOK_EVERY = 64  # rows written between two looks at how many there are
_ROW_BYTES = 120  # of a row and its entries in two indexes, besides the ids
_SHARE_DROPPED = 10  # one in so many goes when there are too many

# Other tables of the file are others'.
_TABLES = (
    "CREATE TABLE IF NOT EXISTS replies (id INTEGER PRIMARY KEY, key BLOB NOT NULL,"
    " place BLOB NOT NULL, size INTEGER NOT NULL, ids BLOB NOT NULL, UNIQUE (key, place))",
    "CREATE INDEX IF NOT EXISTS replies_by_age ON replies (id, size)",
)


@dataclass(frozen=True, slots=True)
class Reply:
    """The token ids of a reply, and a digest of what it was the reply to."""

    place: bytes
    ids: "array[int]"


class Replies:
    """Keeps replies by key; one thread may `get` while another does `put`."""

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        max_replies: int = _MAX_REPLIES,
        clock: Callable[[], float],
        lock_timeout_s: float = _LOCK_TIMEOUT_S,
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._max_replies = max_replies
        self._clock = clock
        self._lock_timeout_s = lock_timeout_s
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None
        self._off_until = 0.0
        self._is_said = False
        self._num_put = 0

    def get(self, keys: Sequence[bytes]) -> dict[bytes, list[Reply]]:
        """What is kept of these keys, the newest of each first."""
        found: dict[bytes, list[Reply]] = {}
        if not keys or self._is_off:
            return found
        try:
            if self._reader is None:
                self._reader = self._opened()
            for at in range(0, len(keys), _MAX_KEYS):
                some = keys[at : at + _MAX_KEYS]
                marks = ", ".join("?" * len(some))
                rows = self._reader.execute(
                    f"SELECT key, place, ids FROM replies WHERE key IN ({marks}) ORDER BY id DESC",
                    list(some),
                )
                for key, place, ids in rows:
                    found.setdefault(key, []).append(Reply(place, _ids(ids)))
        except (sqlite3.Error, OSError, ValueError, TypeError) as error:
            self._reader = self._failed(self._reader, error)
            return {}
        return found

    def put(self, key: bytes, reply: Reply) -> None:
        """Keep a reply as the newest of its key."""
        if self._is_off:
            return
        try:
            if self._writer is None:
                self._writer = self._opened()
            self._insert(self._writer, key, reply)
        except (sqlite3.Error, OSError) as error:
            self._writer = self._failed(self._writer, error)

    def close(self) -> None:
        """Let go of the file."""
        _close(self._reader)
        _close(self._writer)
        self._reader = self._writer = None

    @property
    def _is_off(self) -> bool:
        return self._clock() < self._off_until

    def _opened(self) -> sqlite3.Connection:
        return opened(self._path, _prepare, lock_timeout_s=self._lock_timeout_s)

    def _insert(self, db: sqlite3.Connection, key: bytes, reply: Reply) -> None:
        ids = _bytes(reply.ids)
        newest = "SELECT id FROM replies WHERE key = ? ORDER BY id DESC LIMIT ?"
        with transaction(db):
            db.execute(
                "INSERT OR REPLACE INTO replies (key, place, size, ids) VALUES (?, ?, ?, ?)",
                (key, reply.place, len(ids) + _ROW_BYTES, ids),
            )
            db.execute(
                f"DELETE FROM replies WHERE key = ? AND id NOT IN ({newest})", (key, key, _EACH)
            )
            if self._num_put % _LOOK_EVERY == 0:
                self._shrink(db)
        self._num_put += 1

    def _shrink(self, db: sqlite3.Connection) -> None:
        """Drop the oldest while there are too many, or too many bytes of them."""
        is_shrunk = False
        while True:
            count, size = db.execute("SELECT count(*), total(size) FROM replies").fetchone()
            if count == 0 or (count <= self._max_replies and size <= self._max_bytes):
                break
            num = max(1, count - self._max_replies, count // _SHARE_DROPPED)
            oldest = "SELECT id FROM replies ORDER BY id LIMIT ?"
            db.execute(f"DELETE FROM replies WHERE id IN ({oldest})", (num,))
            is_shrunk = True
        if is_shrunk:
            db.execute("PRAGMA incremental_vacuum").fetchall()

    def _failed(self, db: sqlite3.Connection | None, error: Exception) -> None:
        """Say it once, and try again later: the file may be locked or full no more."""
        _close(db)
        self._off_until = self._clock() + _RETRY_S
        if not self._is_said:
            self._is_said = True
            _log.warning(
                "%s can't be used, and replies are tokenized again instead: %s", self._path, error
            )


def _prepare(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    db.execute("PRAGMA journal_mode = WAL").fetchall()
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    for statement in _TABLES:
        db.execute(statement)


def _close(db: sqlite3.Connection | None) -> None:
    if db is not None:
        with suppress(sqlite3.Error):
            db.close()


def _bytes(ids: "array[int]") -> bytes:
    if sys.byteorder == "big":
        ids = array(ids.typecode, ids)
        ids.byteswap()
    return ids.tobytes()


def _ids(data: bytes) -> "array[int]":
    ids = array("I", data)
    if sys.byteorder == "big":
        ids.byteswap()
    return ids
