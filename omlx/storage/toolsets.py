"""Remembers in which order and spelling each set of tools first came, in a sqlite file.

Knows nothing about tools or requests: a set has a key and a text. The file may fail at any time,
which is said once and never raises; several processes may use it.
"""

import logging
import sqlite3
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from omlx.storage.database import opened, transaction

_log = logging.getLogger("omlx.storage")
MAX_SETS = 4096
_MAX_BYTES = 64_000_000  # of all texts, compressed
_MAX_TEXT_BYTES = 4_000_000
_NUM_RECENT = 64
_TOUCH_S = 3600.0  # a set is noted as used at most so often
_RETRY_S = 30.0
_LOCK_TIMEOUT_S = 0.25
_SHARE_DROPPED = 10  # one in so many goes when there are too many bytes

_TABLE = """
CREATE TABLE IF NOT EXISTS tool_sets (key BLOB PRIMARY KEY, tools BLOB NOT NULL, used REAL NOT NULL)
"""


class ToolSets:
    """The texts that were first; for any thread.

    With `is_read_only` nothing is remembered. Sets that are used least are forgotten first.
    """

    def __init__(
        self,
        path: Path,
        *,
        clock: Callable[[], float],
        max_sets: int = MAX_SETS,
        max_bytes: int = _MAX_BYTES,
        is_read_only: bool = False,
        lock_timeout_s: float = _LOCK_TIMEOUT_S,
    ) -> None:
        self._path = path
        self._clock = clock
        self._max_sets = max_sets
        self._max_bytes = max_bytes
        self._is_read_only = is_read_only
        self._lock_timeout_s = lock_timeout_s
        self._db: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        self._is_closed = False
        self._is_said = False
        self._is_off_until = float("-inf")
        # The last ones, with the time at which the file was told of their use.
        self._recent: OrderedDict[bytes, tuple[str, float]] = OrderedDict()

    def first(self, key: bytes, text: str) -> str:
        """The text that first came with a key, which is this one where none did (mutates)."""
        with self._lock:
            return self._first(key, text)

    def close(self) -> None:
        """Let go of the file, for good."""
        with self._lock:
            self._is_closed = True
            self._let_go()

    def _first(self, key: bytes, text: str) -> str:
        known = self._recent.get(key)
        now = self._clock()
        if known is not None and now - known[1] < _TOUCH_S:
            self._recent.move_to_end(key)
            return known[0]
        found = self._in_file(key, text if known is None else known[0], now)
        self._recent[key] = found, now
        self._recent.move_to_end(key)
        if len(self._recent) > _NUM_RECENT:
            self._recent.popitem(last=False)
        return found

    def _let_go(self) -> None:
        if self._db is not None:
            with suppress(sqlite3.Error):
                self._db.close()
            self._db = None

    def _in_file(self, key: bytes, text: str, now: float) -> str:
        """What the file has, or has from now on; the text itself where that can't be had."""
        data = text.encode("utf-8", "surrogatepass")
        if self._is_closed or now < self._is_off_until or len(data) > _MAX_TEXT_BYTES:
            return text
        try:
            if self._is_read_only:
                return self._read(key) or text
            return self._read_or_add(key, data, now) or text
        except (sqlite3.Error, OSError) as error:
            self._fail(error, now)
            return text

    def _read(self, key: bytes) -> str | None:
        if self._db is None:
            if not self._path.exists():
                return None
            uri = f"file:{quote(str(self._path))}?mode=ro"
            self._db = sqlite3.connect(
                uri, uri=True, timeout=self._lock_timeout_s, check_same_thread=False
            )
        if not self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'tool_sets'").fetchone():
            return None
        found = _row(self._db, key)
        return None if found is None else found[0]

    def _read_or_add(self, key: bytes, data: bytes, now: float) -> str | None:
        db = self._opened()
        found = _row(db, key)
        if found is not None and 0 <= now - found[1] < _TOUCH_S:
            return found[0]
        with transaction(db):  # another process may be about to do the same
            found = _row(db, key)
            if found is None:
                row = (key, zlib.compress(data), now)
                db.execute("INSERT OR REPLACE INTO tool_sets VALUES (?, ?, ?)", row)
                self._shrink(db)
            else:
                db.execute("UPDATE tool_sets SET used = ? WHERE key = ?", (now, key))
        return None if found is None else found[0]

    def _shrink(self, db: sqlite3.Connection) -> None:
        """Forget the sets that were not used for the longest, where there is too much."""
        newest = "SELECT key FROM tool_sets ORDER BY used DESC, rowid DESC LIMIT ?"
        db.execute(f"DELETE FROM tool_sets WHERE key NOT IN ({newest})", (self._max_sets,))
        while True:
            total = "SELECT count(*), coalesce(sum(length(tools)), 0) FROM tool_sets"
            num_sets, num_bytes = db.execute(total).fetchone()
            if num_bytes <= self._max_bytes or num_sets == 0:
                return
            oldest = "SELECT key FROM tool_sets ORDER BY used, rowid LIMIT ?"
            num = max(1, num_sets // _SHARE_DROPPED)
            db.execute(f"DELETE FROM tool_sets WHERE key IN ({oldest})", (num,))

    def _opened(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = opened(self._path, _prepare, lock_timeout_s=self._lock_timeout_s)
        return self._db

    def _fail(self, error: sqlite3.Error | OSError, now: float) -> None:
        """Say it once, and leave the file alone for a while: it may be locked or full no more."""
        self._let_go()
        self._is_off_until = now + _RETRY_S
        if self._is_said:
            return
        self._is_said = True
        is_broken = not isinstance(error, sqlite3.OperationalError | OSError)
        _log.warning(
            "%s can't be used, and the order of tools is not kept over a restart: %s%s",
            self._path,
            error,
            "; remove the file to start a new one" if is_broken else "",
        )


def _prepare(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA journal_mode = WAL").fetchall()
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute(_TABLE)


def _row(db: sqlite3.Connection, key: bytes) -> tuple[str, float] | None:
    """The text of a key and when it was last used; None too where it can't be read."""
    row = db.execute("SELECT tools, used FROM tool_sets WHERE key = ?", (key,)).fetchone()
    if row is None or not isinstance(row[0], bytes) or not isinstance(row[1], float):
        return None
    try:
        reader = zlib.decompressobj()
        data = reader.decompress(row[0], _MAX_TEXT_BYTES)
        text = data.decode("utf-8", "surrogatepass")
    except (zlib.error, ValueError):
        return None
    return (text, row[1]) if reader.eof else None
