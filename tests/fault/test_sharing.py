"""S7: several processes on one directory, one of them killed in a write."""

import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from omlx.storage.check import Checker
from omlx.storage.fs import FileSystem, RealFileSystem
from omlx.storage.scan import FileKind, is_process_alive, scan
from omlx.storage.survey import execute, plan_prune
from tests.fakes.blocks import DIRECTORY, Clock, Shelf, make_chain, make_state
from tests.fakes.fs import MemoryFileSystem
from tests.fakes.turns import TurnFileSystem, Turns
from tests.live import run_omlx

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
        shelf.store.remove(block.key)
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


def test_readers_a_prune_and_a_check_beside_writers_that_are_killed(
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
        if rounds % 5 == 2:
            checker = Checker(directory, fs, repair=True)
            assert checker.run(now=shelf.clock(), progress=lambda progress: None).bad == ()
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


FILLER = """
import sys
import time
from pathlib import Path
from omlx.storage.fs import RealFileSystem
from tests.fakes.blocks import Shelf, make_chain, make_state

number, max_bytes = int(sys.argv[2]), int(sys.argv[3])
shelf = Shelf(RealFileSystem(), time.time, directory=Path(sys.argv[1]), max_bytes=max_bytes)
for seed in range(30):
    for block in make_chain(4, seed=1000 * number + seed, width=2000):
        shelf.put(block)
        shelf.put(make_state(block, width=5000))
        shelf.store.touch([block.key])
    print("round", flush=True)
counters = shelf.store.counters()
assert counters.blocks_written > 200 and counters.evicted > 100 and not counters.bad, counters
"""
BLOCK_BYTES = 4096 + 16 + 4 * 2000 * (2 * 2 + 4)
STATE_BYTES = 4096 + 16 + 5000 * (3 * 4 + 4)
LARGEST = max(BLOCK_BYTES, STATE_BYTES)
MAX_BYTES = 2_000_000
NUM_FILLERS = 3


def held_bytes(directory: Path, *, fs: FileSystem) -> tuple[int, int]:
    """Bytes of all files, and of the states."""
    files = scan(fs, directory)
    states = sum(file.size for file in files if file.kind is FileKind.STATE)
    return sum(file.size for file in files), states


def stop(process: "subprocess.Popen[str]") -> None:
    """Stop a process, so that nothing moves while files are counted, or see that it has ended."""
    os.kill(process.pid, signal.SIGSTOP)  # send_signal() would take its exit status away
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


@contextmanager
def running(script: str, number: int, directory: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """So many processes of a script on one directory; killed at the end."""
    command = [sys.executable, "-c", script, str(directory)]
    started = [
        subprocess.Popen([*command, str(i), str(MAX_BYTES)], stdout=subprocess.PIPE, text=True)
        for i in range(number)
    ]
    yield started
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def fillers(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that together write many times what the directory may hold."""
    with running(FILLER, NUM_FILLERS, tmp_path / "cache") as started:
        yield started


def test_processes_that_fill_a_directory_keep_its_budget_within_a_block_each(
    tmp_path: Path, fillers: list[subprocess.Popen[str]]
) -> None:
    """S7: the ceiling holds although each of them believes that it is alone."""
    directory, fs = tmp_path / "cache", RealFileSystem()
    seen: list[tuple[int, int]] = []
    for _ in range(30):
        for filler in fillers:
            assert filler.stdout is not None and filler.stdout.readline() == "round\n"
        for filler in fillers:
            stop(filler)
        seen.append(held_bytes(directory, fs=fs))
        for filler in fillers:
            os.kill(filler.pid, signal.SIGCONT)
    assert [filler.wait() for filler in fillers] == [0] * NUM_FILLERS
    most = max(total for total, _ in seen)
    assert MAX_BYTES * 0.8 < most <= MAX_BYTES + NUM_FILLERS * LARGEST
    assert max(states for _, states in seen) <= MAX_BYTES // 4 + NUM_FILLERS * STATE_BYTES


SHARER = """
import random
import sys
import time
from pathlib import Path
from omlx.storage.fs import RealFileSystem
from tests.fakes.blocks import Shelf, make_chain, make_state

number, max_bytes = int(sys.argv[2]), int(sys.argv[3])
shelf = Shelf(RealFileSystem(), time.time, directory=Path(sys.argv[1]), max_bytes=max_bytes)
chains = [make_chain(4, seed=seed, width=2000) for seed in range(12)]
blocks = [[*chain, *(make_state(block, width=5000) for block in chain)] for chain in chains]
rng = random.Random(number)
hits = 0
while True:
    for chain in rng.sample(blocks, 4):
        for block in chain:
            shelf.put(block)
        for block in chain:
            found = shelf.get(block)
            assert found in (None, block.data)
            hits += found is not None
        children = shelf.store.children(chain[0].key.name)
        assert all(child.key in (chain[1].key, chain[5].key) for child in children)
        shelf.store.touch([block.key for block in chain])
    assert not shelf.store.counters().bad, shelf.store.counters()
    print(hits, flush=True)
"""
NUM_SHARERS = 2


@pytest.fixture
def sharers(tmp_path: Path) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that write and read the same blocks, many times what the directory may hold."""
    with running(SHARER, NUM_SHARERS, tmp_path / "cache") as started:
        yield started


def remove_by_hand(directory: Path, rng: random.Random) -> None:
    """Remove a few files, and once in a while a whole folder or everything."""
    files = list(directory.rglob("*.safetensors"))
    for path in rng.sample(files, min(5, len(files))):
        path.unlink(missing_ok=True)
    if files and rng.random() < 0.3:
        shutil.rmtree(rng.choice([files[0].parent, directory / "blocks"]), ignore_errors=True)


@pytest.mark.e2e
def test_processes_beside_commands_and_someone_who_removes_files(
    tmp_path: Path, sharers: list[subprocess.Popen[str]]
) -> None:
    """S7: what is read is right, the commands succeed, and the budget holds within a block each."""
    directory, fs, rng = tmp_path / "cache", RealFileSystem(), random.Random(1)
    commands = [
        ("cache", "prune", "--max-size", str(MAX_BYTES // 2)),
        ("cache", "verify"),
        ("cache", "inspect"),
        ("cache", "verify", "--repair"),
        ("cache", "prune", "--older-than", "1s"),
    ]
    seen: list[int] = []
    hits = [0] * NUM_SHARERS
    for command in commands:
        for _ in range(2):
            for i, sharer in enumerate(sharers):
                assert sharer.stdout is not None
                hits[i] = int(sharer.stdout.readline() or -1)
            for sharer in sharers:
                stop(sharer)
            seen.append(held_bytes(directory, fs=fs)[0])
            for sharer in sharers:
                os.kill(sharer.pid, signal.SIGCONT)
            remove_by_hand(directory, rng)
        done = run_omlx(*command, "--cache-dir", str(directory), home=tmp_path)
        assert done.returncode == 0 and "Traceback" not in done.stderr, done
    assert min(hits) > 50
    assert MAX_BYTES // 2 < max(seen) <= MAX_BYTES + NUM_SHARERS * LARGEST


@pytest.mark.parametrize("seed", range(4))
def test_however_their_calls_fall_between_each_other_the_budget_is_kept(seed: int) -> None:
    """The same at every moment and in a known order, on a file system with ticks of 4 ms."""
    clock = Clock(1_000_000.00005)
    memory = MemoryFileSystem(lambda: clock.now // 0.004 * 0.004 + 0.0001)
    memory.mkdir(DIRECTORY, 0o700)
    most = 0

    def after_call() -> None:
        nonlocal most
        clock.now += 0.0001
        most = max(most, memory.used_bytes())

    turns = Turns(seed, after_call)
    written: list[int] = []

    def fill(number: int, wait: Callable[[], None]) -> None:
        fs = TurnFileSystem(memory, turns, wait)
        shelf = Shelf(fs, clock, max_bytes=MAX_BYTES, pid=100 + number)
        for round_idx in range(12):
            for block in make_chain(4, seed=1000 * number + round_idx, width=2000):
                shelf.put(block)
                shelf.put(make_state(block, width=5000))
                shelf.store.touch([block.key])
        counters = shelf.store.counters()
        assert not counters.bad
        written.append(counters.blocks_written)

    turns.run([partial(fill, number) for number in range(NUM_FILLERS)])
    assert sum(written) >= 0.95 * NUM_FILLERS * 12 * 8
    assert MAX_BYTES * 0.95 < most <= MAX_BYTES + (NUM_FILLERS - 1) * LARGEST
    assert held_bytes(DIRECTORY, fs=memory)[1] <= MAX_BYTES // 4 + NUM_FILLERS * STATE_BYTES
