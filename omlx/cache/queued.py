"""Blocks that wait to be written: bounded in bytes, and read as if they were on disk already.

Knows nothing about files or about who writes them. Any thread may call it.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from omlx.storage.children import Child
from omlx.storage.layout import BlockHash, BlockKey
from omlx.storage.record import SectionSpec

Buffers = Sequence[tuple[SectionSpec, memoryview]]


@dataclass(slots=True)
class _Waiting:
    tokens: bytes
    sections: dict[SectionSpec, memoryview]
    num_bytes: int
    num_holders: int = field(default=1)


class QueuedBlocks:
    """The bytes of blocks by key; `max_bytes` says how many there may be at this moment.

    One block is always taken. One that is added twice stays until it is removed twice.
    """

    def __init__(self, max_bytes: Callable[[], int]) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._waiting: dict[BlockKey, _Waiting] = {}
        self._children: dict[BlockHash, set[BlockKey]] = {}
        self._num_bytes = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of all blocks that wait."""
        return self._num_bytes

    @property
    def max_bytes(self) -> int:
        """How many there may be now."""
        return self._max_bytes()

    def add(self, key: BlockKey, tokens: bytes, buffers: Buffers) -> bool:
        """Keep a block's bytes, alive by `buffers`, until `remove`; False: there is no room."""
        limit = self._max_bytes()
        with self._lock:
            known = self._waiting.get(key)
            if known is not None:
                known.num_holders += 1
                return True
            size = sum(view.nbytes for _, view in buffers)
            if self._num_bytes and self._num_bytes + size > limit:
                return False
            self._num_bytes += size
            self._waiting[key] = _Waiting(tokens, dict(buffers), size)
            self._children.setdefault(key.parent, set()).add(key)
            return True

    def remove(self, key: BlockKey) -> None:
        """Let go of a block that was added (mutates)."""
        with self._lock:
            waiting = self._waiting[key]
            waiting.num_holders -= 1
            if waiting.num_holders:
                return
            del self._waiting[key]
            self._num_bytes -= waiting.num_bytes
            siblings = self._children[key.parent]
            siblings.remove(key)
            if not siblings:
                del self._children[key.parent]

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, key: BlockKey) -> bool:
        with self._lock:
            return key in self._waiting

    def children(self, parents: Iterable[BlockHash]) -> list[Child]:
        """What continues any of `parents`, of both kinds."""
        with self._lock:
            keys = [key for parent in parents for key in self._children.get(parent, ())]
            found = [(key, self._waiting[key]) for key in keys]
        return [Child(key, one.tokens, one.num_bytes, float("inf")) for key, one in found]

    def read(self, key: BlockKey, tokens: bytes, buffers: Buffers) -> bool:
        """Fill the buffers of some or all sections of a block; False if it doesn't wait."""
        with self._lock:
            waiting = self._waiting.get(key)
        if waiting is None or waiting.tokens != tokens:
            return False
        for spec, view in buffers:
            source = waiting.sections.get(spec)
            if source is None:
                return False
            # Not by a slice of the view, which would hold the lock of the interpreter meanwhile.
            np.copyto(np.frombuffer(view, np.uint8), np.frombuffer(source, np.uint8))
        return True
