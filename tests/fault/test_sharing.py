"""S7: several processes on one directory, one of them killed in a write."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from omlx.storage.fs import RealFileSystem
from omlx.storage.scan import is_process_alive
from omlx.storage.survey import execute, plan_prune
from tests.fakes.blocks import Shelf, make_chain

CHAIN = make_chain(8, width=2000)
WRITER = """
import sys
from pathlib import Path
from omlx.storage.fs import RealFileSystem
from tests.fakes.blocks import Shelf, make_chain

shelf = Shelf(RealFileSystem(), directory=Path(sys.argv[1]), max_bytes=400_000)
chain = make_chain(8, width=2000)
while True:
    for block in chain:
        shelf.put(block)
        found = shelf.get(block)
        assert found in (None, block.data)
        shelf.store.remove(block.key.parent, block.key.name, block.key.count)
    print("round", flush=True)
"""


@pytest.fixture
def writers(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes that put, read and remove the same blocks until they are killed."""
    command = [sys.executable, "-c", WRITER, str(tmp_path / "cache")]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    yield started
    for writer in started:
        writer.kill()
        writer.wait()
        assert writer.stdout is not None
        writer.stdout.close()


def test_readers_and_a_prune_beside_writers_that_are_killed(
    tmp_path: Path, writers: list[subprocess.Popen[str]]
) -> None:
    directory = tmp_path / "cache"
    fs = RealFileSystem()
    shelf = Shelf(fs, directory=directory, is_alive=is_process_alive)
    hits = 0
    for rounds in range(20):
        for writer in writers:
            assert writer.stdout is not None and writer.stdout.readline() == "round\n"
        for block in CHAIN:
            shelf.put(block)
            found = shelf.get(block)
            assert found in (None, block.data)
            hits += found is not None
        shelf.store.index()
        if rounds % 5 == 0:
            execute(plan_prune(directory, fs, now=shelf.clock(), max_bytes=0), directory, fs)
    for writer in writers:
        writer.kill()
        assert writer.wait() == -9
    assert hits > 20 and shelf.store.counters().bad == {}
    indexed = shelf.store.index()
    assert not list(directory.rglob(".tmp-*"))
    files = [path for path in directory.rglob("*") if path.is_file()]
    assert indexed.num_bytes == sum(path.stat().st_size for path in files)
    assert all(shelf.get(block) in (None, block.data) for block in CHAIN)
