"""The byte budgets of a cache directory: what is used, who may write, and what goes first.

Knows nothing about what a block means; every file in the directory counts.
"""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from omlx.storage.fs import FileSystem
from omlx.storage.layout import BlockKind
from omlx.storage.scan import FoundFile, is_process_alive, scan
from omlx.storage.stock import Evicted, Stock

_LOOK_S = 60.0
_OTHERS_BYTES_PER_S = 8 * 10**9  # faster than other processes can fill a disk
_MAX_TRIES = 4
_AUTO_SHARE = 10
_AUTO_MAX_BYTES = 64 * 10**9
_STATE_SHARE = 4


class Reservation:
    """Bytes set apart for one file until it is there or given up; any thread may end it, once."""

    def __init__(self, budget: "Budget", num_bytes: int, kind: BlockKind) -> None:
        self._budget = budget
        self._num_bytes = num_bytes
        self._kind = kind

    def commit(self, file: FoundFile) -> None:
        """The file is there. Mutates the budget."""
        self._budget.settle(self._take(), self._kind, file)

    def abort(self) -> None:
        """There will be no file. Mutates the budget."""
        self._budget.settle(self._take(), self._kind, None)

    def _take(self) -> int:
        taken, self._num_bytes = self._num_bytes, 0
        return taken


class Budget:
    """A hard ceiling and a floor of free space for one directory; any thread may call it.

    States have a ceiling of their own below it, a quarter unless it is given. Others write to the
    directory, too: what has changed is looked at whenever it may matter, at least once a minute.
    """

    def __init__(
        self,
        max_bytes: int,
        min_free_bytes: int,
        fs: FileSystem,
        directory: Path,
        *,
        max_state_bytes: int | None = None,
        clock: Callable[[], float] = time.time,
        is_alive: Callable[[int], bool] = is_process_alive,
        pid: int | None = None,
    ) -> None:
        self.pid = pid or os.getpid()
        self.max_bytes = max_bytes
        self.min_free_bytes = min_free_bytes
        self.max_state_bytes = max_bytes // _STATE_SHARE
        if max_state_bytes is not None:
            self.max_state_bytes = max_state_bytes
        self._fs = fs
        self._directory = directory
        self._clock = clock
        self._lock = threading.Lock()
        self._stock = Stock(fs, directory, clock=clock, is_alive=is_alive, pid=self.pid)
        self._reserved = dict.fromkeys(BlockKind, 0)

    @property
    def used_bytes(self) -> int:
        """Bytes of all files, as far as known, and of those being written."""
        return self._stock.inventory.num_bytes + sum(self._reserved.values())

    @property
    def state_bytes(self) -> int:
        """Bytes of all states, as far as known, and of those being written."""
        return self._stock.inventory.state_bytes + self._reserved[BlockKind.STATE]

    @property
    def num_blocks(self) -> int:
        """Block files of all roots, as far as known."""
        return self._stock.inventory.num_blocks

    @property
    def num_states(self) -> int:
        """State files of all roots, as far as known."""
        return self._stock.inventory.num_states

    @property
    def evicted(self) -> Evicted:
        """What all evictions removed so far."""
        return self._stock.evicted

    def reserve(self, num_bytes: int, kind: BlockKind = BlockKind.BLOCK) -> Reservation | None:
        """Set bytes apart, evicting what must go for them; None where there is no room; OSError.

        Mutates. Looks at what has changed where that may matter. Evicts nothing in vain.
        """
        with self._lock:
            self._look_if_needed(num_bytes)
            if not self._make_room_beside_others(num_bytes, kind):
                return None
            self._reserved[kind] += num_bytes
            return Reservation(self, num_bytes, kind)

    def evict(self, num_bytes: int) -> Evicted:
        """Remove blocks, leaves first, oldest touch first, until `num_bytes` are free; OSError."""
        with self._lock:
            self._look_if_needed(self.max_bytes)
            return self._stock.evict(num_bytes)

    def rescan(self) -> int:
        """Look at everything now and remove stale temporary files; their number; OSError."""
        with self._lock:
            num_before = self._stock.num_stale
            self._stock.look(everything=True)
            return self._stock.num_stale - num_before

    def add(self, file: FoundFile) -> None:
        """A file was written outside of a reservation. Mutates."""
        with self._lock:
            self._stock.inventory.add(file)

    def remove(self, place: str) -> None:
        """A file is gone. Mutates."""
        with self._lock:
            self._stock.inventory.remove(place)

    def settle(self, num_bytes: int, kind: BlockKind, file: FoundFile | None) -> None:
        """End a reservation; only `Reservation` calls this. Mutates."""
        with self._lock:
            self._reserved[kind] -= num_bytes
            if file is not None:
                self._stock.inventory.add(file)

    def _look_if_needed(self, num_bytes: int) -> None:
        """Look where the last look is old, or others may have taken the room for `num_bytes`."""
        looked_at = self._stock.looked_at
        since = self._clock() - looked_at if looked_at is not None else -1.0
        if 0 <= since < _LOOK_S and self._excess(num_bytes + int(since * _OTHERS_BYTES_PER_S)) <= 0:
            return
        self._stock.look_until_still()

    def _excess(self, num_bytes: int) -> int:
        """By how much writing `num_bytes` would break the ceiling or the floor."""
        excess = self.used_bytes + num_bytes - self.max_bytes
        if self.min_free_bytes > 0:
            free = self._fs.free_bytes(self._directory) - sum(self._reserved.values())
            excess = max(excess, self.min_free_bytes - (free - num_bytes))
        return excess

    def _make_room_beside_others(self, num_bytes: int, kind: BlockKind) -> bool:
        """Evict what must go for `num_bytes`, also where others do the same just now."""
        for _ in range(_MAX_TRIES):
            num_vanished = self._stock.num_vanished
            if not self._make_room(num_bytes, kind):
                return False
            if num_vanished == self._stock.num_vanished:
                return True
            # Others took what was to be evicted here, and may have the room by now.
            self._stock.look_until_still()
        return self._excess(num_bytes) <= 0

    def _make_room(self, num_bytes: int, kind: BlockKind) -> bool:
        """Evict what must go for `num_bytes`: what is too much of the states, then leaves."""
        is_state = kind is BlockKind.STATE
        if self._excess(num_bytes) > self._stock.inventory.evictable_bytes:
            return False
        if is_state and num_bytes > self.max_state_bytes:
            return False
        excess = self.state_bytes + num_bytes * is_state - self.max_state_bytes
        freed = self._stock.evict_states(excess).num_bytes
        if is_state and freed < excess:
            return False
        while (excess := self._excess(num_bytes)) > 0:
            if excess > self._stock.inventory.evictable_bytes:
                return False
            if not self._stock.evict(excess).num_files:
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
