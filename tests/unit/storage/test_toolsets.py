"""First texts: kept, found again by other processes, forgotten in order, and every way to fail."""

import logging
import sqlite3
import stat
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from omlx.storage.toolsets import ToolSets
from tests.fakes.blocks import Clock

HOUR = 3600.0


def key(number: int) -> bytes:
    return number.to_bytes(32, "big")


class Shelf:
    """Files in one folder, as several processes would open them."""

    def __init__(self, folder: Path) -> None:
        self.clock = Clock()
        self.path = folder / "state" / "prompts.sqlite3"
        self._opened: list[ToolSets] = []

    def sets(self, **limits) -> ToolSets:
        made = ToolSets(self.path, clock=self.clock, lock_timeout_s=0.01, **limits)
        self._opened.append(made)
        return made

    def close(self) -> None:
        for one in self._opened:
            one.close()

    def rows(self) -> list[int]:
        with closing(sqlite3.connect(self.path)) as db:
            found = db.execute("SELECT key FROM tool_sets ORDER BY key").fetchall()
        return [int.from_bytes(row[0], "big") for row in found]


@pytest.fixture
def shelf(tmp_path: Path):
    made = Shelf(tmp_path)
    yield made
    made.close()


def test_the_first_text_of_a_key_is_given_from_then_on(shelf: Shelf) -> None:
    sets = shelf.sets()
    assert sets.first(key(1), "read, grep") == "read, grep"
    assert sets.first(key(1), "grep, read") == "read, grep"
    assert sets.first(key(2), "grep, read") == "grep, read"


def test_another_process_and_a_later_one_give_the_same(shelf: Shelf) -> None:
    one, other = shelf.sets(), shelf.sets()
    assert one.first(key(1), "é\ud800") == "é\ud800"
    assert other.first(key(1), "b") == "é\ud800"
    one.close()
    assert shelf.sets().first(key(1), "c") == "é\ud800"


def test_nobody_else_can_read_it(shelf: Shelf) -> None:
    shelf.sets().first(key(1), "a")
    assert stat.S_IMODE(shelf.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(shelf.path.parent.stat().st_mode) == 0o700


def test_processes_that_come_at_the_same_time_agree(shelf: Shelf) -> None:
    barrier, said = threading.Barrier(6), []

    def run(number: int) -> None:
        sets = ToolSets(shelf.path, clock=shelf.clock, lock_timeout_s=10)
        barrier.wait(10)
        said.append([sets.first(key(n), f"by {number}") for n in range(20)])
        sets.close()

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(said) == 6
    assert all(texts == said[0] for texts in said)


def test_the_least_recently_used_are_forgotten(shelf: Shelf) -> None:
    sets = shelf.sets(max_sets=3)
    for number in range(3):
        sets.first(key(number), "a")
        shelf.clock.now += 1
    shelf.clock.now += HOUR
    sets.first(key(0), "a")
    sets.first(key(3), "a")
    assert shelf.rows() == [0, 2, 3]


def test_many_bytes_are_too_many(shelf: Shelf) -> None:
    sets = shelf.sets(max_bytes=400)
    for number in range(30):
        shelf.clock.now += 1
        sets.first(key(number), f"text {number}")
    assert 5 < len(shelf.rows()) < 30
    assert shelf.rows()[-1] == 29


def test_a_text_beyond_all_measure_is_not_kept(shelf: Shelf) -> None:
    sets, text = shelf.sets(), "x" * 5_000_000
    assert sets.first(key(1), text) == text
    assert not shelf.path.exists()


def test_a_reader_changes_nothing(shelf: Shelf) -> None:
    reader = shelf.sets(is_read_only=True)
    assert reader.first(key(1), "a") == "a"
    assert not shelf.path.exists()
    shelf.sets().first(key(1), "first")
    assert shelf.sets(is_read_only=True).first(key(1), "b") == "first"
    assert shelf.sets(is_read_only=True).first(key(2), "b") == "b"
    assert shelf.rows() == [1]


def test_after_its_end_it_gives_back_what_it_gets(shelf: Shelf) -> None:
    sets = shelf.sets()
    sets.close()
    assert sets.first(key(1), "a") == "a"
    assert not shelf.path.exists()


# ---- a file that can't be used


def garbage(path: Path) -> None:
    path.write_bytes(b"this is no database" * 100)


def folder(path: Path) -> None:
    path.mkdir()


def other_table(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE tool_sets (key BLOB)")
        db.commit()


def blocked_parent(path: Path) -> None:
    path.parent.rmdir()
    path.parent.write_text("a file")


@pytest.mark.parametrize("spoil", [garbage, folder, other_table, blocked_parent])
def test_a_file_that_is_no_use_is_said_once_and_orders_hold_for_this_process(
    shelf: Shelf, spoil: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    shelf.path.parent.mkdir(parents=True)
    spoil(shelf.path)
    sets = shelf.sets()
    with caplog.at_level(logging.WARNING):
        assert sets.first(key(1), "a") == "a"
        shelf.clock.now += HOUR
        assert sets.first(key(1), "b") == "a"
        assert sets.first(key(2), "b") == "b"
    assert len(caplog.records) == 1
    assert str(shelf.path) in caplog.text


def test_a_file_that_is_locked_or_full_is_tried_again_later(
    shelf: Shelf, caplog: pytest.LogCaptureFixture
) -> None:
    shelf.sets().first(key(9), "a")
    sets = shelf.sets()
    with closing(sqlite3.connect(shelf.path)) as db:
        db.execute("BEGIN IMMEDIATE")
        assert sets.first(key(1), "a") == "a"
        assert sets.first(key(9), "b") == "b", "it is left alone for a while"
        db.execute("ROLLBACK")
    assert shelf.rows() == [9]
    shelf.clock.now += 31
    assert sets.first(key(2), "c") == "c"
    assert shelf.rows() == [2, 9]
    assert len(caplog.records) == 1


def test_a_row_that_is_broken_is_written_anew(shelf: Shelf) -> None:
    shelf.sets().first(key(1), "a")
    for broken in (b"", b"\x00\x01", "text", 5):
        with closing(sqlite3.connect(shelf.path)) as db:
            db.execute("UPDATE tool_sets SET tools = ?", (broken,))
            db.commit()
        assert shelf.sets().first(key(1), "new") == "new"
        assert shelf.sets().first(key(1), "newer") == "new"
