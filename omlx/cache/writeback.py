"""Write-behind: which blocks of the memory tier go to disk, and when.

Knows nothing about look-ups. Owned by the engine thread.

A block is written when it has been kept for `delay_s`, when it leaves memory, when its request
was aborted, when too many bytes are dirty to be written within half the drain limit, and at the
end. A tail that is replaced before that is never written; that of a running row is held until the
row ends, since its reply will replace it.

Where the CPU does not share the device's memory, reading a block stops the device: there blocks are
written while no row runs, and what leaves memory meanwhile is lost. Such a device computes again
about as fast as a disk delivers.
"""

import time
from collections import OrderedDict
from collections.abc import Sequence

from omlx.cache.codec import Codec
from omlx.cache.io import DiskTier
from omlx.cache.leaves import Payload
from omlx.cache.memory import Entry
from omlx.cache.queued import Buffers
from omlx.cache.way import Way
from omlx.storage.layout import BlockKey, BlockKind

_ASSUMED_BYTES_PER_S = 200e6  # until a rate has been measured


class WriteBack:
    """The dirty blocks in the order in which they were added, so that a chain goes head first.

    `is_through` says that there is no memory tier: every block then goes to the queue at once.
    """

    def __init__(
        self,
        codec: Codec,
        disk: DiskTier | None,
        *,
        delay_s: float,
        drain_s: float,
        is_through: bool = False,
    ) -> None:
        self._codec = codec
        self._disk = disk
        self._delay_s = delay_s
        self._drain_s = drain_s
        self._is_through = is_through
        self._dirty: OrderedDict[BlockKey, Entry[Payload]] = OrderedDict()
        self._held: dict[BlockKey, Entry[Payload]] = {}
        self._aside: set[BlockKey] = set()  # dirty, but not in memory: the queue has their bytes
        self._replaced: dict[BlockKey, list[BlockKey]] = {}
        self._is_busy = False
        self.dirty_bytes = 0
        self.num_lost = 0  # blocks that left memory and could not be written

    @property
    def num_unwritten(self) -> int:
        """Blocks that are dirty, and those that wait in the queue."""
        queued = len(self._disk.queued) if self._disk is not None else 0
        return len(self._dirty) + len(self._held.keys() - self._aside) + queued

    def added(self, entry: Entry[Payload], now: float, *, is_held: bool = False) -> None:
        """A block was computed and kept; one that is held is not written before `release`."""
        if self._disk is None or entry.is_memory_only:
            return
        entry.dirty_since = now
        (self._held if is_held else self._dirty)[entry.key] = entry
        self.dirty_bytes += entry.payload.nbytes

    def claim(self, entry: Entry[Payload], now: float) -> None:
        """Someone wants a block on disk that was for the memory tier only until now."""
        if entry.is_memory_only:
            entry.is_memory_only = False
            self.added(entry, now)

    def release(self, key: BlockKey, now: float) -> None:
        """Hold a block no longer: it is dirty from now on. Others pass."""
        entry = self._held.pop(key, None)
        if entry is not None:
            entry.dirty_since = now
            self._dirty[key] = entry

    def leaving(self, entries: Sequence[Entry[Payload]]) -> None:
        """Blocks fell out of memory: what is dirty is written now, after what leads to it, or lost
        if that can't be. What is held waits in the queue."""
        for entry in entries:
            if entry.dirty_since is None:
                continue
            for older in () if self._must_wait() else self._leading_to(entry):
                self._write(older)
            leave = self._put_aside if entry.key in self._held else self._write
            if self._must_wait() or not leave(entry):
                self._clean(entry.key)
                self._replaced.pop(entry.key, None)
                self.num_lost += 1

    def _leading_to(self, entry: Entry[Payload]) -> list[Entry[Payload]]:
        """The dirty blocks of its chain, the first one first; without them it is of no use."""
        found: list[Entry[Payload]] = []
        parent = entry.key.parent
        for older in reversed(self._dirty.values()):
            if older.key.name == parent and older.key.kind is BlockKind.BLOCK:
                found.insert(0, older)
                parent = older.key.parent
        return found

    def superseded(self, entry: Entry[Payload], *, by: BlockKey) -> None:
        """A longer block has taken the place of `entry`: never write it, or delete its file once
        the other is written."""
        if not entry.is_memory_only:
            self.outdated(entry.key, by=by)

    def outdated(self, key: BlockKey, *, by: BlockKey) -> None:
        """The same for a block that may be in memory, on its way or on disk."""
        if self._disk is None:
            return
        old = self._replaced.pop(key, [])
        if not self._clean(key):
            old.append(key)
        if old:
            self._replaced.setdefault(by, []).extend(old)

    def drop(self, way: Way) -> None:
        """Never write what lies on the way; what it was to replace is left to the disk's `drop`."""
        for entry in [*self._dirty.values(), *self._held.values()]:
            if way.has(entry.key, entry.tokens):
                self._clean(entry.key)
                self._replaced.pop(entry.key, None)

    def hurry(self, keys: Sequence[BlockKey]) -> None:
        """Write these blocks at once, in this order."""
        for key in keys:
            entry = self._dirty.get(key) or self._held.get(key)
            if entry is not None and not self._must_wait():
                self._write(entry)

    def _must_wait(self) -> bool:
        return self._is_busy and not self._codec.is_zero_copy and not self._is_through

    def tick(self, now: float, *, is_busy: bool = False) -> float | None:
        """Write what is due; seconds until the next block is, None when none is dirty.

        `is_busy` says whether the device computes for a row.
        """
        self._is_busy = is_busy
        if self._disk is not None:
            self._disk.set_busy(is_busy=is_busy)
        if self._must_wait():
            return self._delay_s or 1.0
        while self._dirty:
            entry = next(iter(self._dirty.values()))
            assert entry.dirty_since is not None
            wait_s = entry.dirty_since + self._delay_s - now
            if wait_s > 0 and self.dirty_bytes <= self._dirty_limit():
                return wait_s
            if not self._write(entry):
                return self._delay_s or 1.0
            if not self._codec.is_zero_copy:
                return 0.0  # one at a time: a request that arrives must not wait for all
        return None

    def flush(self, timeout_s: float) -> bool:
        """Write all dirty blocks and wait until they are on disk; False if time ran out."""
        if self._disk is None:
            return True
        deadline = time.monotonic() + timeout_s
        for key in list(self._held):
            self.release(key, 0.0)
        while self._dirty:
            if self._write(next(iter(self._dirty.values()))):
                continue
            left = deadline - time.monotonic()
            if left <= 0 or not self._disk.drain(left):
                return False
        return self._disk.drain(max(0.0, deadline - time.monotonic()))

    def _dirty_limit(self) -> float:
        assert self._disk is not None
        done = self._disk.counters()
        rate = _ASSUMED_BYTES_PER_S
        if done.write_seconds > 0.1:
            rate = done.bytes_written / done.write_seconds
        return rate * self._drain_s / 2

    def _write(self, entry: Entry[Payload]) -> bool:
        assert self._disk is not None
        tokens, buffers = entry.tokens.tobytes(), self._buffers(entry)
        is_queued = self._disk.write(
            entry.key, tokens, buffers, lambda ok: self._written(entry, ok)
        )
        if is_queued:
            self._clean(entry.key)
        return is_queued

    def _put_aside(self, entry: Entry[Payload]) -> bool:
        assert self._disk is not None
        is_queued = self._disk.queued.add(entry.key, entry.tokens.tobytes(), self._buffers(entry))
        if is_queued:
            self._aside.add(entry.key)
        return is_queued

    def _buffers(self, entry: Entry[Payload]) -> Buffers:
        views = self._codec.read_views(entry.payload)
        is_state = entry.key.kind is BlockKind.STATE
        specs = self._codec.state_specs() if is_state else self._codec.specs(entry.key.count)
        return list(zip(specs, views, strict=True))

    def _clean(self, key: BlockKey) -> bool:
        """A block needs no write any more; whether it did."""
        entry = self._dirty.pop(key, None) or self._held.pop(key, None)
        if entry is None:
            return False
        entry.dirty_since = None
        self.dirty_bytes -= entry.payload.nbytes
        if key in self._aside:
            assert self._disk is not None
            self._aside.remove(key)
            self._disk.queued.remove(key)
        return True

    def _written(self, entry: Entry[Payload], is_stored: bool) -> None:
        entry.is_on_disk = is_stored
        assert self._disk is not None
        for old in self._replaced.pop(entry.key, []):
            if is_stored:
                self._disk.remove(old)
