"""The disk tier's threads: find, read, write and touch blocks away from the engine thread.

Bytes only, no mlx. Every result is handed back to the engine thread through `post`.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from typing import TypeVar

from omlx.cache.finding import Found, find_blocks, find_states
from omlx.cache.hashing import TokenArray, tokens_of_bytes
from omlx.cache.queued import Buffers, QueuedBlocks
from omlx.cache.slots import Slots
from omlx.cache.way import Way
from omlx.storage.budget import Budget
from omlx.storage.layout import BlockHash, BlockKey
from omlx.storage.pace import Pace
from omlx.storage.store import BlockStore, PutResult, StoreCounters

_log = logging.getLogger("omlx.cache.io")
_READERS = 8  # enough multi-megabyte reads in flight to reach the rate of an SSD
_CORES_A_READER = 2  # while rows run: they are to have as many cores as reading takes

Post = Callable[[Callable[[], None]], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ReadJob:
    """One block to read and the buffers that take it."""

    key: BlockKey
    tokens: bytes
    buffers: Buffers


@dataclass(frozen=True, slots=True)
class Usage:
    """Blocks and bytes in the directory, and its ceiling; the same of the states among them."""

    blocks: int
    used_bytes: int
    max_bytes: int
    states: int
    state_bytes: int
    max_state_bytes: int


class DiskTier:
    """Asynchronous access to one BlockStore; its methods are called on the engine thread.

    `writer` must run one job at a time, in order; both executors are ended by `close`. `pace` is
    that of the store's file system.
    """

    def __init__(
        self,
        store: BlockStore,
        budget: Budget,
        post: Post,
        *,
        max_queued_bytes: Callable[[], int],
        readers: Executor | None = None,
        writer: Executor | None = None,
        num_cores: int | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._store = store
        self._budget = budget
        self._post = post
        self._readers = readers or ThreadPoolExecutor(_READERS, "omlx-read")
        self._writer = writer or ThreadPoolExecutor(1, "omlx-write")
        self._reading = Slots(self._readers, _READERS)
        cores = num_cores or os.cpu_count() or 1
        self._busy_readers = max(1, min(_READERS, cores // _CORES_A_READER))
        self._pace = pace or Pace()
        self._writes: set[Future[None]] = set()
        self._lock = threading.Lock()
        self._drop: Future[None] | None = None
        self.queued = QueuedBlocks(max_queued_bytes)

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
                found = find_blocks(self._store, self.queued, keys, parent, rest)
            if not needs_states:
                return found
            walked = keys[: found.num_blocks] if needs_blocks else keys
            states = find_states(self._store, self.queued, walked, parent, rest)
            return replace(found, states=states)

        self._run(job, Found(0, None), done)

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
                is_queued = self.queued.read(job.key, job.tokens, job.buffers)
                return is_queued or self._store.read(job.key, job.tokens, job.buffers)

            self._reading.submit(self._guarded(read_one, False, lambda ok, i=i: finish(i, ok)))

    @property
    def num_readers(self) -> int:
        """How many blocks may be read at a time now."""
        return self._reading.limit

    def set_busy(self, *, is_busy: bool) -> None:
        """Whether rows run: they keep their rhythm if less is read and written at a time."""
        self._pace.is_busy = is_busy
        self._reading.set_limit(self._busy_readers if is_busy else _READERS)

    def write(
        self, key: BlockKey, tokens: bytes, buffers: Buffers, done: Callable[[bool], None]
    ) -> bool:
        """Queue a block to be written, its bytes kept alive by `buffers`; False: queue is full.

        It can be found and read at once.
        """
        if not self.queued.add(key, tokens, buffers):
            return False

        def job() -> None:
            result = PutResult.DROPPED
            try:
                result = self._store.put(key, tokens, buffers)
            except Exception:  # an I/O job: log, count and go on without the block
                _log.exception("writing a block failed")
            self.queued.remove(key)
            self._post(lambda: done(result is not PutResult.DROPPED))

        self._queue(job)
        return True

    def _queue(self, job: Callable[[], None]) -> "Future[None]":
        future = self._writer.submit(job)
        with self._lock:
            self._writes.add(future)
        future.add_done_callback(self._forget)
        return future

    def _forget(self, future: "Future[None]") -> None:
        with self._lock:
            self._writes.discard(future)

    def touch(self, keys: Sequence[BlockKey]) -> None:
        """Mark blocks as used now."""
        self._run(lambda: self._store.touch(keys), None, lambda _: None)

    def remove(self, key: BlockKey) -> None:
        """Delete a block that a longer one has replaced, after the writes queued before."""
        self._queue(lambda: self._store.remove(key))

    def drop(self, way: Way) -> None:
        """Delete what lies on the way, after the writes queued before; what comes later waits."""
        self._drop = self._queue(lambda: _delete(self._store, way))

    def usage(self) -> Usage:
        """What the whole directory holds, as last known: other models and processes included."""
        budget = self._budget
        return Usage(
            budget.num_blocks,
            budget.used_bytes,
            budget.max_bytes,
            budget.num_states,
            budget.state_bytes,
            budget.max_state_bytes,
        )

    def counters(self) -> StoreCounters:
        """What the store has done since it was opened."""
        return self._store.counters()

    def drain(self, timeout_s: float) -> bool:
        """Wait for queued writes, done at full speed; False when some were not done in time."""
        self._pace.is_busy = False
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
        is_dropping = self._drop is not None and not self._drop.done()
        executor = self._writer if is_dropping else self._readers
        executor.submit(self._guarded(job, fallback, done))

    def _guarded(
        self, job: Callable[[], T], fallback: T, done: Callable[[T], None]
    ) -> Callable[[], None]:
        def guarded() -> None:
            result = fallback
            try:
                result = job()
            except Exception:  # an I/O job: a failure on the read path is a miss
                _log.exception("a job of the disk tier failed")
            self._post(lambda: done(result))

        return guarded


def _delete(store: BlockStore, way: Way) -> None:
    for key in way.full_blocks:
        store.remove(key)
    for parent in way.parents:
        for child in store.children(parent):
            if way.has(child.key, tokens_of_bytes(child.tokens)):
                store.remove(child.key)
