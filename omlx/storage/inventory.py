"""The files of a cache directory in memory: how much they hold, and which goes first.

Knows nothing about the file system; it is a hint that a look at the files confirms.
"""

import heapq
from collections import Counter
from collections.abc import Iterable

from omlx.storage.layout import chain_keys
from omlx.storage.scan import FileKind, FoundFile

_EVICTABLE = (FileKind.BLOCK, FileKind.OTHER_BLOCK)


class Inventory:
    """Files by place, and blocks leaf first, oldest first; not thread-safe.

    A leaf is a block that no other block names as its parent. Files of other versions are
    leaves, since nothing is known of their parents.
    """

    def __init__(self, files: Iterable[FoundFile] = ()) -> None:
        self.num_bytes = 0
        self.num_blocks = 0
        self.evictable_bytes = 0
        self._files: dict[str, FoundFile] = {}
        self._num_children: Counter[str] = Counter()
        self._places: dict[str, str] = {}
        self._heap: list[tuple[float, str]] = []
        self._set_aside: set[str] = set()
        for file in files:
            self._add(file)
        self._queue_all_leaves()

    def __contains__(self, place: str) -> bool:
        return place in self._files

    def add(self, file: FoundFile) -> None:
        """Take a file in, or its new size and time. Mutates."""
        self.remove(file.place)
        self._add(file)
        self._queue_if_leaf(file)

    def remove(self, place: str) -> FoundFile | None:
        """Forget a file, if it is known; its parent may become a leaf. Mutates."""
        file = self._files.pop(place, None)
        if file is None:
            return None
        self.num_bytes -= file.size
        if file.kind not in _EVICTABLE:
            return file
        self.num_blocks -= 1
        if file.kind is FileKind.BLOCK:
            own = chain_keys(place)[0]
            if self._places.get(own) == place:
                del self._places[own]
        if place in self._set_aside:
            self._set_aside.remove(place)
        else:
            self._leave_order(file)
        return file

    def next_leaf(self) -> FoundFile | None:
        """Take the oldest leaf out of the order, though not out of the figures. Mutates.

        The caller removes it, adds it anew, or sets it aside.
        """
        leaf = self._pop()
        if leaf is None and self.evictable_bytes:
            # What is left names each other as parents or has a name twice: broken files.
            self._num_children.clear()
            self._queue_all_leaves()
            leaf = self._pop()
        return leaf

    def set_aside(self, place: str) -> None:
        """Count a file that can't be removed as one that stays, shielding no other. Mutates."""
        if place not in self._set_aside:
            self._set_aside.add(place)
            self._leave_order(self._files[place])

    def _add(self, file: FoundFile) -> None:
        self._files[file.place] = file
        self.num_bytes += file.size
        if file.kind not in _EVICTABLE:
            return
        self.num_blocks += 1
        self.evictable_bytes += file.size
        if file.kind is FileKind.BLOCK:
            own, parent = chain_keys(file.place)
            self._places[own] = file.place
            self._num_children[parent] += 1

    def _leave_order(self, file: FoundFile) -> None:
        """The file can't be evicted any more, and its parent may have become a leaf."""
        self.evictable_bytes -= file.size
        if file.kind is not FileKind.BLOCK:
            return
        parent = chain_keys(file.place)[1]
        self._num_children[parent] -= 1
        if self._num_children[parent] > 0:
            return
        del self._num_children[parent]
        if parent in self._places:
            self._queue_if_leaf(self._files[self._places[parent]])

    def _is_leaf(self, file: FoundFile) -> bool:
        is_chained = file.kind is FileKind.BLOCK
        return not is_chained or chain_keys(file.place)[0] not in self._num_children

    def _queue_if_leaf(self, file: FoundFile) -> None:
        if file.kind in _EVICTABLE and self._is_leaf(file):
            heapq.heappush(self._heap, (file.mtime, file.place))

    def _queue_all_leaves(self) -> None:
        self._heap = [
            (file.mtime, file.place)
            for file in self._files.values()
            if file.kind in _EVICTABLE and self._is_leaf(file)
        ]
        heapq.heapify(self._heap)

    def _pop(self) -> FoundFile | None:
        while self._heap:
            mtime, place = heapq.heappop(self._heap)
            file = self._files.get(place)
            if file is None or file.mtime != mtime or place in self._set_aside:
                continue  # removed or touched since it was queued
            if self._is_leaf(file):  # not continued by a newer block meanwhile
                return file
        return None
