"""Writing blocks: within the budget, atomically, and never a trouble for the caller."""

import errno
import json
import logging
import os
from pathlib import Path

import pytest

from omlx.storage.layout import BlockHash
from omlx.storage.store import PutResult
from tests.fakes.blocks import DIRECTORY, ROOT, make_block, make_chain, shelf_and_fs

CHAIN = make_chain(3)


def test_a_failed_write_is_not_said_to_be_stored() -> None:
    """S3: the writer fails on block 3 of 5."""
    chain = make_chain(5)
    shelf, fs, memory = shelf_and_fs()
    results: list[PutResult] = []
    for i, block in enumerate(chain):
        if i == 2:
            fs.fail_next("rename", "forever", errno.EACCES)
        results.append(shelf.put(block))
    assert results == [PutResult.STORED] * 2 + [PutResult.DROPPED] * 3
    assert [shelf.has(block) for block in chain] == [True, True, False, False, False]
    assert shelf.budget.used_bytes == memory.used_bytes()
    assert shelf.store.counters().dropped_writes == 3


@pytest.mark.parametrize("call", ["writev", "close", "rename", "open", "free_bytes"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_one_failure_evicts_and_tries_once_more(call: str, error: int) -> None:
    shelf, fs, memory = shelf_and_fs()
    shelf.budget.min_free_bytes = 1
    shelf.put(CHAIN[0])
    shelf.clock.now += 1
    other = make_block(ROOT, 77)
    fs.fail_next(call, "once", error)
    assert shelf.put(other) is PutResult.STORED
    assert shelf.get(other) == other.data
    assert not shelf.has(CHAIN[0]), "the oldest block made room"
    assert not [path for path in memory.files() if path.name.startswith(".tmp")]
    assert shelf.store.counters().evicted == 1


@pytest.mark.parametrize(
    "error", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES, errno.EDQUOT]
)
def test_a_disk_that_fails_stops_writing_for_a_minute_and_says_so_once(
    error: int, caplog: pytest.LogCaptureFixture
) -> None:
    """S4: disk full, read-only remount, quota."""
    shelf, fs, memory = shelf_and_fs()
    shelf.put(CHAIN[0])
    fs.fail_next("open", "forever", error)
    with caplog.at_level(logging.WARNING, logger="omlx.storage"):
        assert shelf.put(CHAIN[1]) is PutResult.DROPPED
        assert shelf.store.counters().is_paused
        calls = len(fs.calls)
        shelf.clock.now += 59
        assert shelf.put(CHAIN[1]) is PutResult.DROPPED
        assert fs.calls[calls:] == ["stat"], "nothing is tried while writing is stopped"
        shelf.clock.now += 2
        assert shelf.put(CHAIN[1]) is PutResult.DROPPED
        assert fs.calls[calls:].count("open") == 2
    assert len(caplog.records) == 1 and os.strerror(error) in caplog.text
    fs.heal()
    shelf.clock.now += 61
    assert shelf.put(CHAIN[1]) is PutResult.STORED
    assert not shelf.store.counters().is_paused
    assert shelf.budget.used_bytes == memory.used_bytes()
    assert shelf.store.counters().dropped_writes == 3


def test_a_clock_set_back_does_not_lengthen_the_pause() -> None:
    shelf, fs, _ = shelf_and_fs()
    fs.fail_next("open", "forever", errno.EROFS)
    shelf.put(CHAIN[0])
    fs.heal()
    shelf.clock.now -= 86_400
    assert shelf.put(CHAIN[0]) is PutResult.STORED


def test_a_full_volume_never_breaks_a_put() -> None:
    shelf, _, memory = shelf_and_fs()
    shelf.put(CHAIN[0])
    memory.capacity = memory.used_bytes() + 1000
    shelf.clock.now += 1
    other = make_block(ROOT, 5)
    assert shelf.put(other) is PutResult.STORED
    assert not shelf.has(CHAIN[0]) and shelf.get(other) == other.data
    memory.capacity = 0
    assert shelf.put(CHAIN[0]) is PutResult.DROPPED
    assert not [path for path in memory.files() if path.name.startswith(".tmp")]


def test_the_ceiling_holds_at_every_moment_over_all_files(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """S4: the limit counts every file."""
    shelf, _, memory = shelf_and_fs(max_bytes=20_000)
    memory.write(DIRECTORY / "notes", bytes(3000))
    for seed in range(30):
        shelf.clock.now += 1
        assert shelf.put(make_block(ROOT, seed, width=seed)) is PutResult.STORED
        assert shelf.budget.used_bytes == memory.used_bytes()
    assert 3000 + 4096 < memory.peak_bytes <= 20_000
    assert shelf.store.counters().evicted > 20
    with caplog.at_level(logging.WARNING, logger="omlx.storage"):
        for _ in range(3):
            assert shelf.put(make_block(ROOT, 99, width=2000)) is PutResult.DROPPED
    assert len(caplog.records) == 1 and not shelf.store.counters().is_paused


def test_a_root_says_which_model_it_is_of() -> None:
    shelf, _, memory = shelf_and_fs()
    assert memory.files() == []
    shelf.put(CHAIN[0])
    path = CHAIN[0].path().parent.parent / "root.json"
    assert json.loads(memory.content(path)) == {
        "format": "1",
        "root": ROOT.hex(),
        "model": "tiny",
        "layout": {"block_size": "4"},
    }
    assert memory.stat(path).mode == 0o600


def test_a_directory_removed_under_a_running_store_is_made_again() -> None:
    shelf, _, memory = shelf_and_fs()
    shelf.put(CHAIN[0])
    for path in memory.files():
        memory.unlink(path)
    shard = CHAIN[0].path().parent
    for folder in (shard, shard.parent, shard.parent.parent):
        memory.rmdir(folder)
    assert shelf.put(CHAIN[0]) is PutResult.STORED
    assert shelf.get(CHAIN[0]) == CHAIN[0].data
    assert shard.parent / "root.json" in memory.files()


def test_a_vanished_cache_directory_is_not_made_on_another_volume() -> None:
    shelf, _, memory = shelf_and_fs()
    memory.rmdir(DIRECTORY)
    assert shelf.put(CHAIN[0]) is PutResult.DROPPED
    assert shelf.get(CHAIN[0]) is None and shelf.store.children(BlockHash(ROOT)) == []
    assert shelf.store.index().num_blocks == 0
    assert memory.names(Path("/")) == []


def test_a_temporary_name_in_use_is_not_taken_over() -> None:
    shelf, _, memory = shelf_and_fs()
    taken = CHAIN[0].path().parent / f".tmp-{os.getpid()}-2"
    memory.write(taken, b"of another store in this process")
    assert shelf.put(CHAIN[0]) is PutResult.STORED
    assert memory.content(taken) == b"of another store in this process"
    assert shelf.get(CHAIN[0]) == CHAIN[0].data


def test_too_many_sections_are_dropped_not_raised() -> None:
    shelf, _, _ = shelf_and_fs()
    block = CHAIN[0]
    sections = [
        (type(block.specs[0])(f"{i}.k", "U8", (1,)), memoryview(b"x")) for i in range(12_000)
    ]
    assert shelf.store.put(block.key, block.tokens, sections) is PutResult.DROPPED
