"""The journal: rows kept and found, pruned by age and size, and every way in which it may fail."""

import hashlib
import logging
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from omlx.errors import StoreError
from omlx.storage.entry import JournalEntry, MissReason, Part, PartKind, Span, TtftParts
from omlx.storage.history import History
from omlx.storage.journal import MIGRATIONS, Journal
from tests.fakes.blocks import Clock

DAY = 86_400.0


def name(seed: object) -> str:
    return hashlib.sha256(repr(seed).encode()).hexdigest()


ENTRY = JournalEntry(
    request_id="abc123",
    time=900_000.0,
    ended=900_001.0,
    model="tiny",
    outcome="stop",
    dialect="openai",
    client="curl",
    session="s1",
    prompt_tokens=1000,
    cached_memory=300,
    cached_disk=100,
    generated=7,
    parts=TtftParts(0.5, 0.25, 0.0, 0.125, 2.0, 0.0625),
    miss=MissReason.DIVERGED,
    root=name("root"),
    block_size=256,
    blocks=tuple(name(i) for i in range(3)),
    rest=name("rest"),
    shared=400,
    computed=1000,
    nearest=name("near"),
    snapshot=300,
    changes={"attribution": 1, "tool_order": 3},
    salt="ab",
    key="laptop",
    spans=(Span(Part(PartKind.SYSTEM, 0), 1, 5),),
)


class Shelf:
    """A journal in a folder of its own, and what there is to read."""

    def __init__(self, path: Path, **limits: float) -> None:
        self.clock = Clock()
        self.path = path
        limits = {"max_bytes": 10**9, "max_age_s": 30 * DAY, **limits}
        self.journal = Journal(path, clock=self.clock, lock_timeout_s=0.0, **limits)
        self.history = History(path)

    def count(self) -> int:
        with closing(sqlite3.connect(self.path)) as db:
            return db.execute("SELECT count(*) FROM requests").fetchone()[0]


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[Shelf]:
    shelf = Shelf(tmp_path / "state" / "journal.sqlite3")
    yield shelf
    shelf.journal.close()


def test_a_row_comes_back_as_it_was(shelf: Shelf) -> None:
    assert shelf.journal.add(ENTRY) == ENTRY
    assert shelf.history.last() == ENTRY
    bare = JournalEntry(
        request_id="b", time=1_000_000.0, ended=1.0, model="m", outcome="aborted",
        is_admitted=False,
    )  # fmt: skip
    shelf.journal.add(bare)
    assert shelf.history.last() == bare


def test_the_text_is_kept_where_it_is_given(shelf: Shelf) -> None:
    shelf.journal.add(replace(ENTRY, text="user: hi"))
    last = shelf.history.last()
    assert last is not None and last.text == "user: hi"


def test_half_an_emoji_does_no_harm(shelf: Shelf) -> None:
    part = Part(PartKind.TOOL, 0, "a\ud83d")
    shelf.journal.add(replace(ENTRY, text="b\ud83d", spans=(Span(part, 0, 1),)))
    last = shelf.history.last()
    assert last is not None and last.text == "b?"
    assert last.spans[0].part == part


def test_rows_are_found_by_the_ids_that_clients_see(shelf: Shelf) -> None:
    shelf.journal.add(ENTRY)
    shelf.journal.add(replace(ENTRY, request_id="def456"))
    for request_id in ("abc123", "req_abc123", "chatcmpl-abc123", "msg_abc", "a"):
        found = shelf.history.find(request_id)
        assert found is not None and found.request_id == "abc123"
    assert shelf.history.find("zzz") is None
    assert shelf.history.find("%") is None
    assert shelf.history.find("") is None


def test_rows_are_found_by_the_blocks_they_begin_with(shelf: Shelf) -> None:
    shelf.journal.add(ENTRY)
    shelf.journal.add(replace(ENTRY, request_id="other", root=name("other root")))
    for blocks in ((), ENTRY.blocks[:1], ENTRY.blocks):
        assert [e.request_id for e in shelf.history.like(ENTRY.root, blocks)] == ["abc123"]
    assert shelf.history.like(ENTRY.root, (name("x"),)) == []


def test_only_the_user_may_read_it(shelf: Shelf) -> None:
    shelf.journal.add(ENTRY)
    files = [*shelf.path.parent.iterdir()]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    assert stat.S_IMODE(shelf.path.parent.stat().st_mode) == 0o700


def test_it_is_written_ahead(shelf: Shelf) -> None:
    shelf.journal.add(ENTRY)
    with closing(sqlite3.connect(shelf.path)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert db.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)


def test_a_file_of_an_older_version_is_read_and_then_brought_up_to_date(shelf: Shelf) -> None:
    shelf.journal.add(ENTRY)
    shelf.journal.close()
    with closing(sqlite3.connect(shelf.path)) as db:
        db.execute("ALTER TABLE requests DROP COLUMN snapshot")
        db.execute("ALTER TABLE requests DROP COLUMN salt")
        db.execute("ALTER TABLE requests DROP COLUMN changes")
        db.execute("ALTER TABLE requests DROP COLUMN key_name")
        db.execute("ALTER TABLE requests DROP COLUMN admitted")
        db.execute("DROP TABLE daily")
        db.execute("DROP TABLE daily_disk")
        db.execute("PRAGMA user_version = 1")
        db.commit()
    assert shelf.history.last() == replace(ENTRY, snapshot=None, salt="", changes={}, key="")
    shelf.journal.add(replace(ENTRY, request_id="next"))
    found = [shelf.history.find(request_id) for request_id in ("abc123", "next")]
    assert [row and row.snapshot for row in found] == [None, 300]


def test_two_servers_may_write(shelf: Shelf) -> None:
    other = Shelf(shelf.path)
    for i in range(5):
        shelf.journal.add(replace(ENTRY, request_id=f"a{i}"))
        other.journal.add(replace(ENTRY, request_id=f"b{i}"))
    other.journal.close()
    assert shelf.count() == 10


# ---- why a miss


def test_what_was_computed_before_and_is_missing_now_was_evicted(shelf: Shelf) -> None:
    """The first missing block of the second is one that the first computed."""
    shelf.journal.add(replace(ENTRY, shared=0))
    again = replace(ENTRY, request_id="2", time=shelf.clock.now + 1, miss=MissReason.COLD)
    for shared in (0, 256, 400, 768):
        assert shelf.journal.add(replace(again, shared=shared)).miss is MissReason.EVICTED


def test_what_lies_between_two_snapshots_was_never_kept(shelf: Shelf) -> None:
    """A model without attention found its snapshot, and nothing it could have kept behind it."""
    shelf.journal.add(replace(ENTRY, shared=0))
    again = replace(ENTRY, request_id="2", time=shelf.clock.now + 1, miss=MissReason.NONE)
    found = shelf.journal.add(replace(again, shared=300, snapshot=300))
    assert found.miss is MissReason.SNAPSHOT
    found = shelf.journal.add(replace(again, shared=400, snapshot=300))
    assert found.miss is MissReason.EVICTED


def test_what_was_computed_at_the_same_time_was_not_evicted(shelf: Shelf) -> None:
    shelf.journal.add(replace(ENTRY, shared=0))
    twin = replace(ENTRY, request_id="2", time=shelf.clock.now - 1, shared=0)
    assert shelf.journal.add(twin).miss is MissReason.DIVERGED


def test_nothing_was_evicted_where_nothing_is_missing(shelf: Shelf) -> None:
    shelf.journal.add(replace(ENTRY, shared=0))
    later = replace(ENTRY, time=shelf.clock.now + 1, shared=999, miss=MissReason.NONE)
    assert shelf.journal.add(later).miss is MissReason.NONE
    off = replace(later, shared=0, miss=MissReason.DISABLED)
    assert shelf.journal.add(off).miss is MissReason.DISABLED


def test_an_aborted_prefill_leaves_only_what_it_computed(shelf: Shelf) -> None:
    shelf.journal.add(replace(ENTRY, shared=0, computed=300))
    again = replace(ENTRY, time=shelf.clock.now + 1, miss=MissReason.NONE)
    assert shelf.journal.add(replace(again, shared=256)).miss is MissReason.NONE
    assert shelf.journal.add(replace(again, shared=0)).miss is MissReason.EVICTED


# ---- limits


def test_old_rows_go(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "j", max_age_s=10 * DAY)
    shelf.journal.add(replace(ENTRY, time=shelf.clock.now - 11 * DAY, request_id="old"))
    shelf.journal.add(replace(ENTRY, time=shelf.clock.now - 9 * DAY, request_id="new"))
    assert shelf.count() == 1
    assert shelf.history.find("old") is None
    shelf.journal.close()


def test_the_file_stays_small(tmp_path: Path) -> None:
    limit = 400_000
    shelf = Shelf(tmp_path / "j", max_bytes=limit)
    for i in range(120):
        shelf.clock.now += 1
        blocks = tuple(name((i, b)) for b in range(150))
        entry = replace(ENTRY, request_id=f"r{i}", time=shelf.clock.now, blocks=blocks, shared=0)
        shelf.journal.add(replace(entry, computed=256 * 150))
        assert shelf.journal.num_lost == 0
    last = shelf.history.last()
    assert last is not None and last.request_id == "r119"
    assert 10 < shelf.count() < 60
    shelf.journal.close()  # what was written ahead goes into the file
    assert shelf.path.stat().st_size <= limit * 1.1
    with closing(sqlite3.connect(shelf.path)) as db:
        (oldest,) = db.execute("SELECT min(computed_at) FROM blocks").fetchone()
        assert oldest >= db.execute("SELECT min(time) FROM requests").fetchone()[0]


def test_a_row_larger_than_the_limit_leaves_an_empty_journal(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "j", max_bytes=100_000)
    shelf.journal.add(replace(ENTRY, text="x" * 300_000))
    assert shelf.count() == 0
    shelf.journal.add(ENTRY)
    assert shelf.count() == 1
    shelf.journal.close()


# ---- failures


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]


def test_a_locked_file_loses_rows_until_it_is_free(
    shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    shelf.journal.add(ENTRY)
    with closing(sqlite3.connect(shelf.path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        assert shelf.journal.add(ENTRY) == ENTRY
        assert shelf.journal.add(ENTRY) == ENTRY
        other.execute("ROLLBACK")
    assert shelf.journal.num_lost == 2
    assert len(warnings(caplog)) == 1 and "locked" in warnings(caplog)[0]
    shelf.journal.add(ENTRY)
    assert shelf.count() == 2


@pytest.mark.parametrize("content", [b"not a database " * 100, b"SQLite format 3\0" + b"\xff" * 90])
def test_a_broken_file_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    shelf = Shelf(tmp_path / "j")
    shelf.path.write_bytes(content)
    for _ in range(3):
        assert shelf.journal.add(ENTRY) == ENTRY
    assert shelf.path.read_bytes() == content
    assert len(warnings(caplog)) == 1 and "remove the file" in warnings(caplog)[0]
    with pytest.raises(StoreError, match="can't be read"):
        shelf.history.last()


def test_a_file_that_breaks_while_it_is_used(
    shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    shelf.journal.add(ENTRY)
    shelf.journal.close()
    data = bytearray(shelf.path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    shelf.path.write_bytes(data)
    for _ in range(3):
        shelf.journal.add(ENTRY)
    assert len(warnings(caplog)) == 1


def test_a_file_of_a_newer_version_is_left_alone(
    shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    shelf.journal.add(ENTRY)
    shelf.journal.close()
    with closing(sqlite3.connect(shelf.path)) as db:
        db.execute("PRAGMA user_version = 99")
    shelf.journal.add(ENTRY)
    assert shelf.count() == 1
    assert "newer version" in warnings(caplog)[0]
    with pytest.raises(StoreError, match="newer version"):
        shelf.history.last()


def test_a_folder_in_its_place(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    shelf = Shelf(tmp_path / "j")
    shelf.path.mkdir()
    shelf.journal.add(ENTRY)
    shelf.journal.add(ENTRY)
    assert len(warnings(caplog)) == 1
    assert shelf.journal.num_lost == 2


def test_a_file_where_its_folder_should_be(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "state").write_text("")
    shelf = Shelf(tmp_path / "state" / "j")
    shelf.journal.add(ENTRY)
    assert len(warnings(caplog)) == 1


def test_a_read_only_file(
    shelf: Shelf, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As root may write to any file, sqlite itself is told that it may not."""
    shelf.journal.add(ENTRY)
    shelf.journal.close()
    connect = sqlite3.connect

    def read_only(path: Path, **options: object) -> sqlite3.Connection:
        return connect(f"file:{path}?mode=ro", uri=True, **options)

    monkeypatch.setattr(sqlite3, "connect", read_only)
    assert shelf.journal.add(ENTRY) == ENTRY
    assert len(warnings(caplog)) == 1 and "readonly" in warnings(caplog)[0]
    monkeypatch.undo()
    assert shelf.count() == 1


def test_no_journal(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no journal") as caught:
        History(tmp_path / "j").last()
    assert "journal.enabled" in caught.value.hint
    assert not (tmp_path / "j").exists()


def test_an_empty_file_is_a_journal_without_rows(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "j")
    shelf.path.write_bytes(b"")
    with pytest.raises(StoreError):
        shelf.history.last()
    shelf.journal.add(ENTRY)
    assert shelf.history.last() == ENTRY
    shelf.journal.close()
