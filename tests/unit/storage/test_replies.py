"""The store of replies: newest first, within its bounds, and no more than a miss when it fails."""

import logging
import multiprocessing
import sqlite3
from array import array
from collections.abc import Iterator
from pathlib import Path

import pytest

from omlx.storage.replies import Replies, Reply
from tests.remembered import made_of

KEY, OTHER = b"k" * 32, b"o" * 32


def reply(place: str, *ids: int) -> Reply:
    return Reply(place.encode(), array("I", ids))


@pytest.fixture(autouse=True)
def closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close what a test leaves open, as one does that means a crash."""
    made = made_of(Replies, monkeypatch)
    yield
    for one in made:
        one.close()


def opened(path: Path, *, max_bytes: int = 10**6, max_replies: int = 1000, now: float = 0.0):
    return Replies(
        path,
        max_bytes=max_bytes,
        max_replies=max_replies,
        clock=lambda: now,
        lock_timeout_s=0.01,
    )


def test_the_newest_comes_first_and_survives(tmp_path: Path) -> None:
    path = tmp_path / "state" / "prompts.sqlite3"
    replies = opened(path)
    first, second = reply("a", 1, 2**32 - 1), reply("b", 3)
    replies.put(KEY, first)
    replies.put(KEY, second)
    replies.put(OTHER, first)
    assert replies.get([KEY, OTHER, b"none"]) == {KEY: [second, first], OTHER: [first]}
    replies.close()
    assert path.stat().st_mode & 0o777 == 0o600
    assert opened(path).get([KEY]) == {KEY: [second, first]}


def test_one_place_has_one_reply(tmp_path: Path) -> None:
    replies = opened(tmp_path / "p")
    for one in (reply("a", 1), reply("b", 2), reply("a", 3)):
        replies.put(KEY, one)
    assert replies.get([KEY])[KEY] == [reply("a", 3), reply("b", 2)]


def test_a_key_has_a_few(tmp_path: Path) -> None:
    replies = opened(tmp_path / "p")
    for number in range(50):
        replies.put(KEY, reply(str(number), number))
    assert [one.ids[0] for one in replies.get([KEY])[KEY]] == list(range(49, 17, -1))


@pytest.mark.parametrize("bounds", [{"max_replies": 100}, {"max_bytes": 100 * 160}])
def test_the_oldest_go(tmp_path: Path, bounds: dict[str, int]) -> None:
    replies = opened(tmp_path / "p", **bounds)
    keys = [number.to_bytes(32) for number in range(300)]
    for number, key in enumerate(keys):
        replies.put(key, reply("a", *range(10), number))
    kept = replies.get(keys)
    assert 80 <= len(kept) <= 100 + 64 and keys[-1] in kept and keys[0] not in kept
    assert list(kept) == keys[: -len(kept) - 1 : -1]


def test_many_keys_at_once(tmp_path: Path) -> None:
    replies = opened(tmp_path / "p")
    keys = [number.to_bytes(32) for number in range(1203)]
    for key in keys[::400]:
        replies.put(key, reply("a", 1))
    assert sorted(replies.get(keys)) == keys[::400]


def garbage(path: Path) -> None:
    path.write_bytes(b"not a database" * 1000)


def torn(path: Path) -> None:
    replies = opened(path)
    for number in range(200):
        replies.put(number.to_bytes(32), reply("a", *range(200)))
    replies.close()
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)
    path.write_bytes(data)


def a_folder(path: Path) -> None:
    path.mkdir()


def of_others(path: Path) -> None:
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE replies (what TEXT)")
    db.close()


def locked(path: Path) -> sqlite3.Connection:
    replies = opened(path)
    replies.put(OTHER, reply("a", 1))
    replies.close()
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA locking_mode = EXCLUSIVE")
    db.execute("BEGIN EXCLUSIVE")
    db.execute("INSERT INTO replies (key, place, size, ids) VALUES ('a', 'b', 1, 'c')")
    return db


@pytest.mark.parametrize("spoil", [garbage, torn, a_folder, of_others, locked])
def test_a_file_that_fails_is_said_once(tmp_path: Path, spoil, caplog) -> None:
    path = tmp_path / "p"
    held = spoil(path)
    replies = opened(path)
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            assert replies.get([KEY]) == {}
            replies.put(KEY, reply("a", number))
    assert str(path) in caplog.text
    assert len(caplog.records) == 1
    replies.close()
    if held is not None:
        held.close()


def test_a_full_disk_is_a_miss(tmp_path: Path, caplog) -> None:
    path = tmp_path / "p"
    replies = opened(path)
    replies.put(KEY, reply("a", 1))
    assert replies._writer is not None
    (pages,) = replies._writer.execute("PRAGMA page_count").fetchone()
    replies._writer.execute(f"PRAGMA max_page_count = {pages}").fetchall()
    replies.put(OTHER, reply("a", *range(100_000)))
    assert len(caplog.records) == 1 and "full" in caplog.text


def test_it_is_tried_again_after_a_while(tmp_path: Path) -> None:
    now = [0.0]
    path = tmp_path / "p"
    held = locked(path)
    replies = Replies(path, max_bytes=10**6, clock=lambda: now[0], lock_timeout_s=0.01)
    replies.put(KEY, reply("a", 1))
    held.close()
    replies.put(KEY, reply("a", 1))
    assert replies.get([KEY]) == {}
    now[0] = 61.0
    replies.put(KEY, reply("a", 2))
    assert replies.get([KEY]) == {KEY: [reply("a", 2)]}


@pytest.mark.parametrize("ids", [b"123", "text", None, 7])
def test_rows_that_are_none(tmp_path: Path, ids: object, caplog) -> None:
    path = tmp_path / "p"
    replies = opened(path)
    replies.put(KEY, reply("a", 1))
    with sqlite3.connect(path) as db:
        db.execute("UPDATE replies SET ids = ?", ("" if ids is None else ids,))
    db.close()
    assert opened(path).get([KEY]) in ({}, {KEY: [reply("a")]})
    assert len(caplog.records) <= 1


def _put_many(path: Path, first: int) -> None:
    replies = Replies(path, max_bytes=10**7, clock=lambda: 0.0, lock_timeout_s=30)
    for number in range(first, first + 100):
        replies.put(number.to_bytes(32), reply("a", number))
    replies.close()


def test_several_processes(tmp_path: Path) -> None:
    path = tmp_path / "p"
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_put_many, args=(path, first)) for first in (0, 100, 200)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
    found = opened(path).get([number.to_bytes(32) for number in range(300)])
    assert len(found) == 300


def test_other_tables_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "p"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE toolsets (name TEXT)")
        db.execute("INSERT INTO toolsets VALUES ('x')")
    db.close()
    opened(path, max_replies=1).put(KEY, reply("a", 1))
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT name FROM toolsets").fetchall() == [("x",)]
    db.close()
