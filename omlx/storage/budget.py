"""The byte budget of a cache directory: what is used, who may write, and what goes first.

Knows nothing about what a block means; every file in the directory counts.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from omlx.storage.fs import FileSystem
from omlx.storage.inventory import Inventory
from omlx.storage.layout import parse_temp_name
from omlx.storage.scan import FileKind, FoundFile, is_process_alive, is_stale, scan

_RESCAN_S = 60.0
_MAX_FAILURES = 8
_AUTO_SHARE = 10
_AUTO_MAX_BYTES = 64 * 10**9

_logger = logging.getLogger("omlx.storage")


@dataclass(frozen=True, slots=True)
class Evicted:
    """What an eviction removed; also of what others had removed before it came to it."""

    num_files: int
    num_bytes: int


class Reservation:
    """Bytes set apart for one file until it is there or given up; any thread may end it, once."""

    def __init__(self, budget: "Budget", num_bytes: int) -> None:
        self._budget = budget
        self._num_bytes = num_bytes

    def commit(self, file: FoundFile) -> None:
        """The file is there. Mutates the budget."""
        self._budget.settle(self._take(), file)

    def abort(self) -> None:
        """There will be no file. Mutates the budget."""
        self._budget.settle(self._take(), None)

    def _take(self) -> int:
        taken, self._num_bytes = self._num_bytes, 0
        return taken


class Budget:
    """A hard ceiling and a floor of free space for one directory; any thread may call it.

    What it knows of the files is older than a minute at no time, since others write there too.
    """

    def __init__(
        self,
        max_bytes: int,
        min_free_bytes: int,
        fs: FileSystem,
        directory: Path,
        *,
        clock: Callable[[], float] = time.time,
        is_alive: Callable[[int], bool] = is_process_alive,
    ) -> None:
        self.max_bytes = max_bytes
        self.min_free_bytes = min_free_bytes
        self._fs = fs
        self._directory = directory
        self._clock = clock
        self._is_alive = is_alive
        self._pid = os.getpid()
        self._created = clock()
        self._lock = threading.Lock()
        self._inventory = Inventory()
        self._scanned: float | None = None
        self._reserved = 0
        self._evicted = Evicted(0, 0)

    @property
    def used_bytes(self) -> int:
        """Bytes of all files, as far as known, and of those being written."""
        return self._inventory.num_bytes + self._reserved

    @property
    def num_blocks(self) -> int:
        """Block files of all roots, as far as known."""
        return self._inventory.num_blocks

    @property
    def evicted(self) -> Evicted:
        """What all evictions removed so far."""
        return self._evicted

    def reserve(self, num_bytes: int) -> Reservation | None:
        """Set bytes apart, evicting what must go for them; None where there is no room; OSError.

        Mutates. Reads the directory where the last look is too old. Evicts nothing in vain.
        """
        with self._lock:
            self._look_again()
            while (excess := self._excess(num_bytes)) > 0:
                if excess > self._inventory.evictable_bytes or not self._evict(excess).num_files:
                    return None
            self._reserved += num_bytes
            return Reservation(self, num_bytes)

    def evict(self, num_bytes: int) -> Evicted:
        """Remove blocks, leaves first, oldest touch first, until `num_bytes` are free; OSError."""
        with self._lock:
            self._look_again()
            return self._evict(num_bytes)

    def rescan(self) -> int:
        """Look at the directory now and remove stale temporary files; their number; OSError."""
        with self._lock:
            return self._scan()

    def add(self, file: FoundFile) -> None:
        """A file was written outside of a reservation. Mutates."""
        with self._lock:
            self._inventory.add(file)

    def remove(self, place: str) -> None:
        """A file is gone. Mutates."""
        with self._lock:
            self._inventory.remove(place)

    def settle(self, num_bytes: int, file: FoundFile | None) -> None:
        """End a reservation; only `Reservation` calls this. Mutates."""
        with self._lock:
            self._reserved -= num_bytes
            if file is not None:
                self._inventory.add(file)

    def _look_again(self) -> None:
        if self._scanned is None or not 0 <= self._clock() - self._scanned < _RESCAN_S:
            self._scan()

    def _scan(self) -> int:
        now = self._clock()
        kept: list[FoundFile] = []
        num_stale = 0
        for file in scan(self._fs, self._directory):
            if file.kind is not FileKind.TEMP:
                kept.append(file)
            elif self._is_stale(file, now):
                num_stale += 1
                if not self._unlink(file.place):
                    kept.append(file)
            elif parse_temp_name(file.filename) != self._pid:
                kept.append(file)  # our own are covered by their reservations
        self._inventory = Inventory(kept)
        self._scanned = now
        return num_stale

    def _is_stale(self, file: FoundFile, now: float) -> bool:
        # In a container every start may get the same process number.
        if parse_temp_name(file.filename) == self._pid and file.mtime < self._created:
            return True
        return is_stale(file, now=now, is_alive=self._is_alive)

    def _excess(self, num_bytes: int) -> int:
        """By how much writing `num_bytes` would break the ceiling or the floor."""
        excess = self.used_bytes + num_bytes - self.max_bytes
        if self.min_free_bytes > 0:
            free = self._fs.free_bytes(self._directory) - self._reserved
            excess = max(excess, self.min_free_bytes - (free - num_bytes))
        return excess

    def _evict(self, num_bytes: int) -> Evicted:
        num_files = freed = failures = 0
        while freed < num_bytes and failures < _MAX_FAILURES:
            leaf = self._inventory.next_leaf()
            if leaf is None:
                break
            try:
                mtime = self._fs.stat(self._directory / leaf.place).mtime
                if mtime != leaf.mtime:  # touched, by us or another process
                    self._inventory.add(replace(leaf, mtime=mtime))
                    continue
                self._fs.unlink(self._directory / leaf.place)
            except (FileNotFoundError, NotADirectoryError):
                pass  # another process was faster
            except OSError:
                failures += 1
                self._inventory.set_aside(leaf.place)
                continue
            self._inventory.remove(leaf.place)
            num_files += 1
            freed += leaf.size
        total = self._evicted
        self._evicted = Evicted(total.num_files + num_files, total.num_bytes + freed)
        return Evicted(num_files, freed)

    def _unlink(self, place: str) -> bool:
        with suppress(FileNotFoundError):
            try:
                self._fs.unlink(self._directory / place)
            except FileNotFoundError:
                raise
            except OSError as error:
                _logger.debug("can't remove %s: %s", place, error)
                return False
        return True


def auto_max_bytes(fs: FileSystem, directory: Path) -> int:
    """The ceiling that `auto` means: a tenth of what is free and held, at most 64 GB; OSError."""
    held = 0
    with suppress(FileNotFoundError):
        held = sum(file.size for file in scan(fs, directory))
    existing = directory
    while True:
        try:
            free = fs.free_bytes(existing)
            break
        except FileNotFoundError:
            if existing == existing.parent:
                raise
            existing = existing.parent
    return min((free + held) // _AUTO_SHARE, _AUTO_MAX_BYTES)
