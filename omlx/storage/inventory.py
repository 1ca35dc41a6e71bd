"""The files of a cache directory in memory: how much they hold, and which goes first.

Knows nothing about the file system; it is a hint that a look at the files confirms.
"""

from collections.abc import Iterable, Sequence, Set

from omlx.storage.order import EVICTABLE, Order
from omlx.storage.scan import FileKind, FoundFile

_NONE: Set[str] = frozenset()


class Inventory:
    """Files by place with their figures, and in the order in which they go; not thread-safe."""

    def __init__(self, files: Iterable[FoundFile] = ()) -> None:
        self.num_bytes = 0
        self.num_blocks = 0
        self.num_states = 0
        self.state_bytes = 0
        self.evictable_bytes = 0
        self._files: dict[str, FoundFile] = {}
        self._places_in: dict[str, set[str]] = {}
        self._order: Order | None = None
        for file in files:
            self._add(file)

    def __contains__(self, place: str) -> bool:
        return place in self._files

    def add(self, file: FoundFile) -> None:
        """Take a file in, or its new size and time. Mutates."""
        self.remove(file.place)
        self._add(file)

    def places_in(self, folder: str) -> Set[str]:
        """The files known in a folder."""
        return self._places_in.get(folder, frozenset())

    def replace(self, folder: str, files: Sequence[FoundFile], kept: Set[str] = _NONE) -> bool:
        """Let `files`, and those `kept`, be all in a folder; what was set aside returns. Mutates.

        True if bytes have come or gone of which nothing was known.
        """
        if files and folder not in self._places_in and self._order is None:
            self._add_folder(folder, files)
            return True
        before = self.num_bytes, len(self._files)
        gone = self.places_in(folder) - kept - {file.place for file in files}
        for place in gone:
            self.remove(place)
        for file in files:
            known = self._files.get(file.place)
            if known is None:
                self._add(file)
            elif known != file or (self._order and self._order.is_set_aside(file.place)):
                self.add(file)
        return bool(gone) or before != (self.num_bytes, len(self._files))

    def remove(self, place: str) -> FoundFile | None:
        """Forget a file, if it is known; its parent may become a leaf. Mutates."""
        file = self._files.pop(place, None)
        if file is None:
            return None
        folder = _folder(place)
        self._places_in[folder].discard(place)
        if not self._places_in[folder]:
            del self._places_in[folder]
        self.num_bytes -= file.size
        if file.kind in EVICTABLE:
            self._count(file, -1)
            if self._order is None or not self._order.is_set_aside(place):
                self.evictable_bytes -= file.size
            if self._order is not None:
                self._order.remove(file)
        return file

    def next_leaf(self) -> FoundFile | None:
        """Take the oldest leaf out of the order, though not out of the figures. Mutates.

        The caller removes it, adds it anew, or sets it aside.
        """
        return self._ordered().next_leaf()

    def next_state(self) -> FoundFile | None:
        """Take the oldest state out of the order, as `next_leaf` does. Mutates."""
        return self._ordered().next_state()

    def set_aside(self, place: str) -> None:
        """Count a file that can't be removed as one that stays, shielding no other. Mutates."""
        if self._ordered().set_aside(self._files[place]):
            self.evictable_bytes -= self._files[place].size

    def _ordered(self) -> Order:
        # Made when the first must go; a server that starts does not wait for it.
        if self._order is None:
            self._order = Order(self._files)
        return self._order

    def _add(self, file: FoundFile) -> None:
        self._files[file.place] = file
        folder = _folder(file.place)
        if folder not in self._places_in:
            self._places_in[folder] = set()
        self._places_in[folder].add(file.place)
        self.num_bytes += file.size
        if file.kind in EVICTABLE:
            self._count(file, 1)
            self.evictable_bytes += file.size
            if self._order is not None:
                self._order.add(file)

    def _add_folder(self, folder: str, files: Sequence[FoundFile]) -> None:
        """Take in a folder of which nothing was known, as a start does with all of them."""
        self._files.update((file.place, file) for file in files)
        self._places_in[folder] = {file.place for file in files}
        self.num_bytes += sum(file.size for file in files)
        self.evictable_bytes += sum(file.size for file in files if file.kind in EVICTABLE)
        states = [file.size for file in files if file.kind is FileKind.STATE]
        self.num_states += len(states)
        self.state_bytes += sum(states)
        num_evictable = sum(file.kind in EVICTABLE for file in files)
        self.num_blocks += num_evictable - len(states)

    def _count(self, file: FoundFile, number: int) -> None:
        if file.kind is FileKind.STATE:
            self.num_states += number
            self.state_bytes += number * file.size
        else:
            self.num_blocks += number


def _folder(place: str) -> str:
    """The folder that a place is in, as a scan names it."""
    return place[: place.rfind("/") + 1]
