"""Write-behind: which blocks of the memory tier go to disk, and when.

Knows nothing about look-ups. Owned by the engine thread.

A block is written when it has been kept for `delay_s`, when it leaves memory, when its request
was aborted, when too many bytes are dirty to be written within half the drain limit, and at the
end. A tail that is replaced before that is never written.

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
from omlx.storage.layout import BlockKey, BlockKind

_ASSUMED_BYTES_PER_S = 200e6  # until a rate has been measured


class WriteBack:
    """The dirty blocks in the order in which they were added, so that a chain goes head first."""

    def __init__(
        self, codec: Codec, disk: DiskTier | None, *, delay_s: float, drain_s: float
    ) -> None:
        self._codec = codec
        self._disk = disk
        self._delay_s = delay_s
        self._drain_s = drain_s
        self._dirty: OrderedDict[BlockKey, Entry[Payload]] = OrderedDict()
        self._replaced: dict[BlockKey, list[BlockKey]] = {}
        self._is_busy = False
        self.dirty_bytes = 0
        self.num_lost = 0  # blocks that left memory and could not be written

    def added(self, entry: Entry[Payload], now: float) -> None:
        """A block was computed and kept."""
        if self._disk is None:
            return
        entry.dirty_since = now
        self._dirty[entry.key] = entry
        self.dirty_bytes += entry.payload.nbytes

    def leaving(self, entries: Sequence[Entry[Payload]]) -> None:
        """Blocks fell out of memory: what is dirty is written now, or lost if that can't be."""
        for entry in entries:
            if entry.dirty_since is not None and (self._must_wait() or not self._write(entry)):
                self._clean(entry)
                self._replaced.pop(entry.key, None)
                self.num_lost += 1

    def superseded(self, entry: Entry[Payload], *, by: BlockKey) -> None:
        """A longer block has taken the place of `entry`: never write it, or delete its file once
        the other is written."""
        old = self._replaced.pop(entry.key, [])
        if entry.dirty_since is not None:
            self._clean(entry)
        elif self._disk is not None:
            old.append(entry.key)
        if old:
            self._replaced.setdefault(by, []).extend(old)

    def outdated(self, key: BlockKey, *, by: BlockKey) -> None:
        """The same for a block that is not in memory: nothing of it can be dirty."""
        if self._disk is not None:
            self._replaced.setdefault(by, []).extend([*self._replaced.pop(key, []), key])

    def hurry(self, keys: Sequence[BlockKey]) -> None:
        """Write these blocks at once, in this order."""
        for key in keys:
            entry = self._dirty.get(key)
            if entry is not None and not self._must_wait():
                self._write(entry)

    def _must_wait(self) -> bool:
        return self._is_busy and not self._codec.is_zero_copy

    def tick(self, now: float, *, is_busy: bool = False) -> float | None:
        """Write what is due; seconds until the next block is, None when none is dirty.

        `is_busy` says whether the device computes for a row.
        """
        self._is_busy = is_busy
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
        views = self._codec.read_views(entry.payload)
        is_state = entry.key.kind is BlockKind.STATE
        specs = self._codec.state_specs() if is_state else self._codec.specs(entry.key.count)
        buffers = list(zip(specs, views, strict=True))
        is_queued = self._disk.write(
            entry.key, entry.tokens.tobytes(), buffers, lambda ok: self._written(entry, ok)
        )
        if is_queued:
            self._clean(entry)
        return is_queued

    def _clean(self, entry: Entry[Payload]) -> None:
        entry.dirty_since = None
        if self._dirty.pop(entry.key, None) is not None:
            self.dirty_bytes -= entry.payload.nbytes

    def _written(self, entry: Entry[Payload], is_stored: bool) -> None:
        entry.is_on_disk = is_stored
        assert self._disk is not None
        for old in self._replaced.pop(entry.key, []):
            if is_stored:
                self._disk.remove(old)
