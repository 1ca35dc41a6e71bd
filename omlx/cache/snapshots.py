"""Snapshots of recurrent state in memory, within a byte budget, the least recently used go first.

Knows nothing about mlx, files or hashing. Owned by the engine thread.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, TypeVar

from omlx.cache.block import HasBytes
from omlx.cache.memory import Entry
from omlx.storage.layout import BlockHash, BlockKey

_SPACING = 8192  # tokens between two snapshots that stay behind the newest
NEWEST = 2  # a prompt's and its reply's: the next turn may go on from either
P = TypeVar("P", bound=HasBytes)


class Snapshots(Generic[P]):
    """Snapshots by the key of the state that they hold."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.used_bytes = 0
        self.evicted = 0
        self._entries: OrderedDict[BlockKey, Entry[P]] = OrderedDict()
        self._children: dict[BlockHash, dict[BlockKey, Entry[P]]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: BlockKey) -> Entry[P] | None:
        """The snapshot of this key; does not count as a use."""
        return self._entries.get(key)

    def children(self, parent: BlockHash) -> list[Entry[P]]:
        """The snapshots within and at the end of blocks that continue `parent`."""
        return list(self._children.get(parent, {}).values())

    def add(self, entry: Entry[P]) -> list[Entry[P]]:
        """Keep a snapshot as the most recent one; returns what had to go, maybe `entry` itself."""
        assert entry.key not in self._entries
        if entry.payload.nbytes > self.budget_bytes:
            self.evicted += 1
            return [entry]
        self._entries[entry.key] = entry
        self._children.setdefault(entry.key.parent, {})[entry.key] = entry
        self.used_bytes += entry.payload.nbytes
        return self._shrink(self.budget_bytes)

    def shrink(self, num_bytes: int) -> list[Entry[P]]:
        """Let go of so many bytes, or all there are; returns what went."""
        return self._shrink(max(0, self.used_bytes - num_bytes))

    def _shrink(self, most_bytes: int) -> list[Entry[P]]:
        gone: list[Entry[P]] = []
        while self.used_bytes > most_bytes:
            oldest = self.remove(next(iter(self._entries)))
            assert oldest is not None
            gone.append(oldest)
            self.evicted += 1
        return gone

    def touch(self, key: BlockKey) -> None:
        """Mark a snapshot as used now."""
        if key in self._entries:
            self._entries.move_to_end(key)

    def remove(self, key: BlockKey) -> Entry[P] | None:
        """Forget a snapshot; its payload lives on while someone holds it."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return None
        siblings = self._children[key.parent]
        del siblings[key]
        if not siblings:
            del self._children[key.parent]
        self.used_bytes -= entry.payload.nbytes
        return entry


def outdated(
    snapshots: Sequence[tuple[int, BlockKey]], head: int = 0, stable: int = 0
) -> list[tuple[int, BlockKey]]:
    """Which snapshots of one sequence, in order of position, may go.

    That after `head` tokens stays, and the first one, since other sequences may share them; so do
    the last one within the first `stable` tokens, the newest, and between them one every 8192
    tokens.
    """
    kept = {head, last_within(snapshots, stable)}
    gone: list[tuple[int, BlockKey]] = []
    last = snapshots[0][0] if snapshots else 0
    for old in snapshots[1:-NEWEST]:
        if old[0] not in kept and old[0] - last < _SPACING:
            gone.append(old)
        else:
            last = old[0]
    return gone


def last_within(snapshots: Sequence[tuple[int, BlockKey]], stable: int) -> int:
    """The position of the last snapshot within the first `stable` tokens; 0 if there is none."""
    return max((position for position, _ in snapshots if position <= stable), default=0)
