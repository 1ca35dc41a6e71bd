"""The block store: blocks put into a directory, found again, verified, touched and evicted.

Knows nothing about mlx, models or requests; a failure to read is a miss, a failure to write a loss.
"""

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from omlx.storage.blockfile import Sections, Wanted, read_block
from omlx.storage.budget import Budget, Evicted
from omlx.storage.children import Child, ChildLister
from omlx.storage.daily import DailyWrites
from omlx.storage.directory import open_directory
from omlx.storage.fs import BUSY, FileSystem
from omlx.storage.layout import BlockHash, BlockKey, RootHash, block_path
from omlx.storage.record import BadBlock, BadReason, min_file_bytes
from omlx.storage.writer import BlockWriter, DropReason

_Bad = Sequence[tuple[Path, BadBlock | OSError]]

_logger = logging.getLogger("omlx.storage")


class PutResult(Enum):
    """What became of a block that was put."""

    STORED = "stored"
    EXISTS = "exists"
    DROPPED = "dropped"


@dataclass(frozen=True, slots=True)
class StoreCounters:
    """Figures of one store since it was opened; `bad` counts the dropped files by reason.

    `dropped` counts by reason the blocks that were put and not written, `dropped_writes` all of
    them. `bytes_written_today` is since midnight UTC, by all processes where there is a limit.
    `missing` counts reads of files that are not there, `busy` reads that failed for want of
    descriptors or memory; those files stay. `evicted` is over all roots, by this process.
    """

    blocks_written: int
    bytes_written: int
    blocks_read: int
    bytes_read: int
    missing: int
    busy: int
    bad: Mapping[BadReason, int]
    dropped_writes: int
    dropped: Mapping[DropReason, int]
    bytes_written_today: int
    evicted: int
    evicted_bytes: int
    write_seconds: float
    read_seconds: float
    is_paused: bool


@dataclass(frozen=True, slots=True)
class Indexed:
    """What the start-up scan found in the whole directory."""

    num_blocks: int
    num_states: int
    num_bytes: int
    num_stale_temps: int


class BlockStore:
    """The blocks of one root in a directory that other processes share; any thread may call it.

    Opening raises StoreError; afterwards nothing raises but an assertion.
    """

    def __init__(
        self,
        directory: Path,
        root: RootHash,
        *,
        fs: FileSystem,
        budget: Budget,
        clock: Callable[[], float],
        describe: Mapping[str, object],
        timer: Callable[[], float] = time.perf_counter,
        max_daily_bytes: int | None = None,
        is_read_once: bool = False,
    ) -> None:
        """`is_read_once` says that whoever reads a block keeps it in memory."""
        self._directory = directory
        self._is_read_once = is_read_once
        self._root = root
        self._fs = fs
        self._budget = budget
        self._clock = clock
        self._timer = timer
        self._children = ChildLister(fs, directory, root, clock)
        self._daily = DailyWrites(fs, directory, budget, max_bytes=max_daily_bytes, clock=clock)
        self._writer = BlockWriter(
            directory,
            root,
            fs=fs,
            budget=budget,
            daily=self._daily,
            clock=clock,
            describe=describe,
        )
        self._lock = threading.Lock()
        self._numbers: Counter[str] = Counter()
        self._bad: Counter[BadReason] = Counter()
        self._dropped: Counter[DropReason] = Counter()
        self._seconds = {"read": 0.0, "write": 0.0}
        open_directory(fs, directory)

    def put(self, key: BlockKey, tokens: bytes, sections: Sections) -> PutResult:
        """Store a block; the buffers are read until this returns. Mutates the directory."""
        started = self._timer()
        result = PutResult.EXISTS
        written: int | DropReason = 0
        if not self._writer.is_complete(key, sections):
            written = self._writer.write(key, tokens, sections)
            result = PutResult.DROPPED if isinstance(written, DropReason) else PutResult.STORED
        with self._lock:
            self._seconds["write"] += self._timer() - started
            if isinstance(written, DropReason):
                self._dropped[written] += 1
            else:
                self._numbers["blocks_written"] += result is PutResult.STORED
                self._numbers["bytes_written"] += written
        return result

    def contains(self, key: BlockKey) -> bool:
        """Whether a file of such a block is there; only reading it tells whether it is good."""
        path = block_path(self._directory, self._root, key)
        try:
            status = self._fs.stat(path)
        except OSError:
            return False
        return status.is_file and status.size >= min_file_bytes(key.count)

    def read(self, key: BlockKey, tokens: bytes, sections: Sections) -> bool:
        """Fill the buffers of `sections`, some or all of a file's; True only if all is verified.

        Header and tokens are verified, too. Mutates the buffers, whose content means nothing
        after False. A bad file is removed.
        """
        path = block_path(self._directory, self._root, key)
        started = self._timer()
        num_bytes = 0
        try:
            wanted = Wanted(self._root, key, tokens)
            num_bytes = read_block(self._fs, path, wanted, sections, is_once=self._is_read_once)
        except (BadBlock, OSError) as error:
            self._miss(path, error)
        with self._lock:
            self._seconds["read"] += self._timer() - started
            self._numbers["blocks_read"] += num_bytes > 0
            self._numbers["bytes_read"] += num_bytes
        return num_bytes > 0

    def children(self, parent: BlockHash) -> list[Child]:
        """The blocks and states that continue `parent`, newest first; bad files are removed.

        Of each kind at most the 64 newest.
        """
        return self._listed(lambda: self._children.of(parent))

    def states(self, parents: Sequence[BlockHash]) -> list[Child]:
        """The states that continue any of `parents`, at most 64 each; bad files are removed."""
        return self._listed(lambda: self._children.states_of(parents))

    def touch(self, keys: Sequence[BlockKey]) -> None:
        """Note that blocks were used now, for eviction; what is missing is passed over."""
        now = self._clock()
        for key in keys:
            with suppress(OSError):
                self._fs.utime(block_path(self._directory, self._root, key), now)

    def remove(self, key: BlockKey) -> None:
        """Remove a file, if it is there, as one that another replaces."""
        self._unlink(block_path(self._directory, self._root, key))

    def index(self) -> Indexed:
        """Look at all names and sizes in the directory and remove stale temporary files, and at
        what was written today."""
        self._daily.look()
        num_stale = 0
        try:
            num_stale = self._budget.rescan()
        except OSError as error:
            _logger.warning("can't scan the cache directory %s: %s", self._directory, error)
        budget = self._budget
        return Indexed(budget.num_blocks, budget.num_states, budget.used_bytes, num_stale)

    def evict(self, needed_bytes: int) -> Evicted:
        """Free so many bytes over all roots, leaves first, oldest touch first."""
        try:
            return self._budget.evict(needed_bytes)
        except OSError as error:
            _logger.debug("can't evict: %s", error)
            return Evicted(0, 0)

    def counters(self) -> StoreCounters:
        """The figures so far."""
        with self._lock:
            numbers = self._numbers
            return StoreCounters(
                blocks_written=numbers["blocks_written"],
                bytes_written=numbers["bytes_written"],
                blocks_read=numbers["blocks_read"],
                bytes_read=numbers["bytes_read"],
                missing=numbers["missing"],
                busy=numbers["busy"],
                bad=dict(self._bad),
                dropped_writes=self._dropped.total(),
                dropped=dict(self._dropped),
                bytes_written_today=self._daily.today_bytes,
                evicted=self._budget.evicted.num_files,
                evicted_bytes=self._budget.evicted.num_bytes,
                write_seconds=self._seconds["write"],
                read_seconds=self._seconds["read"],
                is_paused=self._writer.is_paused(),
            )

    def _listed(self, look: Callable[[], tuple[list[Child], _Bad]]) -> list[Child]:
        try:
            children, bad = look()
        except OSError as error:
            _logger.debug("can't list what continues a block: %s", error)
            return []
        for path, error in bad:
            self._miss(path, error)
        return children

    def _miss(self, path: Path, error: BadBlock | OSError) -> None:
        """Count a read that failed, and drop the file where it is to blame."""
        if isinstance(error, (FileNotFoundError, NotADirectoryError)):
            with self._lock:
                self._numbers["missing"] += 1
            self._budget.remove(path.relative_to(self._directory).as_posix())
        elif isinstance(error, OSError) and error.errno in BUSY:
            with self._lock:
                self._numbers["busy"] += 1
        else:
            reason = error.reason if isinstance(error, BadBlock) else BadReason.UNREADABLE
            with self._lock:
                self._bad[reason] += 1
            _logger.info("dropped a bad file of the cache (%s): %s", error, path)
            self._unlink(path)

    def _unlink(self, path: Path) -> None:
        try:
            self._fs.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            _logger.debug("can't remove %s: %s", path, error)
            return
        self._budget.remove(path.relative_to(self._directory).as_posix())
