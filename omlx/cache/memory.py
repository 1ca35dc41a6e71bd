"""The memory tier: payloads of recently used blocks, within a byte budget, leaf-first LRU.

Knows nothing about mlx, files or hashing. Owned by the engine thread.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from omlx.cache.block import HasBytes
from omlx.cache.hashing import TokenArray
from omlx.storage.layout import BlockHash, BlockKey

P = TypeVar("P", bound=HasBytes)


@dataclass(slots=True)
class Entry(Generic[P]):
    """One block in memory; `dirty_since` is None once it needs no write.

    `is_memory_only` says that those who stored it want it on no disk.
    """

    key: BlockKey
    tokens: TokenArray
    payload: P
    dirty_since: float | None = None
    is_on_disk: bool = False
    is_memory_only: bool = False


class MemoryTier(Generic[P]):
    """Blocks by name. The order of use is kept so that a child is always older than its parent."""

    def __init__(self, budget_bytes: int, root: BlockHash) -> None:
        self.budget_bytes = budget_bytes
        self._root = root
        self.used_bytes = 0
        self.evicted = 0
        self._entries: OrderedDict[BlockHash, Entry[P]] = OrderedDict()
        self._children: dict[BlockHash, dict[BlockHash, Entry[P]]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, name: BlockHash) -> Entry[P] | None:
        """The block of this name; does not count as a use."""
        return self._entries.get(name)

    def find(self, name: BlockHash, parent: BlockHash, tokens: TokenArray) -> Entry[P] | None:
        """The same, but only with these tokens after this parent: a collision is a miss."""
        entry = self._entries.get(name)
        if entry is None or entry.key.parent != parent or not np.array_equal(entry.tokens, tokens):
            return None
        return entry

    def children(self, parent: BlockHash) -> list[Entry[P]]:
        """The blocks that continue `parent`."""
        return list(self._children.get(parent, {}).values())

    def add(self, entry: Entry[P], root: BlockHash | None = None) -> list[Entry[P]]:
        """Keep a block as the most recent one; returns what had to go, maybe `entry` itself.

        A block whose parent is not here, and not the (salted) root, could not be found, so it must
        not push out another.
        """
        assert entry.key.name not in self._entries
        is_first = entry.key.parent == (self._root if root is None else root)
        is_found = is_first or entry.key.parent in self._entries
        if not is_found or entry.payload.nbytes > self.budget_bytes:
            self.evicted += 1
            return [entry]
        self._entries[entry.key.name] = entry
        self._children.setdefault(entry.key.parent, {})[entry.key.name] = entry
        self.used_bytes += entry.payload.nbytes
        return self._shrink(self.budget_bytes)

    def replace(self, name: BlockHash, payload: P) -> list[Entry[P]]:
        """Keep a block with another payload; returns what had to go for it."""
        entry = self._entries[name]
        self.used_bytes += payload.nbytes - entry.payload.nbytes
        entry.payload = payload
        return self._shrink(self.budget_bytes)

    def shrink(self, num_bytes: int) -> list[Entry[P]]:
        """Let go of so many bytes, or all there are; returns what went."""
        return self._shrink(max(0, self.used_bytes - num_bytes))

    def touch(self, names: Sequence[BlockHash]) -> None:
        """Mark a chain, given from its root on, as used now."""
        for name in reversed(names):
            if name in self._entries:
                self._entries.move_to_end(name)

    def remove(self, name: BlockHash) -> Entry[P] | None:
        """Forget a block; its payload lives on while someone holds it."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return None
        siblings = self._children[entry.key.parent]
        del siblings[name]
        if not siblings:
            del self._children[entry.key.parent]
        self.used_bytes -= entry.payload.nbytes
        return entry

    def _shrink(self, most_bytes: int) -> list[Entry[P]]:
        gone: list[Entry[P]] = []
        while self.used_bytes > most_bytes:
            leaf = next(name for name in self._entries if name not in self._children)
            entry = self.remove(leaf)
            assert entry is not None
            gone.append(entry)
            self.evicted += 1
        return gone
