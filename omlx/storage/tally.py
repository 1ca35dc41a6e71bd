"""Daily totals of requests, and of bytes on disk: tables of the journal that its pruning spares.

A day is one of UTC. Of a day at most 1,000 combinations of model, client and key are kept apart;
then new clients count as `other`. Knows nothing about servers or who reads the totals.
"""

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any

from omlx.storage.entry import JournalEntry

OTHER = "other"
LONG_TOKENS = 256  # of a prefill that tells the rate; a shorter one is mostly overhead
_MOST_ROWS_A_DAY = 1000
_LEAST_ROWS = 500
_BYTES_A_ROW = 2000  # of the journal's limit for each row: totals take a tenth of it at most
_DAYS_KEPT = 1100

# Of `daily`, after its key; the fields of Tally in their order.
TABLES = """
    CREATE TABLE daily (
        day TEXT NOT NULL, model TEXT NOT NULL, client TEXT NOT NULL, key_name TEXT NOT NULL,
        requests INTEGER NOT NULL, answers INTEGER NOT NULL, turns INTEGER NOT NULL,
        prompt_tokens INTEGER NOT NULL, cached_memory INTEGER NOT NULL,
        cached_disk INTEGER NOT NULL, computed INTEGER NOT NULL, generated INTEGER NOT NULL,
        started INTEGER NOT NULL, queue_s REAL NOT NULL, load_s REAL NOT NULL,
        warm_up_s REAL NOT NULL, restore_s REAL NOT NULL, prefill_s REAL NOT NULL,
        bookkeeping_s REAL NOT NULL, prefilled INTEGER NOT NULL, long_prefilled INTEGER NOT NULL,
        long_prefill_s REAL NOT NULL, PRIMARY KEY (day, model, client, key_name)
    ) WITHOUT ROWID;
    CREATE TABLE daily_disk (
        day TEXT NOT NULL, model TEXT NOT NULL, written_bytes INTEGER NOT NULL,
        evicted_bytes INTEGER NOT NULL, PRIMARY KEY (day, model)
    ) WITHOUT ROWID;
    INSERT INTO daily
        SELECT coalesce(date(time, 'unixepoch'), ''), model, client, key_name, count(*),
            sum(outcome IN ('stop', 'length', 'repetition')), sum(admitted),
            sum(admitted * prompt_tokens), sum(cached_memory), sum(cached_disk),
            sum(max(0, computed - cached_memory - cached_disk)), sum(generated),
            sum(ttft_s IS NOT NULL), total(queue_s), total(load_s), total(warm_up_s),
            total(restore_s), total(prefill_s), total(bookkeeping_s),
            sum((ttft_s IS NOT NULL) * uncached),
            sum((ttft_s IS NOT NULL AND uncached >= 256) * uncached),
            total((ttft_s IS NOT NULL AND uncached >= 256) * prefill_s)
        FROM requests GROUP BY 1, 2, 3, 4;
"""
_ANSWERS = ("stop", "length", "repetition")
_KEY = ("day", "model", "client", "key_name")


@dataclass(frozen=True, slots=True)
class Tally:
    """Sums over requests: tokens, seconds, and counts of requests.

    `answers` ended as they should, `turns` left the queue, `started` have a first token; the
    seconds are the parts of TTFT of those. Prompt tokens are those of turns: `cached_memory`,
    `cached_disk`, `computed`, and what requests that were given up left out. `prefilled` of the
    computed ones took `prefill_s`, `long_prefilled` of them `long_prefill_s` in prefills long
    enough to tell a rate.
    """

    requests: int = 0
    answers: int = 0
    turns: int = 0
    prompt_tokens: int = 0
    cached_memory: int = 0
    cached_disk: int = 0
    computed: int = 0
    generated: int = 0
    started: int = 0
    queue_s: float = 0.0
    load_s: float = 0.0
    warm_up_s: float = 0.0
    restore_s: float = 0.0
    prefill_s: float = 0.0
    bookkeeping_s: float = 0.0
    prefilled: int = 0
    long_prefilled: int = 0
    long_prefill_s: float = 0.0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(one + two for one, two in zip(self.values(), other.values(), strict=True)))

    def values(self) -> Iterator[Any]:
        """The figures in the order of the table."""
        return (getattr(self, one.name) for one in fields(self))

    @property
    def cached(self) -> int:
        """Prompt tokens that came from the cache."""
        return self.cached_memory + self.cached_disk

    @property
    def prefill_rate(self) -> float | None:
        """Prompt tokens a second, as measured; None before anything was computed."""
        if self.long_prefill_s > 0:
            return self.long_prefilled / self.long_prefill_s
        is_measured = self.prefill_s > 0 and self.prefilled
        return self.prefilled / self.prefill_s if is_measured else None


@dataclass(frozen=True, slots=True)
class DiskTally:
    """Bytes of the disk tier that engines have written and evicted."""

    written_bytes: int = 0
    evicted_bytes: int = 0

    def __add__(self, other: "DiskTally") -> "DiskTally":
        return DiskTally(
            self.written_bytes + other.written_bytes, self.evicted_bytes + other.evicted_bytes
        )


def day_of(time: float) -> str:
    """The day of a time in seconds since 1970, such as 2026-11-30; empty beyond all years."""
    try:
        return datetime.fromtimestamp(time, UTC).date().isoformat()
    except (ValueError, OverflowError, OSError):
        return ""


def tally_of(entry: JournalEntry) -> Tally:
    """What one request adds; one that never left the queue took no tokens."""
    num = int(entry.is_admitted)
    tally = Tally(
        requests=1,
        answers=int(entry.outcome in _ANSWERS),
        turns=num,
        prompt_tokens=num * entry.prompt_tokens,
        cached_memory=entry.cached_memory,
        cached_disk=entry.cached_disk,
        computed=num * max(0, entry.computed - entry.cached),
        generated=entry.generated,
    )
    if entry.parts is None:
        return tally
    parts, is_long = entry.parts, entry.uncached >= LONG_TOKENS
    return tally + Tally(
        started=1,
        queue_s=parts.queue_s,
        load_s=parts.load_s,
        warm_up_s=parts.warm_up_s,
        restore_s=parts.restore_s,
        prefill_s=parts.prefill_s,
        bookkeeping_s=parts.bookkeeping_s,
        prefilled=entry.uncached,
        long_prefilled=is_long * entry.uncached,
        long_prefill_s=is_long * parts.prefill_s,
    )


def add_request(db: sqlite3.Connection, entry: JournalEntry, *, max_bytes: int) -> None:
    """Add a request to the totals of its day, within a transaction of the caller's."""
    day = day_of(entry.time)
    key = (day, entry.model, entry.client, entry.key)
    where = " AND ".join(f"{name} = ?" for name in _KEY)
    is_new = db.execute(f"SELECT 1 FROM daily WHERE {where}", key).fetchone() is None
    if is_new:
        (num,) = db.execute("SELECT count(*) FROM daily WHERE day = ?", (day,)).fetchone()
        if num >= _MOST_ROWS_A_DAY:
            key = (day, entry.model, OTHER, key[3])
    names = [one.name for one in fields(Tally)]
    marks = ", ".join("?" * (len(key) + len(names)))
    sums = ", ".join(f"{name} = {name} + excluded.{name}" for name in names)
    db.execute(
        f"INSERT INTO daily VALUES ({marks}) ON CONFLICT ({', '.join(_KEY)}) DO UPDATE SET {sums}",
        (*key, *tally_of(entry).values()),
    )
    if is_new:
        _forget(db, day, max_bytes)


def add_disk(db: sqlite3.Connection, day: str, model: str, moved: DiskTally) -> None:
    """Add bytes to the totals of a day, within a transaction of the caller's."""
    db.execute(
        "INSERT INTO daily_disk VALUES (?, ?, ?, ?) ON CONFLICT (day, model) DO UPDATE SET "
        "written_bytes = written_bytes + excluded.written_bytes, "
        "evicted_bytes = evicted_bytes + excluded.evicted_bytes",
        (day, model, moved.written_bytes, moved.evicted_bytes),
    )


def _forget(db: sqlite3.Connection, today: str, max_bytes: int) -> None:
    """Drop days that are too old, and the oldest where there are too many rows."""
    if not today:
        return
    first = (datetime.fromisoformat(today) - timedelta(days=_DAYS_KEPT)).date().isoformat()
    db.execute("DELETE FROM daily WHERE day < ? AND day <> ''", (first,))
    db.execute("DELETE FROM daily_disk WHERE day < ? AND day <> ''", (first,))
    limit = max(_LEAST_ROWS, max_bytes // _BYTES_A_ROW)
    while True:
        (num, oldest) = db.execute("SELECT count(*), min(day) FROM daily").fetchone()
        if num <= limit or oldest == today:
            return
        db.execute("DELETE FROM daily WHERE day = ?", (oldest,))
