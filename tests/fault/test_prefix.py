"""The prefix cache over a disk whose call n fails, for good or once, or tears what it does, or at
which the process is killed: a look-up is right to the byte or a miss, nothing raises on the engine
thread, and afterwards all of it works as before.

The rig compares every value that a look-up restores with the state of that very prefix.
"""

import errno
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache

from omlx.cache.block import Chain
from omlx.cache.hashing import token_array
from omlx.cache.leaves import StateLeaf
from omlx.cache.lookup import Hit
from omlx.errors import StoreError
from omlx.storage.fs import FileSystem
from omlx.storage.layout import parse_temp_name
from tests.fakes import state
from tests.fakes.cache import BLOCK_BYTES, Rig
from tests.fakes.fs import FaultFileSystem, FaultMode, MemoryFileSystem

FIRST = [*range(1, 7)]
SECOND = [*FIRST, 20, 21, 22]
FORK = [*FIRST[:5], 40]
FRESH = [*range(100, 105)]
FILE_BYTES = 4096 + 2 * BLOCK_BYTES
PAUSE_S = 61.0
CHANGES = ("open", "writev", "rename", "unlink", "utime", "mkdir")
TORN = (*CHANGES, "preadv")  # any other call is as one that failed, whether it was done or not
_Arrays: Any = ArraysCache


@dataclass
class RecurrentRig(Rig):
    """A cache whose model has a recurrent layer beside one with keys and values."""

    states: Sequence[StateLeaf] = (StateLeaf((1,), 0, 1, (2, 3), "F32"),)

    def look_up(self, tokens: Sequence[int], salt: str = "") -> Hit:
        hits: list[Hit] = []
        self.prefix.look_up(token_array(tokens), hits.append, salt=salt)
        self.settle()
        (hit,) = hits
        if hit.num_tokens:
            attention, recurrent = self.prefix.restore(hit)
            assert state.holds([attention], tokens[: hit.num_tokens])
            wanted = _recurrent(tokens[: hit.num_tokens])
            assert mx.array_equal(recurrent.state[0][0], wanted)
        return hit

    def keep(self, chain: Chain, tokens: Sequence[int], **options: bool) -> None:
        super().keep(chain, tokens, **options)
        if self.prefix.states.wants(chain, len(tokens), is_end=True):
            layers = [*state.caches(tokens), _Arrays.from_state(([_recurrent(tokens)], None, None))]
            self.prefix.states.store(chain, layers, len(tokens))


def _recurrent(tokens: Sequence[int]) -> mx.array:
    return mx.full((1, 2, 3), float(state.checksums(tokens)[-1]))


def fill(rig: Rig) -> None:
    """The first turn of a conversation."""
    rig.compute(FIRST)
    rig.pass_delay()


def go_on(rig: Rig) -> None:
    """What a new process does with it: the next turn, then a fork within a block, aborted."""
    rig.compute(SECOND)
    rig.pass_delay()
    rig.prefix.hurry(rig.compute(FORK).chain)
    rig.settle()


Script = Callable[[Rig], None]
Kind = type[Rig]
KINDS = [Rig, RecurrentRig]
SCRIPTS: list[Script] = [fill, go_on]
MAX_FILES = {Rig: 3, RecurrentRig: 5}  # too few for all of them


class Bench:
    """One rig for one script, before each run with what the scripts before it leave on its disk."""

    def __init__(self, kind: Kind, script: Script) -> None:
        self._rig = kind(
            memory_bytes=2 * BLOCK_BYTES,
            max_disk_bytes=MAX_FILES[kind] * FILE_BYTES,
            max_queued_bytes=2 * BLOCK_BYTES,
        )
        for earlier in SCRIPTS[: SCRIPTS.index(script)]:
            earlier(self._rig)
        self._left = self._rig.fs
        self._now = self._rig.clock.now + 10
        rig = self.rig()
        fs = FaultFileSystem(rig.fs)
        begin(rig, fs)
        script(rig)
        assert rig.disk is not None
        self.calls, self.counters = fs.calls, rig.disk.counters()

    def rig(self) -> Rig:
        """The rig on its disk as it was before the script; `begin` starts it."""
        self._rig.clock.now = self._now
        self._rig.fs = self._left.clone()
        self._rig.has_disk = True
        return self._rig


def begin(rig: Rig, fs: FileSystem) -> None:
    """Start over a file system; an engine whose directory can't be opened has no disk tier."""
    try:
        rig.start(fs)
    except StoreError:
        rig.has_disk = False
        rig.start(fs)


def check_it_works(rig: Rig) -> None:
    """A fresh sequence is kept, by this process and for the next one; old ones are right."""
    rig.compute(FRESH)
    rig.pass_delay()
    assert rig.writeback.dirty_bytes == 0
    had_disk, rig.has_disk = rig.has_disk, True
    rig.clock.now += 1
    rig.start()
    for old in (SECOND, FORK):
        rig.look_up([*old, 0])
    if not had_disk:
        rig.compute(FRESH)
        rig.pass_delay()
        rig.start()
    assert rig.look_up([*FRESH, 0]).from_disk == len(FRESH)


@pytest.fixture
def no_job_fails(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A job on an I/O thread that raises is logged, and is our bug; what the disk does is not."""
    yield
    told = caplog.get_records("call")
    assert [record.getMessage() for record in told if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("mode", "error"),
    [("once", errno.EIO), ("forever", errno.ENOSPC), ("torn", errno.EIO)],
)
@pytest.mark.usefixtures("no_job_fails")
def test_whichever_call_fails_a_look_up_is_right_or_a_miss(
    kind: Kind, mode: FaultMode, error: int, script: Script
) -> None:
    bench = Bench(kind, script)
    for n, call in enumerate(bench.calls, 1):
        if mode == "torn" and call not in TORN:
            continue
        rig = bench.rig()
        fs = FaultFileSystem(rig.fs, n, mode, error)
        begin(rig, fs)
        script(rig)
        assert mode != "once" or call == "close" or not rig.fs.open_files, (n, call)
        fs.heal()
        rig.clock.now += PAUSE_S
        check_it_works(rig)


class Killed(BaseException):
    """The process ends here; no code of it is to catch this."""


@dataclass
class DyingFileSystem:
    """A file system whose process is killed before call `die_at`, which may be done in part.

    Later calls, such as those of clean-up code, do nothing.
    """

    inner: MemoryFileSystem
    die_at: int
    is_within: bool
    num_calls: int = field(default=0, init=False)

    def __getattr__(self, name: str) -> Callable[..., Any]:
        action = getattr(self.inner, name)

        def call(*args: Any, **options: Any) -> Any:
            self.num_calls += 1
            if self.num_calls < self.die_at:
                return action(*args, **options)
            if self.num_calls == self.die_at and self.is_within:
                whole = b"".join(args[1])
                action(args[0], [memoryview(whole[: len(whole) // 2])])
            raise Killed

        return call


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("no_job_fails")
def test_wherever_it_is_killed_the_next_process_finds_what_is_right_or_nothing(
    kind: Kind, script: Script
) -> None:
    bench = Bench(kind, script)
    # What is on the disk is the same before any call up to the next one that changes it.
    whole = [(n, False) for n, call in enumerate(bench.calls, 1) if call in CHANGES]
    halves = [(n, True) for n, call in enumerate(bench.calls, 1) if call == "writev"]
    for n, is_within in [*whole, *halves]:
        rig = bench.rig()
        dying = DyingFileSystem(rig.fs, n, is_within)
        with pytest.raises(Killed):
            begin(rig, cast(FileSystem, dying))
            script(rig)
        rig.fs.open_files.clear()  # the system closes them
        rig.clock.now += 1
        begin(rig, rig.fs)
        for old in (SECOND, FORK):
            rig.look_up([*old, 0])
        check_it_works(rig)
        temps = [path for path in rig.fs.files() if parse_temp_name(path.name) is not None]
        assert temps == [], (n, bench.calls[n - 1])


def test_the_scripts_make_every_call_that_the_cache_makes() -> None:
    """Else the loops above would not see what they are meant to see."""
    calls = {call for kind in KINDS for script in SCRIPTS for call in Bench(kind, script).calls}
    assert calls == {
        "open", "close", "preadv", "writev", "rename", "unlink", "stat", "fstat",
        "names", "scandir", "utime", "mkdir",
    }  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_the_scripts_hit_the_disk_and_fill_it(kind: Kind) -> None:
    bench = Bench(kind, go_on)
    assert bench.counters.blocks_read >= 2 and bench.counters.blocks_written >= 3
    assert bench.counters.evicted > 0 and not bench.counters.dropped_writes
