"""What a cache directory holds, kept up to date beside others that write there, and taken from.

Knows nothing about how much it may hold.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from omlx.storage.fs import FileSystem
from omlx.storage.inventory import Inventory
from omlx.storage.layout import parse_temp_name
from omlx.storage.scan import FileKind, FoundFile, is_stale
from omlx.storage.watch import DirectoryWatch, Listing

_MAX_FAILURES = 8
_MAX_LOOKS = 4

_logger = logging.getLogger("omlx.storage")


@dataclass(frozen=True, slots=True)
class Evicted:
    """What an eviction removed; also of what others had removed before it came to it."""

    num_files: int
    num_bytes: int


class Stock:
    """The files below a directory, as last looked at; not thread-safe.

    `num_stale` temporary files were removed, `num_vanished` files had gone before they could be.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: Path,
        *,
        clock: Callable[[], float],
        is_alive: Callable[[int], bool],
        pid: int,
    ) -> None:
        self.inventory = Inventory()
        self.looked_at: float | None = None
        self.num_stale = 0
        self.num_vanished = 0
        self.evicted = Evicted(0, 0)
        self._fs = fs
        self._directory = directory
        self._clock = clock
        self._is_alive = is_alive
        self._pid = pid
        self._created = clock()
        self._watch = DirectoryWatch(fs, directory, clock)

    def look_until_still(self) -> None:
        """Look until nothing has moved during the look; OSError. Mutates.

        Else a file may be missed that another process wrote into a folder already read, for one
        that it evicted from the next.
        """
        for _ in range(_MAX_LOOKS):
            if not self.look():
                break

    def look(self, *, everything: bool = False) -> bool:
        """Read what has changed; whether others have brought or taken any; OSError. Mutates."""
        now = self._clock()
        has_changed = False
        for listing in self._watch.look(self.inventory.places_in, everything=everything):
            files = self._without_stale(listing, now)
            has_changed |= self.inventory.replace(listing.folder, files, listing.kept)
        self.looked_at = now
        return has_changed

    def evict(self, num_bytes: int) -> Evicted:
        """Remove leaves, oldest touch first, until so many bytes are free. Mutates."""
        return self._remove(num_bytes, self.inventory.next_leaf)

    def evict_states(self, num_bytes: int) -> Evicted:
        """Remove states, oldest touch first, until so many bytes are free. Mutates."""
        return self._remove(num_bytes, self.inventory.next_state)

    def _without_stale(self, listing: Listing, now: float) -> list[FoundFile]:
        """The files that count, after the removal of what dead processes left."""
        temps = [file for file in listing.files if file.kind is FileKind.TEMP]
        if not temps:
            return listing.files
        kept = [file for file in listing.files if file.kind is not FileKind.TEMP]
        for file in temps:
            if self._is_stale(file, now):
                self.num_stale += 1
                if not self._unlink(file.place):
                    kept.append(file)
            elif parse_temp_name(file.filename) != self._pid:
                kept.append(file)  # our own are covered by their reservations
        return kept

    def _is_stale(self, file: FoundFile, now: float) -> bool:
        # In a container every start may get the same process number.
        if parse_temp_name(file.filename) == self._pid and file.mtime < self._created:
            return True
        return is_stale(file, now=now, is_alive=self._is_alive)

    def _remove(self, num_bytes: int, next_file: Callable[[], FoundFile | None]) -> Evicted:
        num_files = freed = failures = 0
        while freed < num_bytes and failures < _MAX_FAILURES:
            file = next_file()
            if file is None:
                break
            try:
                mtime = self._fs.stat(self._directory / file.place).mtime
                if mtime != file.mtime:  # touched, by us or another process
                    self.inventory.add(file._replace(mtime=mtime))
                    continue
                self._fs.unlink(self._directory / file.place)
            except (FileNotFoundError, NotADirectoryError):
                self.num_vanished += 1  # another process was faster
            except OSError:
                failures += 1
                self.inventory.set_aside(file.place)
                continue
            self.inventory.remove(file.place)
            num_files += 1
            freed += file.size
        total = self.evicted
        self.evicted = Evicted(total.num_files + num_files, total.num_bytes + freed)
        return Evicted(num_files, freed)

    def _unlink(self, place: str) -> bool:
        try:
            self._fs.unlink(self._directory / place)
        except FileNotFoundError:
            return True
        except OSError as error:
            _logger.debug("can't remove %s: %s", place, error)
            return False
        return True
