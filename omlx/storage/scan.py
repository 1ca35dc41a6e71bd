"""What files a cache directory holds, by names, sizes and times only.

Knows nothing about what is in them, and changes nothing.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from omlx.storage.fs import DirEntry, FileSystem
from omlx.storage.layout import (
    BLOCKS,
    ROOT_FILE,
    SUFFIX,
    BlockName,
    is_root_name,
    is_shard_name,
    parse_block_name,
    parse_temp_name,
)

STALE_S = 3600.0
_UNSEEN = (FileNotFoundError, NotADirectoryError, PermissionError)


class FileKind(Enum):
    """What a file's place and name make of it; OTHER_BLOCK is one of another version."""

    BLOCK = "block"
    OTHER_BLOCK = "other block"
    ROOT_FILE = "root file"
    TEMP = "temporary"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class FoundFile:
    """One file; `place` is its path below the directory, `root16` the root it lies in or ""."""

    place: str
    size: int
    mtime: float
    kind: FileKind
    root16: str = ""
    name: BlockName | None = None
    writer_pid: int | None = None


def scan(fs: FileSystem, directory: Path) -> list[FoundFile]:
    """Every file below `directory`; what vanishes meanwhile or may not be listed is left out.

    OSError where the directory can't be read at all, or a part of it fails in another way.
    """
    found: list[FoundFile] = []
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        parts = waiting.pop()
        try:
            entries = fs.scandir(directory.joinpath(*parts))
        except _UNSEEN:
            if not parts:
                raise
            continue
        for entry in entries:
            if entry.stat.is_dir:
                waiting.append((*parts, entry.name))
            else:
                found.append(_classify(parts, entry))
    return found


def _classify(parts: tuple[str, ...], entry: DirEntry) -> FoundFile:
    place = "/".join((*parts, entry.name))
    size, mtime = entry.stat.size, entry.stat.mtime
    in_root = len(parts) in (2, 3) and parts[0] == BLOCKS and is_root_name(parts[1])
    if not in_root:
        return FoundFile(place, size, mtime, FileKind.UNKNOWN)
    root16 = parts[1]
    pid = parse_temp_name(entry.name)
    if pid is not None:
        return FoundFile(place, size, mtime, FileKind.TEMP, root16, writer_pid=pid)
    if len(parts) == 2:
        kind = FileKind.ROOT_FILE if entry.name == ROOT_FILE else FileKind.UNKNOWN
        return FoundFile(place, size, mtime, kind, root16)
    if not is_shard_name(parts[2]) or not entry.name.endswith(SUFFIX):
        return FoundFile(place, size, mtime, FileKind.UNKNOWN, root16)
    name = parse_block_name(entry.name)
    kind = FileKind.OTHER_BLOCK if name is None else FileKind.BLOCK
    return FoundFile(place, size, mtime, kind, root16, name)


def is_stale(file: FoundFile, *, now: float, is_alive: Callable[[int], bool]) -> bool:
    """Whether a temporary file is one that nobody will finish."""
    assert file.writer_pid is not None
    return now - file.mtime > STALE_S or not is_alive(file.writer_pid)


def is_process_alive(pid: int) -> bool:
    """Whether a process of this number runs on this machine."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it runs, and is someone else's
        return True
    return True
