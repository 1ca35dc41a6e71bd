"""Point 2, cases S3, S4, S8, S10: a disk that fails, is full, slow, or loses a file costs time
only, and what the cache says of itself stays true."""

import errno
import logging
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from omlx.cache.block import Chain
from omlx.cache.hashing import token_array
from omlx.storage.budget import Budget
from omlx.storage.fs import RealFileSystem
from omlx.storage.scan import scan
from omlx.storage.store import PutResult
from tests.acceptance.cache.cases import (
    ATTENTION,
    B,
    FailingWrites,
    SlowWrites,
    Telling,
    assert_close,
    assert_same,
    block_files,
    disk_of,
    prefix_of,
    prompt,
    settle,
    start,
    use_file_system,
)
from tests.acceptance.conftest import Figure
from tests.fakes.blocks import (
    DIRECTORY,
    OTHER_ROOT,
    Clock,
    Shelf,
    make_block,
    make_chain,
    shelf_and_fs,
)
from tests.fakes.cache import BLOCK, BLOCK_BYTES, Rig
from tests.fakes.fs import FaultMode, MemoryFileSystem
from tests.fakes.harness import Harness

MB = 10**6


def held_bytes(directory: Path) -> int:
    return sum(p.stat().st_size for p in directory.rglob("*") if p.is_file())


def budget_of(harness: Harness) -> Budget:
    return disk_of(harness)._budget


@pytest.mark.parametrize(("error", "num_left"), [(errno.EACCES, 2), (errno.ENOSPC, 1)])
def test_s3_a_write_that_fails_is_not_in_the_index(
    error: int, num_left: int, tmp_path: Path, figure: Figure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer fails from block 3 of 5 on; for want of space it evicts one before it says so."""
    fs = FailingWrites(2, error)
    use_file_system(monkeypatch, fs)
    harness = start(ATTENTION, tmp_path)
    cold = harness.ask(prompt(5 * B + 1), 1)
    settle(harness)
    assert fs.num_failed == 2, "once, and once more after an eviction"
    budget = budget_of(harness)
    assert budget.num_blocks == len(block_files(tmp_path)) == num_left
    assert budget.used_bytes == held_bytes(tmp_path) and set(budget._reserved.values()) == {0}
    assert not list(tmp_path.rglob(".tmp*"))
    dropped = disk_of(harness).counters().dropped_writes
    assert dropped >= 3
    again = harness.ask(prompt(5 * B + 1), 1)
    assert again.stats is not None and again.stats.cached_memory == 5 * B
    harness.restart()
    fs.is_broken = False
    warm = harness.ask(prompt(5 * B + 1), 1)
    assert warm.cached == num_left * B
    assert_close(warm, cold)
    harness.restart()
    assert harness.ask(prompt(5 * B + 1), 1).cached == 5 * B
    harness.stop()
    figure(
        f"S3 {errno.errorcode[error]} from block 3 of 5 on: {num_left} on disk and in the index, "
        f"nothing reserved, {dropped} dropped; then {num_left} reused, the rest stored again"
    )


class SmallDisk:
    """A tmpfs of 64 MB of its own, below `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path / "disk"
        self.path.mkdir()
        self.is_mounted = self._mount("size=64m") == 0

    def _mount(self, options: str) -> int:
        command = ["mount", "-t", "tmpfs", "-o", options, "omlx-test", str(self.path)]
        return subprocess.run(command, capture_output=True).returncode

    def make_read_only(self) -> None:
        assert self._mount("remount,ro") == 0

    def fill(self) -> None:
        """Another process takes all that is left."""
        code = "import sys; f = open(sys.argv[1], 'ab', 0)\nwhile f.write(bytes(4096)): pass"
        done = subprocess.run(["python3", "-c", code, str(self.path / "filler")], stderr=-3)
        assert done.returncode == 1, "it ends with ENOSPC"

    def unplug(self) -> None:
        if self.is_mounted:
            assert subprocess.run(["umount", "-l", str(self.path)]).returncode == 0
            self.is_mounted = False


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    disk = SmallDisk(tmp_path)
    yield disk
    disk.unplug()


def text(number: int) -> list[int]:
    """A text of 1,000 tokens with a marker of its own."""
    return [Telling.FIRST_MARKER + number % 200, *(3 + (number + i) % 250 for i in range(999))]


def check_answers(harness: Harness, numbers: range) -> None:
    for number in numbers:
        answer = harness.ask(text(number), 3)
        assert answer.tokens == [Telling.FIRST_MARKER + number % 200] * 3
        settle(harness)


def on_small_disk(disk: SmallDisk, **config: int) -> Harness:
    """8.4 kB a token; what is in memory is written at once, so that the disk has to keep up."""
    model = Telling(num_layers=8, num_heads=2)
    sizes = {"block_size": 250, "prefill_chunk": 500, "memory_bytes": 30 * MB, "write_delay_s": 0.0}
    return Harness(model, disk.path / "cache", **(sizes | config))


def test_s4_a_disk_that_is_full_read_only_or_gone(
    small_disk: SmallDisk, figure: Figure, caplog: pytest.LogCaptureFixture
) -> None:
    """The limit is larger than the disk, so that writes do meet its end."""
    caplog.set_level(logging.WARNING, logger="omlx.storage")
    if not small_disk.is_mounted:  # only root may; the fake file system below is the rest
        limited = on_small_disk(small_disk, disk_bytes=64 * MB)
        check_answers(limited, range(15))
        assert held_bytes(small_disk.path) <= 64 * MB
        limited.stop()
        figure("S4: no right to mount a disk here: only the limit in a folder was looked at")
        return
    harness = on_small_disk(small_disk, disk_bytes=1000 * MB)
    check_answers(harness, range(15))
    counters = disk_of(harness).counters()
    assert counters.evicted > 5 and not counters.is_paused, "evicted, tried again, stored"
    assert counters.dropped_writes == 0 and caplog.records == []
    full = counters.blocks_written
    for path in (small_disk.path / "cache").rglob("*.safetensors"):
        path.unlink()
    small_disk.fill()
    check_answers(harness, range(15, 20))
    assert disk_of(harness).counters().is_paused
    assert len(caplog.records) == 1 and "stopped writing" in caplog.text
    assert not list(small_disk.path.rglob(".tmp*"))
    (small_disk.path / "filler").unlink()
    restarted = restart_on(harness, caplog)
    check_answers(restarted, range(20, 24))
    small_disk.make_read_only()
    check_answers(restarted, range(18, 27))
    assert len(caplog.records) == 1
    restarted = restart_on(restarted, caplog)
    found = restarted.ask(text(23), 3)
    assert found.cached == 999, "what is on it is still read"
    check_answers(restarted, range(27, 30))
    small_disk.unplug()
    check_answers(restarted, range(22, 33))
    assert len(caplog.records) == 1
    restarted.stop()
    figure(
        f"S4 on a tmpfs of 64 MB: full: {full} blocks written, {counters.evicted} evicted; filled "
        "by another process, read-only, unplugged: every answer right, one line in the log each"
    )


def restart_on(harness: Harness, caplog: pytest.LogCaptureFixture) -> Harness:
    """The same directory with an empty memory, a new pause and a new log."""
    harness.restart()
    caplog.clear()
    return harness


@pytest.mark.parametrize("call", ["open", "writev", "rename"])
@pytest.mark.parametrize("mode", ["once", "forever"])
def test_s4_no_space_is_tried_again_once_then_said_once(
    call: str, mode: FaultMode, figure: Figure, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is synced, so there is no fsync that could fail."""
    shelf, fs, memory = shelf_and_fs()
    chain = make_chain(6)
    for block in chain[:3]:
        assert shelf.put(block) is PutResult.STORED
        shelf.clock.now += 1
    fs.calls.clear()
    fs.fail_next(call, mode, errno.ENOSPC)
    with caplog.at_level(logging.WARNING, logger="omlx.storage"):
        results = [shelf.put(block) for block in chain[3:]]
    assert not [path for path in memory.files() if path.name.startswith(".tmp")]
    assert shelf.budget.used_bytes == memory.used_bytes()
    counters = shelf.store.counters()
    if mode == "once":
        assert results == [PutResult.STORED] * 3 and caplog.records == []
        assert counters.evicted == 1
    else:
        assert results == [PutResult.DROPPED] * 3 and len(caplog.records) == 1
        assert fs.calls.count(call) == (2 if call != "open" else fs.calls.count("open"))
        fs.heal()
        shelf.clock.now += 61
        assert shelf.put(chain[3]) is PutResult.STORED
    figure(f"S4 ENOSPC on {call}, {mode}: {[r.value for r in results]}, "
           f"{len(caplog.records)} lines, no temporary file left")  # fmt: skip


def test_s4_the_limit_counts_every_file(figure: Figure) -> None:
    """Another model's, another version's, those being written, and such as nobody knows."""
    clock = Clock()
    memory = MemoryFileSystem(clock)
    Shelf(memory, clock, root=OTHER_ROOT).put(make_block(OTHER_ROOT, 1))
    shard = DIRECTORY / "blocks" / ("00" * 8) / "ab"
    memory.write(shard / "old.safetensors", bytes(5000))
    memory.write(shard / ".tmp-77-1", bytes(6000))
    memory.write(DIRECTORY / "notes.txt", bytes(7000))
    limit = memory.used_bytes() + 9000
    shelf = Shelf(memory, clock, max_bytes=limit)
    shelf.store.index()
    assert shelf.budget.used_bytes == memory.used_bytes()
    for block in make_chain(20):
        clock.now += 1
        shelf.put(block)
        assert shelf.budget.used_bytes == memory.used_bytes() <= limit
    kinds = {file.kind.value for file in scan(memory, DIRECTORY)}
    assert {"temporary", "unknown"} <= kinds and "other block" not in kinds
    figure(f"S4: most used {memory.peak_bytes} of {limit} bytes, strange files included")


def test_s4_the_floor_of_free_space_is_kept(small_disk: SmallDisk, figure: Figure) -> None:
    free = RealFileSystem().free_bytes(small_disk.path)
    floor = free - 20 * MB
    harness = on_small_disk(small_disk, disk_bytes=1000 * MB, min_free_bytes=floor)
    check_answers(harness, range(6))
    held = held_bytes(small_disk.path)
    assert 10 * MB < held <= 20 * MB and disk_of(harness).counters().evicted > 0
    if small_disk.is_mounted:
        assert os.statvfs(small_disk.path).f_bavail * 4096 >= floor
    harness.stop()
    figure(f"S4: floor {floor:,} of {free:,} free bytes: {held:,} held, the floor is kept")


def test_s8_a_file_that_goes_missing_is_written_again(tmp_path: Path, figure: Figure) -> None:
    """Block 18 of 85, while the server runs and has nothing in memory."""
    harness = start(ATTENTION, tmp_path, memory_bytes=0, prefill_chunk=B)
    tokens = prompt(85 * B + 1)
    cold = harness.ask(tokens, 1)
    settle(harness)
    files = block_files(tmp_path)
    assert len(files) == 85
    inodes = {i: path.stat().st_ino for i, path in files.items()}
    content = files[17].read_bytes()
    assert harness.ask(tokens, 1).cached == 85 * B
    files[17].unlink()
    warm = harness.ask(tokens, 1)
    settle(harness)
    assert warm.cached == 17 * B
    assert_same(warm, cold)
    assert files[17].read_bytes() == content, "it is written again"
    kept = [i for i, path in block_files(tmp_path).items() if path.stat().st_ino == inodes[i]]
    assert set(kept) >= set(range(85)) - {17}, "and nothing else is"
    again = harness.ask(tokens, 1)
    assert again.cached == 85 * B
    assert_same(again, cold)
    assert disk_of(harness).counters().bad == {}
    harness.stop()
    figure("S8: 17 of 85 blocks reused, block 18 written again, the 67 after it untouched; then 85")


NUM_TOKENS = 80_000
WHOLE = (NUM_TOKENS - 1) // 256 + 1


def slow_harness(path: Path, memory_bytes: int, monkeypatch: pytest.MonkeyPatch) -> Harness:
    """2.1 kB a token, to a disk that takes 50 MB/s; what stays in memory is written at the end."""
    use_file_system(monkeypatch, SlowWrites(50e6))
    sizes = {"block_size": 256, "prefill_chunk": 2048, "write_delay_s": 60.0}
    return Harness(Telling(num_layers=4), path, memory_bytes=memory_bytes, **sizes)


@pytest.mark.parametrize("memory_mb", [1000, 60])
def test_s10_a_slow_disk_gets_the_head_first_and_all_of_it_in_time(
    memory_mb: int,
    tmp_path: Path,
    figure: Figure,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An 80,000-token prompt, unloaded right after: in a second, then with time enough."""
    harness = slow_harness(tmp_path / "cache", memory_mb * MB, monkeypatch)
    tokens = [Telling.FIRST_MARKER, *(3 + i % 250 for i in range(NUM_TOKENS - 1))]
    assert harness.ask(tokens, 1).tokens == [Telling.FIRST_MARKER]
    prefix, disk = prefix_of(harness), disk_of(harness)
    assert prefix._memory.used_bytes <= memory_mb * MB
    assert harness.engine.stop(1.0) == 0
    disk._writer.shutdown(wait=True)  # the write that is under way
    num_files = len(list(tmp_path.rglob("*.safetensors")))
    found = re.search(r"(\d+) blocks were not written", caplog.text)
    dropped = int(found[1]) if found else 0
    assert num_files + dropped - WHOLE in (0, 1), "the one under way counts as not written"
    harness.engine = harness._start()
    warm = harness.ask(tokens, 1)
    assert warm.tokens == [Telling.FIRST_MARKER]
    found_tokens = min(num_files * 256, NUM_TOKENS - 1)
    assert warm.cached == found_tokens > 0, "head first: all that is there is of use"
    assert dropped or memory_mb < 1000, "else the disk was not slow"
    harness.restart()
    last = harness.ask(tokens, 1)
    assert last.tokens == [Telling.FIRST_MARKER] and last.cached == NUM_TOKENS - 1
    assert disk.counters().bad == {} and disk_of(harness).counters().dropped_writes == 0
    harness.stop()
    figure(
        f"S10 with {memory_mb} MB of memory, {WHOLE} blocks of 530 kB: 1 s to drain: {num_files} "
        f"written, {dropped} in the log as lost, {warm.cached} tokens reused; 10 s: all"
    )


def test_s10_the_queue_is_bounded_and_what_does_not_fit_is_counted(figure: Figure) -> None:
    """A disk that takes nothing at all, and memory for ten blocks."""
    rig = Rig(memory_bytes=10 * BLOCK_BYTES, max_queued_bytes=20 * BLOCK_BYTES)
    chain = Chain(token_array([]))
    most = 0
    for number in range(1, 101):
        rig.keep(chain, range(number * BLOCK), has_tail=False)
        assert rig.disk is not None
        most = max(most, rig.disk.queued.num_bytes + rig.memory.used_bytes)
    assert most <= 30 * BLOCK_BYTES
    lost = rig.writeback.num_lost
    rig.settle()
    rig.restart()
    found = rig.look_up(range(100 * BLOCK)).num_tokens
    assert found == len(rig.block_files()) * BLOCK == (100 - lost) * BLOCK >= 20 * BLOCK
    figure(f"S10: of 100 blocks 10 in memory, 20 in the queue, {lost} counted as lost; the first "
           f"{found // BLOCK} reused")  # fmt: skip
