"""A look into a store from beside: roots, token ids, children; nothing is changed."""

import json
import os
from dataclasses import replace

import pytest

from omlx.storage.layout import BLOCKS, ROOT_FILE, BlockHash
from omlx.storage.peek import Peek, RootFile, root_files
from tests.fakes.blocks import (
    DIRECTORY,
    OTHER_ROOT,
    ROOT,
    Shelf,
    make_block,
    make_chain,
    make_state,
    shelf_and_fs,
)
from tests.fakes.fs import MemoryFileSystem

CHAIN = make_chain(3)
TAIL = make_block(CHAIN[1].key.name, 5, count=2)
FOLDER = DIRECTORY / BLOCKS / ROOT.hex()[:16]


@pytest.fixture
def store() -> tuple[Shelf, MemoryFileSystem]:
    shelf, _, fs = shelf_and_fs()
    for block in (*CHAIN, TAIL):
        shelf.clock.now += 1
        shelf.put(block)
    return shelf, fs


Store = tuple[Shelf, MemoryFileSystem]


def test_tokens_of_blocks(store: Store) -> None:
    peek = Peek(DIRECTORY, ROOT, store[1])
    for block in (*CHAIN, TAIL):
        assert peek.has(block.key)
        assert peek.tokens(block.key) == block.tokens
    absent = make_block(ROOT, 99).key
    assert not peek.has(absent)
    assert peek.tokens(absent) is None
    assert Peek(DIRECTORY, OTHER_ROOT, store[1]).tokens(CHAIN[0].key) is None


def test_a_bad_file_is_left_where_it_is(store: Store) -> None:
    fs = store[1]
    peek = Peek(DIRECTORY, ROOT, fs)
    before = sorted(fs.files())
    other = replace(CHAIN[1].key, parent=BlockHash(bytes(32)))
    assert peek.tokens(other) is None
    assert sorted(fs.files()) == before


def test_children_come_newest_first(store: Store) -> None:
    peek = Peek(DIRECTORY, ROOT, store[1])
    assert [c.key for c in peek.children(CHAIN[1].key.name)] == [TAIL.key, CHAIN[2].key]
    assert [c.key for c in peek.children(BlockHash(ROOT))] == [CHAIN[0].key]
    assert peek.children(TAIL.key.name) == []


def test_a_state_tells_the_tokens_of_its_block(store: Store) -> None:
    shelf, fs = store
    shelf.put(make_state(CHAIN[2]))
    peek = Peek(DIRECTORY, ROOT, fs)
    assert [c.key.name for c in peek.children(CHAIN[1].key.name)].count(CHAIN[2].key.name) == 1
    fs.unlink(CHAIN[2].path())
    assert peek.tokens(CHAIN[2].key) == CHAIN[2].tokens
    assert not peek.has(CHAIN[2].key)


def test_a_store_that_is_not_there() -> None:
    fs = MemoryFileSystem(lambda: 0.0)
    assert root_files(DIRECTORY, fs) == []
    assert Peek(DIRECTORY, ROOT, fs).children(BlockHash(ROOT)) == []


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        (
            {"model": "m", "fingerprint": "ab", "layout": {"block_size": "4", "n": 5}},
            [RootFile(FOLDER.name, "m", "ab", {"block_size": "4", "n": "5"})],
        ),
        ({"model": "m", "fingerprint": "ab"}, []),
        ({"model": 3, "fingerprint": "ab", "layout": {"a": "b"}}, []),
        ([], []),
    ],
)
def test_root_files(store: Store, described: object, expected: list[RootFile]) -> None:
    fs = store[1]
    write(fs, json.dumps(described).encode())
    assert root_files(DIRECTORY, fs) == expected


def test_a_broken_root_file(store: Store) -> None:
    write(store[1], b"{")
    assert root_files(DIRECTORY, store[1]) == []


def write(fs: MemoryFileSystem, data: bytes) -> None:
    path = FOLDER / ROOT_FILE
    if path in fs.files():
        fs.unlink(path)
    fd = fs.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    fs.writev(fd, [memoryview(data)])
    fs.close(fd)
