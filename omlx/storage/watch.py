"""A cache directory looked at again and again, of which only what has changed is read.

Knows nothing about what the files mean to anyone.

A folder's time of change says whether names in it have come or gone, except within one tick of
the clock. So a folder is read again where its time is another, or was too young to be trusted.
"""

from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path

from omlx.storage.fs import DirEntry, FileSystem
from omlx.storage.scan import UNSEEN, FoundFile, kinds_in, list_folder

_TICK_S = 0.05
_COARSE_TICK_S = 2.1  # where times are whole seconds, or even ones
_OLD_S = 60.0
_MAX_OLD = 8


Places = Set[str]


@dataclass(frozen=True, slots=True)
class Listing:
    """What is in one folder now: `files` as read, and the places `kept` of those not read again.

    Both are empty where it has vanished.
    """

    folder: str
    files: list[FoundFile]
    kept: Places = frozenset()


@dataclass(frozen=True, slots=True)
class _Seen:
    """A folder when it was last read, at `at`; its time of change is from just before."""

    mtime: float
    at: float
    has_folders: bool


class DirectoryWatch:
    """Says what has changed below a directory since the last look; not thread-safe."""

    def __init__(self, fs: FileSystem, directory: Path, clock: Callable[[], float]) -> None:
        self._fs = fs
        self._directory = directory
        self._clock = clock
        self._seen: dict[str, _Seen] = {}

    def look(
        self, known: Callable[[str], Places], *, everything: bool = False
    ) -> Iterator[Listing]:
        """Read the folders that may have changed; OSError. Mutates.

        Of the files in them only those that are not `known` in a folder are looked at, since the
        others don't change. All are in a few folders that were not read for a minute.
        """
        now = self._clock()
        found: set[str] = set()
        num_old = 0
        waiting = [("", 0.0)]
        while waiting:
            folder, mtime = waiting.pop()
            found.add(folder)
            seen = self._seen.get(folder)
            is_old = everything or seen is None or not 0 <= now - seen.at < _OLD_S
            if not everything and seen is not None:
                is_old = is_old and num_old < _MAX_OLD
                if not is_old and folder and _is_unchanged(seen, mtime):
                    continue
                num_old += is_old
            at = self._clock()  # not `now`: this look may take longer than a tick
            is_partial = not is_old and seen is not None and not seen.has_folders
            listing, below = self._read(folder, known(folder) if is_partial else frozenset())
            self._seen[folder] = _Seen(mtime, at, has_folders=bool(below))
            waiting.extend((f"{folder}{entry.name}/", entry.mtime) for entry in below)
            yield listing
        for folder in self._seen.keys() - found:
            del self._seen[folder]
            yield Listing(folder, [])

    def _read(self, folder: str, known: Places) -> tuple[Listing, list[DirEntry]]:
        """What is in a folder, and the folders in it."""
        try:
            if known:
                listing = self._read_names(folder, known)
                if listing is not None:
                    return listing, []
            files, below = list_folder(self._fs, self._directory, folder)
        except UNSEEN:
            if not folder:
                raise
            return Listing(folder, []), []
        return Listing(folder, files), below

    def _read_names(self, folder: str, known: Places) -> Listing | None:
        """What is in a folder, of files by their names alone; None where there is a folder."""
        places = {folder + name for name in self._fs.names(self._directory / folder)}
        kind_of = kinds_in(folder)
        files: list[FoundFile] = []
        for place in places - known:
            try:
                status = self._fs.stat(self._directory / place)
            except FileNotFoundError:
                continue
            if status.is_dir:
                return None
            kind = kind_of(place[len(folder) :])
            files.append(FoundFile(place, status.size, status.mtime, kind))
        return Listing(folder, files, places & known)


def _is_unchanged(seen: _Seen, mtime: float) -> bool:
    """Whether a folder certainly has the names that it had; one of folders can't know."""
    return not seen.has_folders and seen.mtime == mtime and is_settled(mtime, seen.at)


def is_settled(mtime: float, read_at: float) -> bool:
    """Whether a change after a folder was read would give it another time than `mtime`."""
    tick = _TICK_S if mtime % 1 else _COARSE_TICK_S
    # A time in the future is that of a clock that was set back, and as good as any.
    return abs(read_at - mtime) > tick
