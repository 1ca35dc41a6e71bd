"""What files a cache directory holds, by names, sizes and times only.

Knows nothing about what is in them, and changes nothing.
"""

import os
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from omlx.storage.fs import DirEntry, FileSystem
from omlx.storage.layout import (
    BLOCKS,
    DAY_FILE,
    ROOT_FILE,
    SUFFIX,
    BlockKind,
    is_root_name,
    is_shard_name,
    kind_of_name,
    parse_temp_name,
    root_of,
)

STALE_S = 3600.0
UNSEEN = (FileNotFoundError, NotADirectoryError, PermissionError)
"""What a folder raises that has vanished or may not be listed."""


class FileKind(Enum):
    """What a file's place and name make of it; OTHER_BLOCK is one of another version."""

    BLOCK = "block"
    STATE = "state"
    OTHER_BLOCK = "other block"
    ROOT_FILE = "root file"
    DAY_FILE = "day file"
    TEMP = "temporary"
    UNKNOWN = "unknown"


class FoundFile(NamedTuple):  # a tuple, since a start makes a hundred thousand
    """One file; `place` is its path below the directory and says what else there is to know."""

    place: str
    size: int
    mtime: float
    kind: FileKind

    @property
    def filename(self) -> str:
        """The last part of its place."""
        return self.place.rpartition("/")[2]

    @property
    def root16(self) -> str:
        """The root it lies in, or ""."""
        return root_of(self.place)


def scan(fs: FileSystem, directory: Path) -> list[FoundFile]:
    """Every file below `directory`; what vanishes meanwhile or may not be listed is left out.

    OSError where the directory can't be read at all, or a part of it fails in another way.
    """
    found: list[FoundFile] = []
    waiting = [""]
    while waiting:
        folder = waiting.pop()
        try:
            files, below = list_folder(fs, directory, folder)
        except UNSEEN:
            if not folder:
                raise
            continue
        found.extend(files)
        waiting.extend(f"{folder}{entry.name}/" for entry in below)
    return found


def list_folder(
    fs: FileSystem, directory: Path, folder: str
) -> tuple[list[FoundFile], list[DirEntry]]:
    """The files and the folders in one folder of a cache directory; OSError.

    `folder` is its place below `directory`, "" or with a slash at its end.
    """
    entries = fs.scandir(directory / folder)
    kind_of = kinds_in(folder)
    files = [
        FoundFile(folder + entry.name, entry.size, entry.mtime, kind_of(entry.name))
        for entry in entries
        if not entry.is_dir
    ]
    return files, [entry for entry in entries if entry.is_dir]


def kinds_in(folder: str) -> Callable[[str], FileKind]:
    """How the names in a folder are to be understood; its place as `list_folder` takes it."""
    parts = folder.split("/")[:-1]
    if not parts:
        return _kind_at_top
    if len(parts) < 2 or parts[0] != BLOCKS or not is_root_name(parts[1]):
        return lambda name: FileKind.UNKNOWN
    if len(parts) == 2:
        return _kind_in_root
    if len(parts) == 3 and is_shard_name(parts[2]):
        return _kind_in_shard
    return lambda name: FileKind.UNKNOWN


def _kind_at_top(name: str) -> FileKind:
    if parse_temp_name(name) is not None:
        return FileKind.TEMP
    return FileKind.DAY_FILE if name == DAY_FILE else FileKind.UNKNOWN


def _kind_in_root(name: str) -> FileKind:
    if parse_temp_name(name) is not None:
        return FileKind.TEMP
    return FileKind.ROOT_FILE if name == ROOT_FILE else FileKind.UNKNOWN


def _kind_in_shard(name: str) -> FileKind:
    kind = kind_of_name(name)
    if kind is not None:
        return file_kind(kind)
    if name.endswith(SUFFIX):
        return FileKind.OTHER_BLOCK
    return FileKind.UNKNOWN if parse_temp_name(name) is None else FileKind.TEMP


def file_kind(kind: BlockKind) -> FileKind:
    """What the file of such a key is."""
    return FileKind.STATE if kind is BlockKind.STATE else FileKind.BLOCK


def is_stale(file: FoundFile, *, now: float, is_alive: Callable[[int], bool]) -> bool:
    """Whether a temporary file is one that nobody will finish."""
    pid = parse_temp_name(file.filename)
    assert pid is not None
    return now - file.mtime > STALE_S or not is_alive(pid)


def is_process_alive(pid: int) -> bool:
    """Whether a process of this number runs on this machine."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it runs, and is someone else's
        return True
    return True
