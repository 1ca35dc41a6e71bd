"""Reads what a journal keeps, beside the servers that write it.

Knows nothing about what the rows are read for.
"""

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

from omlx.errors import StoreError
from omlx.storage.entry import JournalEntry, MissReason, TtftParts, changes_from, spans_from
from omlx.storage.journal import MIGRATIONS, version_of
from omlx.storage.layout import HASH_BYTES

_TIMEOUT_S = 3.0
_NAME_CHARS = 2 * HASH_BYTES
_PREFIXES = ("req_", "chatcmpl-", "msg_")
_MAX_LIKE = 200


@contextmanager
def reading(path: Path) -> Generator[sqlite3.Connection]:
    """A journal to read from; StoreError says why it can't be."""
    if not path.exists():
        hint = "a server keeps one unless journal.enabled is false"
        raise StoreError(f"there is no journal at {path}", hint=hint)
    uri = f"file:{quote(str(path))}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=_TIMEOUT_S)) as db:
            db.row_factory = sqlite3.Row
            if version_of(db) > len(MIGRATIONS):
                raise StoreError(f"the journal {path} is of a newer version of omlx")
            yield db
    except sqlite3.Error as error:
        raise StoreError(f"the journal {path} can't be read: {error}") from None


class History:
    """The rows of a journal; StoreError says why it can't be read."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def last(self) -> JournalEntry | None:
        """The newest row."""
        return next(iter(self._read("ORDER BY id DESC LIMIT 1")), None)

    def find(self, request_id: str) -> JournalEntry | None:
        """The newest row of a request, by its id as clients see it or the beginning of one."""
        for prefix in _PREFIXES:
            request_id = request_id.removeprefix(prefix)
        if not request_id:
            return None
        where = "WHERE substr(request_id, 1, ?) = ? ORDER BY id DESC LIMIT 1"
        return next(iter(self._read(where, len(request_id), request_id)), None)

    def like(self, root: str, blocks: Sequence[str]) -> list[JournalEntry]:
        """The newest rows of a root whose prompts begin with these blocks."""
        head = "".join(blocks)
        where = "WHERE root = ? AND substr(blocks, 1, ?) = ? ORDER BY id DESC LIMIT ?"
        return self._read(where, root, len(head), head, _MAX_LIKE)

    def of_model(self, model: str, num_rows: int) -> list[JournalEntry]:
        """At most so many rows of a model, the newest first."""
        return self._read("WHERE model = ? ORDER BY id DESC LIMIT ?", model, num_rows)

    def since(self, time: float, num_rows: int) -> list[JournalEntry]:
        """At most so many of the newest rows of requests that came since, the oldest first."""
        rows = self._read("WHERE time >= ? ORDER BY time DESC, id DESC LIMIT ?", time, num_rows)
        return rows[::-1]

    def _read(self, where: str, *values: object) -> list[JournalEntry]:
        with reading(self._path) as db:
            rows = db.execute(f"SELECT * FROM requests {where}", values)
            return [_entry(row) for row in rows]


def _entry(row: sqlite3.Row) -> JournalEntry:
    blocks: str = row["blocks"]
    return JournalEntry(
        request_id=row["request_id"],
        time=row["time"],
        ended=row["ended"],
        model=row["model"],
        outcome=row["outcome"],
        dialect=row["dialect"],
        client=row["client"],
        session=row["session"],
        prompt_tokens=row["prompt_tokens"],
        cached_memory=row["cached_memory"],
        cached_disk=row["cached_disk"],
        generated=row["generated"],
        parts=_parts(row),
        miss=MissReason(row["miss"]),
        root=row["root"],
        block_size=row["block_size"],
        blocks=tuple(blocks[at : at + _NAME_CHARS] for at in range(0, len(blocks), _NAME_CHARS)),
        rest=row["rest"],
        shared=row["shared"],
        computed=row["computed"],
        nearest=row["nearest"],
        snapshot=row["snapshot"] if "snapshot" in row.keys() else None,  # noqa: SIM118
        salt=row["salt"] if "salt" in row.keys() else "",  # noqa: SIM118
        changes=changes_from(row["changes"] if "changes" in row.keys() else ""),  # noqa: SIM118
        spans=spans_from(row["spans"]),
        text=row["text"],
        key=row["key_name"] if "key_name" in row.keys() else "",  # noqa: SIM118
        is_admitted=bool(row["admitted"]) if "admitted" in row.keys() else True,  # noqa: SIM118
    )


def _parts(row: sqlite3.Row) -> TtftParts | None:
    if row["ttft_s"] is None:
        return None
    return TtftParts(
        queue_s=row["queue_s"],
        load_s=row["load_s"],
        warm_up_s=row["warm_up_s"],
        restore_s=row["restore_s"],
        prefill_s=row["prefill_s"],
        bookkeeping_s=row["bookkeeping_s"],
    )
