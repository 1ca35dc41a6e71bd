"""The order in which files of a cache directory go: leaves first, oldest first.

Knows nothing about the file system, nor how many bytes there are.
"""

import heapq
from collections.abc import Callable, Mapping

from omlx.storage.layout import chain_keys
from omlx.storage.scan import FileKind, FoundFile

EVICTABLE = (FileKind.BLOCK, FileKind.STATE, FileKind.OTHER_BLOCK)
_MAX_OUTDATED = 1000


class _Queue:
    """Files, oldest first, of one age states first; what is outdated in it is passed over."""

    def __init__(self, files: Mapping[str, FoundFile], is_in: Callable[[FoundFile], bool]) -> None:
        self._files = files
        self._is_in = is_in
        self._heap: list[tuple[float, bool, str]] = []
        self.fill()

    def fill(self) -> None:
        """Begin anew with all files."""
        self._heap = [_age(file) for file in self._files.values() if self._is_in(file)]
        heapq.heapify(self._heap)

    def push(self, file: FoundFile) -> None:
        """Take a file in, if it belongs here."""
        if not self._is_in(file):
            return
        heapq.heappush(self._heap, _age(file))
        if len(self._heap) > 4 * len(self._files) + _MAX_OUTDATED:
            self.fill()

    def pop(self) -> FoundFile | None:
        """The first that is still as it was when it came, and still belongs here."""
        while self._heap:
            mtime, _, place = heapq.heappop(self._heap)
            file = self._files.get(place)
            if file is not None and file.mtime == mtime and self._is_in(file):
                return file
        return None


class Order:
    """Files as their owner's dictionary has them, leaves first, and states alone; no locks.

    A leaf is a block that no other block names as its parent and of which there is no state.
    States are leaves, and so are files of other versions, of whose parents nothing is known.
    """

    def __init__(self, files: Mapping[str, FoundFile]) -> None:
        self._files = files
        self._num_below: dict[str, int] = {}
        self._places: dict[str, str] = {}
        self._set_aside: set[str] = set()
        for file in files.values():
            self._link(file)
        self._leaves = _Queue(files, self._is_leaf)
        self._states = _Queue(files, self._is_state)

    def add(self, file: FoundFile) -> None:
        """A file has come into the dictionary. Mutates."""
        self._link(file)
        self._queue(file)

    def remove(self, file: FoundFile) -> None:
        """A file has left the dictionary; what is above it may become a leaf. Mutates."""
        if file.kind is FileKind.BLOCK:
            own = chain_keys(file.place)[0]
            if self._places.get(own) == file.place:
                del self._places[own]
        if file.place in self._set_aside:
            self._set_aside.remove(file.place)
        else:
            self._unlink(file)

    def set_aside(self, file: FoundFile) -> bool:
        """Pass a file over from now on, which shields no other; False if that was so. Mutates."""
        if file.place in self._set_aside:
            return False
        self._set_aside.add(file.place)
        self._unlink(file)
        return True

    def is_set_aside(self, place: str) -> bool:
        """Whether a file is passed over."""
        return place in self._set_aside

    def next_leaf(self) -> FoundFile | None:
        """Take the oldest leaf out of the order. Mutates."""
        leaf = self._leaves.pop()
        if leaf is None and len(self._set_aside) < len(self._files):
            # What is left names each other as parents or has a name twice: broken files.
            self._num_below.clear()
            self._leaves.fill()
            leaf = self._leaves.pop()
        return leaf

    def next_state(self) -> FoundFile | None:
        """Take the oldest state out of the order. Mutates."""
        return self._states.pop()

    def _link(self, file: FoundFile) -> None:
        if file.kind is FileKind.BLOCK:
            self._places[chain_keys(file.place)[0]] = file.place
        above = _above(file)
        if above is not None:
            self._num_below[above] = self._num_below.get(above, 0) + 1

    def _unlink(self, file: FoundFile) -> None:
        above = _above(file)
        if above is None:
            return
        left = self._num_below.pop(above, 0) - 1
        if left > 0:
            self._num_below[above] = left
        elif above in self._places:
            self._queue(self._files[self._places[above]])

    def _queue(self, file: FoundFile) -> None:
        self._leaves.push(file)
        self._states.push(file)

    def _is_leaf(self, file: FoundFile) -> bool:
        if file.kind not in EVICTABLE or file.place in self._set_aside:
            return False
        return file.kind is not FileKind.BLOCK or chain_keys(file.place)[0] not in self._num_below

    def _is_state(self, file: FoundFile) -> bool:
        return file.kind is FileKind.STATE and file.place not in self._set_aside


def _above(file: FoundFile) -> str | None:
    """The key of the block that is no leaf while `file` is there: its parent, or a state's own."""
    if file.kind is FileKind.BLOCK:
        return chain_keys(file.place)[1]
    return chain_keys(file.place)[0] if file.kind is FileKind.STATE else None


def _age(file: FoundFile) -> tuple[float, bool, str]:
    return file.mtime, file.kind is not FileKind.STATE, file.place
