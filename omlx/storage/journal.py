"""The journal: one row of figures for each request, in a sqlite file that may fail at any time.

Each row is added to the totals of its day, too, in one transaction; they outlive it. Knows nothing
about servers. A journal that can't be written is said once and never raises.
"""

import logging
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from omlx.storage.database import opened, transaction
from omlx.storage.entry import JournalEntry, MissReason, changes_text, spans_text
from omlx.storage.tally import TABLES, DiskTally, add_disk, add_request, day_of

_log = logging.getLogger("omlx.storage")
_LOCK_TIMEOUT_S = 1.0
_WAL_BYTES = 4_000_000
_SHARE_DROPPED = 10  # of the rows, one in so many goes when there are too many bytes
_JUDGED = (MissReason.NONE, MissReason.COLD, MissReason.DIVERGED)

# Only ever appended to: the number of those that ran is the version of a file.
MIGRATIONS = (
    """
    CREATE TABLE requests (
        id INTEGER PRIMARY KEY, request_id TEXT NOT NULL, time REAL NOT NULL, ended REAL NOT NULL,
        model TEXT NOT NULL, outcome TEXT NOT NULL, dialect TEXT NOT NULL, client TEXT NOT NULL,
        session TEXT NOT NULL, prompt_tokens INTEGER NOT NULL, cached_memory INTEGER NOT NULL,
        cached_disk INTEGER NOT NULL, uncached INTEGER NOT NULL, generated INTEGER NOT NULL,
        ttft_s REAL, queue_s REAL, load_s REAL, warm_up_s REAL, restore_s REAL, prefill_s REAL,
        bookkeeping_s REAL, miss TEXT NOT NULL, root TEXT NOT NULL, block_size INTEGER NOT NULL,
        blocks TEXT NOT NULL, rest TEXT, shared INTEGER NOT NULL, computed INTEGER NOT NULL,
        nearest TEXT, spans TEXT NOT NULL, text TEXT
    );
    CREATE INDEX requests_by_request_id ON requests (request_id);
    CREATE INDEX requests_by_time ON requests (time);
    CREATE TABLE blocks (name INTEGER PRIMARY KEY, computed_at REAL NOT NULL);
    """,
    "ALTER TABLE requests ADD COLUMN snapshot INTEGER;",
    "ALTER TABLE requests ADD COLUMN salt TEXT NOT NULL DEFAULT '';",
    "ALTER TABLE requests ADD COLUMN changes TEXT NOT NULL DEFAULT '';",
    """
    ALTER TABLE requests ADD COLUMN key_name TEXT NOT NULL DEFAULT '';
    ALTER TABLE requests ADD COLUMN admitted INTEGER NOT NULL DEFAULT 1;
    UPDATE requests SET admitted = (root <> '' OR ttft_s IS NOT NULL);
    """
    + TABLES,
)


class Journal:
    """Writes rows; for one thread at a time. Nothing but an assertion leaves it."""

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int,
        max_age_s: float,
        clock: Callable[[], float],
        lock_timeout_s: float = _LOCK_TIMEOUT_S,
    ) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._clock = clock
        self._lock_timeout_s = lock_timeout_s
        self._db: sqlite3.Connection | None = None
        self._is_off = False
        self._is_said = False
        self.num_lost = 0

    def add(self, entry: JournalEntry) -> JournalEntry:
        """Keep a row; returns it with the reason of its miss as the rows before it tell."""
        if not self._is_off:
            try:
                db = self._opened()
                entry = _judged(db, entry)
                self._insert(db, entry)
                self._shrink(db)
                return entry
            except (sqlite3.Error, OSError) as error:
                self._fail(error)
        self.num_lost += 1
        return entry

    def add_disk(self, moved: Mapping[str, DiskTally]) -> bool:
        """Add bytes on disk by model to the totals of today; False if they could not be."""
        if self._is_off:
            return False
        try:
            db, day = self._opened(), day_of(self._clock())
            with transaction(db):
                for model, tally in moved.items():
                    add_disk(db, day, model, tally)
        except (sqlite3.Error, OSError) as error:
            self._fail(error)
            return False
        return True

    def close(self) -> None:
        """Let go of the file."""
        if self._db is not None:
            with suppress(sqlite3.Error):
                self._db.close()
            self._db = None

    def _opened(self) -> sqlite3.Connection:
        if self._db is None:
            self._db = opened(self._path, _prepare, lock_timeout_s=self._lock_timeout_s)
        return self._db

    def _insert(self, db: sqlite3.Connection, entry: JournalEntry) -> None:
        row = _columns(entry)
        marks = ", ".join("?" * len(row))
        computed = [(_number(name), self._clock()) for name in entry.computed_blocks()]
        names = ", ".join(row)
        with transaction(db):
            db.execute(f"INSERT INTO requests ({names}) VALUES ({marks})", list(row.values()))
            db.executemany("INSERT OR REPLACE INTO blocks VALUES (?, ?)", computed)
            add_request(db, entry, max_bytes=self._max_bytes)

    def _shrink(self, db: sqlite3.Connection) -> None:
        """Drop rows that are too old, and the oldest where there are too many bytes."""
        too_old = self._clock() - self._max_age_s
        num_dropped = db.execute("DELETE FROM requests WHERE time < ?", (too_old,)).rowcount
        while _used_bytes(db) > self._max_bytes:
            (num_rows,) = db.execute("SELECT count(*) FROM requests").fetchone()
            if num_rows == 0:
                break
            oldest = "SELECT id FROM requests ORDER BY time LIMIT ?"
            num = max(1, num_rows // _SHARE_DROPPED)
            db.execute(f"DELETE FROM requests WHERE id IN ({oldest})", (num,))
            num_dropped += num
            _drop_old_blocks(db)
        if num_dropped:
            _drop_old_blocks(db)
            db.execute("PRAGMA incremental_vacuum").fetchall()

    def _fail(self, error: sqlite3.Error | OSError) -> None:
        """Say it once. A file that is locked or read-only may be so no more; a broken one stays."""
        self.close()
        is_broken = not isinstance(error, sqlite3.OperationalError | OSError)
        self._is_off = is_broken
        if not self._is_said:
            self._is_said = True
            _log.warning(
                "the journal %s can't be written, and requests go on without it: %s%s",
                self._path,
                error,
                "; remove the file to start a new one" if is_broken else "",
            )


def _prepare(db: sqlite3.Connection) -> None:
    """Set the connection up and bring the tables up to date."""
    db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    db.execute("PRAGMA journal_mode = WAL").fetchall()
    db.execute("PRAGMA synchronous = NORMAL")
    db.execute(f"PRAGMA journal_size_limit = {_WAL_BYTES}")
    if version_of(db) == len(MIGRATIONS):
        return
    db.execute("BEGIN IMMEDIATE")  # another process may be about to do the same
    try:
        version = version_of(db)
        if version > len(MIGRATIONS):
            raise sqlite3.DatabaseError("it is of a newer version of omlx")
        for idx, script in enumerate(MIGRATIONS[version:], version + 1):
            for statement in script.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {idx}")
        db.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


def version_of(db: sqlite3.Connection) -> int:
    """How many migrations a file has seen."""
    (version,) = db.execute("PRAGMA user_version").fetchone()
    return int(version)


def _used_bytes(db: sqlite3.Connection) -> int:
    (pages,) = db.execute("PRAGMA page_count").fetchone()
    (free,) = db.execute("PRAGMA freelist_count").fetchone()
    (size,) = db.execute("PRAGMA page_size").fetchone()
    return (pages - free) * size


def _drop_old_blocks(db: sqlite3.Connection) -> None:
    oldest = "SELECT coalesce(min(time), 1e300) FROM requests"
    db.execute(f"DELETE FROM blocks WHERE computed_at < ({oldest})")


def _judged(db: sqlite3.Connection, entry: JournalEntry) -> JournalEntry:
    """The entry; evicted, where an earlier request had computed what this one missed first.

    What a model without attention computes between two snapshots was never kept.
    """
    name = entry.block_at(entry.shared)
    is_missing = entry.shared < entry.prompt_tokens - 1 and entry.miss in _JUDGED
    if name is None or not is_missing:
        return entry
    found = db.execute("SELECT computed_at FROM blocks WHERE name = ?", (_number(name),)).fetchone()
    if found is None or found[0] > entry.time:  # one that ran at the same time was no help
        return entry
    is_between = entry.snapshot is not None and entry.snapshot == entry.shared
    return replace(entry, miss=MissReason.SNAPSHOT if is_between else MissReason.EVICTED)


def _number(name: str) -> int:
    """The head of a block's name as sqlite's row number."""
    return int.from_bytes(bytes.fromhex(name)[:8], "big", signed=True)


def _columns(entry: JournalEntry) -> dict[str, object]:
    parts = {} if entry.parts is None else entry.parts.by_name()
    return {
        "request_id": entry.request_id,
        "time": entry.time,
        "ended": entry.ended,
        "model": entry.model,
        "outcome": entry.outcome,
        "dialect": entry.dialect,
        "client": entry.client,
        "session": entry.session,
        "prompt_tokens": entry.prompt_tokens,
        "cached_memory": entry.cached_memory,
        "cached_disk": entry.cached_disk,
        "uncached": entry.uncached,
        "generated": entry.generated,
        "ttft_s": None if entry.parts is None else entry.parts.ttft_s,
        **{f"{name}_s": seconds for name, seconds in parts.items()},
        "miss": entry.miss.value,
        "root": entry.root,
        "block_size": entry.block_size,
        "blocks": "".join(entry.blocks),
        "rest": entry.rest,
        "shared": entry.shared,
        "computed": entry.computed,
        "nearest": entry.nearest,
        "snapshot": entry.snapshot,
        "salt": entry.salt,
        "key_name": entry.key,
        "admitted": entry.is_admitted,
        "changes": changes_text(entry.changes),
        "spans": spans_text(entry.spans),
        # Half an emoji, which Python can hold and sqlite can't.
        "text": entry.text and entry.text.encode("utf-8", "replace").decode(),
    }
