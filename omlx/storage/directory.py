"""The cache directory itself: made where there is none, refused where others may write to it.

Knows nothing about what is in it.
"""

from contextlib import suppress
from pathlib import Path

from omlx.errors import StoreError
from omlx.storage.fs import FileSystem, make_directories
from omlx.storage.layout import BLOCKS

_WORLD_WRITABLE = 0o002


def open_directory(fs: FileSystem, directory: Path) -> None:
    """Make the directory, mode 0700, or accept one that only the user can write to; StoreError."""
    hint = "choose another with cache.dir, or turn the cache off with cache.enabled = false"
    try:
        existing = directory
        while existing != existing.parent and not _exists(fs, existing):
            existing = existing.parent
        make_directories(fs, existing, directory)
        status = fs.stat(directory, follow=True)
    except OSError as error:
        message = f"the cache directory {directory} can't be used: {error.strerror or error}"
        raise StoreError(message, hint=hint) from error
    if not status.is_dir:
        raise StoreError(f"the cache directory {directory} is not a directory", hint=hint)
    if status.mode & _WORLD_WRITABLE:
        raise StoreError(
            f"anyone can write to the cache directory {directory}",
            hint=f"chmod 700 {directory}",
        )
    if _is_no_directory(fs, directory / BLOCKS):
        # A link is not followed when bytes are counted: it would escape the budget.
        raise StoreError(
            f"{directory / BLOCKS} is not a directory",
            hint="to keep blocks on another volume, set cache.dir or make its folder a link",
        )


def _is_no_directory(fs: FileSystem, path: Path) -> bool:
    with suppress(OSError):
        return not fs.stat(path).is_dir
    return False


def _exists(fs: FileSystem, path: Path) -> bool:
    try:
        fs.stat(path, follow=True)
    except FileNotFoundError:
        return False
    return True
