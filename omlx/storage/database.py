"""Opens the sqlite files of a server, for this user only, and writes to them all or nothing.

Knows nothing about what is in them.
"""

import os
import sqlite3
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path


def opened(
    path: Path, prepare: Callable[[sqlite3.Connection], None], *, lock_timeout_s: float
) -> sqlite3.Connection:
    """The file, made where there is none, once `prepare` has seen to its tables.

    For any one thread at a time, without transactions of Python's own. sqlite3.Error or OSError.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Made here, since sqlite would make it readable for others; its other files follow.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    db = sqlite3.connect(
        path, timeout=lock_timeout_s, isolation_level=None, check_same_thread=False
    )
    try:
        prepare(db)
    except BaseException:
        db.close()
        raise
    return db


@contextmanager
def transaction(db: sqlite3.Connection) -> Generator[None]:
    """What is written in it is there as a whole or not at all; nobody else writes meanwhile."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise
