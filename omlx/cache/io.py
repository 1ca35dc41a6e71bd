"""The disk tier's threads: find, read, write and touch blocks away from the engine thread.

Bytes only, no mlx. Every result is handed back to the engine thread through `post`.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import TypeVar

import numpy as np

from omlx.cache.hashing import TokenArray, common_prefix
from omlx.storage.budget import Budget
from omlx.storage.layout import BlockHash, BlockKey, BlockKind
from omlx.storage.record import SectionSpec
from omlx.storage.store import BlockStore, PutResult, StoreCounters

_log = logging.getLogger("omlx.cache.io")
_READERS = 8  # enough multi-megabyte reads in flight to reach the rate of an SSD

Post = Callable[[Callable[[], None]], None]
Buffers = Sequence[tuple[SectionSpec, memoryview]]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Partial:
    """A stored block whose first `take` tokens continue the sequence."""

    key: BlockKey
    tokens: TokenArray
    take: int


@dataclass(frozen=True, slots=True)
class Found:
    """What the disk has of a sequence: so many full blocks, then perhaps a part of one more.

    `states` are snapshots after a part of the sequence, the deepest first. `nearest` is what
    `partial` is, or a block that goes on without sharing a token.
    """

    num_blocks: int
    partial: Partial | None
    states: tuple[BlockKey, ...] = ()
    nearest: Partial | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ReadJob:
    """One block to read and the buffers that take it."""

    key: BlockKey
    tokens: bytes
    buffers: Buffers


@dataclass(frozen=True, slots=True)
class Usage:
    """Blocks and bytes in the directory, and its ceiling."""

    blocks: int
    used_bytes: int
    max_bytes: int


class DiskTier:
    """Asynchronous access to one BlockStore; its methods are called on the engine thread.

    `writer` must run one job at a time, in order; both executors are ended by `close`.
    """

    def __init__(
        self,
        store: BlockStore,
        budget: Budget,
        post: Post,
        *,
        max_queued_bytes: int,
        readers: Executor | None = None,
        writer: Executor | None = None,
    ) -> None:
        self._store = store
        self._budget = budget
        self._post = post
        self._max_queued_bytes = max_queued_bytes
        self._readers = readers or ThreadPoolExecutor(_READERS, "omlx-read")
        self._writer = writer or ThreadPoolExecutor(1, "omlx-write")
        self._writes: set[Future[None]] = set()
        self._lock = threading.Lock()
        self._queued_bytes = 0

    def find(
        self,
        keys: Sequence[BlockKey],
        parent: BlockHash,
        rest: TokenArray,
        done: Callable[[Found], None],
        *,
        needs_blocks: bool = True,
        needs_states: bool = False,
    ) -> None:
        """Walk `keys` (full blocks after `parent`) as far as they exist, then look for a partial.

        `rest` are the tokens after `parent` that may come from the cache. A model that needs
        states gets all that lie on the way; one that needs no blocks walks all `keys` for them.
        """

        def job() -> Found:
            found = Found(0, None)
            if needs_blocks:
                found = self._find_blocks(keys, parent, rest)
            if not needs_states:
                return found
            walked = keys[: found.num_blocks] if needs_blocks else keys
            return replace(found, states=self._find_states(walked, parent, rest))

        self._run(job, Found(0, None), done)

    def _find_blocks(self, keys: Sequence[BlockKey], parent: BlockHash, rest: TokenArray) -> Found:
        num_blocks = 0
        for key in keys:
            if not self._store.contains(key):
                break
            num_blocks += 1
            parent = key.name
            rest = rest[key.count :]
        best: Partial | None = None
        for child in self._store.children(parent) if len(rest) else ():
            if child.key.kind is not BlockKind.BLOCK:
                continue
            tokens = np.frombuffer(child.tokens, dtype="<u4")
            take = common_prefix(tokens, rest)
            if take > (best.take if best else -1):
                best = Partial(child.key, tokens, take)
        return Found(num_blocks, best if best and best.take else None, nearest=best)

    def _find_states(
        self, walked: Sequence[BlockKey], parent: BlockHash, rest: TokenArray
    ) -> tuple[BlockKey, ...]:
        """The states at the ends of the blocks walked, within them and the next, deepest first."""
        starts: dict[BlockHash, int] = {}
        start = 0
        for key in walked:
            starts[parent] = start
            start += key.count
            parent = key.name
        starts[parent] = start
        names = {starts[key.name]: key.name for key in walked}  # by where they end
        found: list[tuple[int, BlockKey]] = []
        for child in self._store.states(list(starts)) if len(rest) else ():
            start, tokens = starts[child.key.parent], np.frombuffer(child.tokens, dtype="<u4")
            end = start + len(tokens)
            # Where a block is walked to its end, only its own name is right there.
            is_right = names.get(end, child.key.name) == child.key.name
            if is_right and common_prefix(tokens, rest[start:]) == len(tokens):
                found.append((end, child.key))
        found.sort(key=lambda item: item[0], reverse=True)
        return tuple(key for _, key in found)

    def read(self, jobs: Sequence[ReadJob], done: Callable[[list[bool]], None]) -> None:
        """Read and verify blocks side by side; `done` gets one truth value a block, in order."""
        results = [False] * len(jobs)
        left = [len(jobs)]

        def finish(index: int, is_good: bool) -> None:
            results[index] = is_good
            left[0] -= 1
            if not left[0]:
                done(results)

        for i, job in enumerate(jobs):

            def read_one(job: ReadJob = job) -> bool:
                return self._store.read(job.key, job.tokens, job.buffers)

            self._run(read_one, False, lambda ok, i=i: finish(i, ok))

    def write(
        self, key: BlockKey, tokens: bytes, buffers: Buffers, done: Callable[[bool], None]
    ) -> bool:
        """Queue a block to be written, its bytes kept alive by `buffers`; False: queue is full."""
        size = sum(view.nbytes for _, view in buffers)
        with self._lock:
            if self._queued_bytes and self._queued_bytes + size > self._max_queued_bytes:
                return False
            self._queued_bytes += size

        def job() -> None:
            result = PutResult.DROPPED
            try:
                result = self._store.put(key, tokens, buffers)
            except Exception:  # an I/O job: log, count and go on without the block
                _log.exception("writing a block failed")
            with self._lock:
                self._queued_bytes -= size
            self._post(lambda: done(result is not PutResult.DROPPED))

        self._queue(job)
        return True

    def _queue(self, job: Callable[[], None]) -> None:
        future = self._writer.submit(job)
        with self._lock:
            self._writes.add(future)
        future.add_done_callback(self._forget)

    def _forget(self, future: "Future[None]") -> None:
        with self._lock:
            self._writes.discard(future)

    def touch(self, keys: Sequence[BlockKey]) -> None:
        """Mark blocks as used now."""
        self._run(lambda: self._store.touch(keys), None, lambda _: None)

    def remove(self, key: BlockKey) -> None:
        """Delete a block that a longer one has replaced, after the writes queued before."""
        self._queue(lambda: self._store.remove(key))

    def usage(self) -> Usage:
        """What the whole directory holds, as last known: other models and processes included."""
        budget = self._budget
        return Usage(budget.num_blocks, budget.used_bytes, budget.max_bytes)

    def counters(self) -> StoreCounters:
        """What the store has done since it was opened."""
        return self._store.counters()

    def drain(self, timeout_s: float) -> bool:
        """Wait for queued writes; False when some were not done in time."""
        with self._lock:
            pending = set(self._writes)
        return not wait(pending, timeout_s).not_done

    def close(self, timeout_s: float) -> None:
        """Finish what is queued within the limit, then end the threads."""
        deadline = time.monotonic() + timeout_s
        self.drain(timeout_s)
        self._readers.shutdown(wait=False, cancel_futures=True)
        self._writer.shutdown(wait=time.monotonic() < deadline, cancel_futures=True)

    def _run(self, job: Callable[[], T], fallback: T, done: Callable[[T], None]) -> None:
        def guarded() -> None:
            result = fallback
            try:
                result = job()
            except Exception:  # an I/O job: a failure on the read path is a miss
                _log.exception("a job of the disk tier failed")
            self._post(lambda: done(result))

        self._readers.submit(guarded)
