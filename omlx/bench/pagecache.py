"""The page cache: have files leave it, so that a read is one of the disk.

Knows nothing about what the files hold.
"""

import errno
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TRIES = 5
_AGAIN_S = 0.05
_LATER = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


@dataclass(frozen=True, slots=True)
class Dropped:
    """What came of it: `is_dropped` only if the files are known to have left.

    `cached_share` is how many of them are still there (0 to 1), None where that can't be told;
    `reason` says why they are not dropped, or why that is not known.
    """

    is_dropped: bool
    num_files: int
    num_bytes: int
    cached_share: float | None
    reason: str = ""


def drop_folder(folder: Path) -> Dropped:
    """Have all files at or below a folder on the disk and out of the page cache."""
    return drop_files(_files(folder))


def drop_files(paths: Iterable[Path]) -> Dropped:
    """Have these files on the disk and out of the page cache; those that vanish don't count."""
    advise = getattr(os, "posix_fadvise", None)
    kept = [path for path in paths if path.is_file()]
    num_bytes = sum(_size(path) for path in kept)
    if advise is None:
        reason = "this system has no call that drops files from the page cache"
        return Dropped(False, len(kept), num_bytes, None, reason)
    share = _drop(kept, advise)
    for _ in range(_TRIES):
        if not share:
            break
        time.sleep(_AGAIN_S)  # a page that somebody reads or writes just now can't leave
        share = _drop(kept, advise)
    if share is None:
        return Dropped(True, len(kept), num_bytes, None, "whether they left can't be asked here")
    if share:
        return Dropped(False, len(kept), num_bytes, share, "the file system keeps them in memory")
    return Dropped(True, len(kept), num_bytes, share)


def _drop(paths: Sequence[Path], advise: Callable[[int, int, int, int], None]) -> float | None:
    """Drop the files and ask how many are still there; the question may read ahead, so again."""
    share: float | None = None
    for step in range(2):
        for path in paths:
            with suppress(FileNotFoundError):
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(fd)  # pages that are not written yet can't leave
                    advise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
                finally:
                    os.close(fd)
        share = share if step else cached_share(paths)
    return share


def cached_share(paths: Iterable[Path]) -> float | None:
    """How many of the files have their middle in the page cache (0 to 1); None: can't be told."""
    nowait = getattr(os, "RWF_NOWAIT", None)
    if nowait is None:
        return None
    hits = total = 0
    for path in paths:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            total += 1
            hits += os.preadv(fd, [bytearray(1)], os.fstat(fd).st_size // 2, nowait)
        except BlockingIOError:
            continue
        except OSError as error:
            if error.errno in _LATER:
                return None
            raise
        finally:
            os.close(fd)
    return hits / total if total else 0.0


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield path


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
