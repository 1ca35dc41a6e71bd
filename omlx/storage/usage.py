"""Reads the daily totals of a journal, beside the servers that write it.

Knows nothing about what is made of them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from omlx.errors import StoreError
from omlx.storage.history import reading
from omlx.storage.journal import version_of
from omlx.storage.tally import DiskTally, Tally

_FIRST_VERSION = 5  # of the journal's tables that has totals


@dataclass(frozen=True, slots=True)
class DayTally:
    """The totals of a day for one model, client and API key; empty where that is not known."""

    day: str
    model: str
    client: str
    key: str
    tally: Tally


@dataclass(frozen=True, slots=True)
class DayDisk:
    """The bytes that the engines of one model moved on a day."""

    day: str
    model: str
    moved: DiskTally


@dataclass(frozen=True, slots=True)
class Usage:
    """The totals of some days, the oldest first."""

    requests: Sequence[DayTally]
    disk: Sequence[DayDisk]

    @property
    def whole(self) -> Tally:
        """All of it together."""
        return sum((one.tally for one in self.requests), Tally())

    @property
    def moved(self) -> DiskTally:
        """All bytes together."""
        return sum((one.moved for one in self.disk), DiskTally())

    @property
    def days(self) -> list[str]:
        """The days on which anything was counted."""
        return sorted({one.day for one in (*self.requests, *self.disk)})

    def by(self, key: Callable[[DayTally], str]) -> dict[str, Tally]:
        """Totals by whatever `key` makes of a row, the most turns first."""
        found: dict[str, Tally] = {}
        for one in self.requests:
            found[key(one)] = found.get(key(one), Tally()) + one.tally
        return dict(sorted(found.items(), key=lambda item: (-item[1].turns, item[0])))

    def moved_by(self, key: Callable[[DayDisk], str]) -> dict[str, DiskTally]:
        """Bytes by whatever `key` makes of a row."""
        found: dict[str, DiskTally] = {}
        for one in self.disk:
            found[key(one)] = found.get(key(one), DiskTally()) + one.moved
        return found


def read_usage(path: Path, first_day: str) -> Usage:
    """The totals from a day on, such as 2026-11-30; StoreError says why they can't be read."""
    with reading(path) as db:
        if version_of(db) < _FIRST_VERSION:
            raise StoreError(
                f"the journal {path} has no daily totals yet",
                hint="a server of this version adds them with the next request",
            )
        db.execute("BEGIN")  # both tables as of one moment
        rows = db.execute("SELECT * FROM daily WHERE day >= ? ORDER BY day", (first_day,))
        requests = [_row(tuple(row)) for row in rows]
        disk = [
            DayDisk(day, model, DiskTally(written, evicted))
            for day, model, written, evicted in db.execute(
                "SELECT day, model, written_bytes, evicted_bytes FROM daily_disk "
                "WHERE day >= ? ORDER BY day",
                (first_day,),
            )
        ]
    return Usage(requests, disk)


def _row(values: tuple[object, ...]) -> DayTally:
    names: Iterable[str] = (one.name for one in fields(Tally))
    day, model, client, key, *figures = values
    tally = Tally(**dict(zip(names, figures, strict=True)))  # pyright: ignore[reportArgumentType]
    return DayTally(str(day), str(model), str(client), str(key), tally)
