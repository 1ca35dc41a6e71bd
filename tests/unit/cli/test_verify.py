"""`omlx cache verify` over a store of real files."""

import io
import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from omlx.cli.view.verify import Bar
from omlx.storage.check import CheckProgress
from omlx.storage.fs import RealFileSystem
from tests.fakes.blocks import Shelf, make_block, make_chain, make_state
from tests.unit.cli.conftest import Cli

CHAIN = make_chain(3)
TAIL = make_block(CHAIN[2].key.name, 5, count=2)
STATE = make_state(TAIL)


@pytest.fixture
def store(home: Path) -> Path:
    """Four blocks and a snapshot."""
    directory = home / "cache"
    shelf = Shelf(RealFileSystem(), directory=directory)
    for block in (*CHAIN, TAIL, STATE):
        shelf.put(block)
    return directory


def spoil(store: Path) -> None:
    """One file is cut, one has a flipped bit, one is of another version, one was left behind."""
    os.truncate(CHAIN[0].path(directory=store), 4200)
    state = STATE.path(directory=store)
    content = bytearray(state.read_bytes())
    content[-1] ^= 1
    state.write_bytes(content)
    (state.parent / "other.safetensors").write_bytes(b"12345")
    left = state.parent / ".tmp-1-1"
    left.write_bytes(b"half")
    os.utime(left, (0, 0))


def rows_of(text: str) -> list[str]:
    return [" ".join(line.split()) for line in text.splitlines()]


def test_an_empty_cache(cli: Cli, home: Path) -> None:
    outcome = cli("cache", "verify")
    assert outcome.code == 0 and outcome.err == ""
    assert outcome.out == f"cache in {home}/cache\n\ngood  0 blocks, 0 snapshots, 0 B\n"
    assert not home.exists()


def test_a_sound_cache(cli: Cli, store: Path) -> None:
    outcome = cli("cache", "verify")
    assert outcome.code == 0
    assert rows_of(outcome.out)[2].startswith("good 4 blocks, 1 snapshot, ")
    lines = outcome.err.splitlines()
    assert lines[-1].startswith("verified ") and len(lines) == 4


def test_bad_files_are_an_error_until_they_are_removed(cli: Cli, store: Path) -> None:
    spoil(store)
    files = sorted(store.rglob("*"))
    outcome = cli("cache", "verify")
    assert outcome.code == 1
    rows = rows_of(outcome.out)
    assert rows[2].startswith("good 3 blocks, 0 snapshots, ")
    assert rows[3:6] == ["bad checksum 1, truncated 1", "left by writers 1 file", OTHER]
    assert f"truncated {CHAIN[0].path(directory=Path())}" in rows
    assert f"error: bad files in {store}: 2\n" in outcome.err
    assert "hint: omlx cache verify --repair removes them\n" in outcome.err
    assert sorted(store.rglob("*")) == files
    repaired = cli("cache", "verify", "--repair")
    assert repaired.code == 0
    rows = rows_of(repaired.out)
    assert rows[4:7] == ["removed 2 bad files", "left by writers 1 file, 1 removed", OTHER]
    again = cli("cache", "verify", "--repair")
    assert rows_of(again.out)[2:] == [rows[2], OTHER]


OTHER = "other version 1 file"


def test_json(cli: Cli, store: Path) -> None:
    spoil(store)
    outcome = cli("cache", "verify", "--json", "--repair")
    assert outcome.code == 0
    report = json.loads(outcome.out)
    assert (report["blocks"], report["snapshots"], report["repair"]) == (3, 0, True)
    assert report["bad"] == {"checksum": 1, "truncated": 1}
    assert {file["place"] for file in report["bad_files"]} == {
        CHAIN[0].path(directory=Path()).as_posix(),
        STATE.path(directory=Path()).as_posix(),
    }
    assert all(file["removed"] for file in report["bad_files"])
    assert report["stale_temporary"] == {"files": 1, "removed": 1}
    assert (report["other_version"], report["not_opened"]) == (1, 0)


def test_many_bad_files_are_not_all_named(cli: Cli, home: Path) -> None:
    shelf = Shelf(RealFileSystem(), directory=home / "cache")
    for block in make_chain(25):
        shelf.put(block)
        os.truncate(block.path(directory=home / "cache"), 0)
    lines = cli("cache", "verify").out.splitlines()
    assert lines[-1] == "5 more files"
    assert len(json.loads(cli("cache", "verify", "--json").out)["bad_files"]) == 25


def test_a_cache_folder_that_is_a_file_is_an_error(cli: Cli) -> None:
    Path("file").write_text("")
    outcome = cli("cache", "verify", "--cache-dir", "file")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith(f"error: the cache folder {Path.cwd()}/file cannot be read")


def test_the_bar_shows_how_far_it_is() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    with Bar(console) as bar:
        bar(CheckProgress(1, 2, 500_000, 1_000_000))
    assert isinstance(console.file, io.StringIO)
    assert "0.5/1.0 MB" in console.file.getvalue()
