"""The disk of the cache: whether it can be written, how much room and speed it has, where it is.

Knows nothing about blocks.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from omlx.cli.checks.finding import Finding, Look, Mount, broken, ok, warning
from omlx.units import format_size

_NETWORK = (
    "nfs", "nfs4", "cifs", "smb", "smb3", "smbfs", "afpfs", "webdav", "davfs", "ceph", "afs",
    "glusterfs", "fuse.sshfs", "fuse.rclone", "fuse.s3fs", "fuse.gcsfuse",
)  # fmt: skip
_VOLATILE = ("tmpfs", "ramfs")
_SYNCED = ("Library/Mobile Documents", "Library/CloudStorage", "Dropbox", "OneDrive",
           "Google Drive", "GoogleDrive", "iCloud Drive", "Nextcloud", "ownCloud", "pCloudDrive",
           "MEGA", "Box", "Sync", "Yandex.Disk")  # fmt: skip
_MARKS = (".dropbox", ".stfolder", ".owncloudsync.log", ".nextcloudsync.log", ".sync")
_ICLOUD = "Library/Mobile Documents/com~apple~CloudDocs"
_BYTES = 64_000_000
_PIECE = 4_000_000
_SLOW = 200_000_000  # bytes a second; a hard disk or a card reads less
_NOCACHE = 48  # F_NOCACHE of macOS
_MOVE = "omlx config set cache.dir DIR, on an internal SSD"


def nearest(folder: Path) -> Path:
    """The folder itself, or what is there of the way to it, links followed."""
    folder = folder.resolve()
    while not folder.is_dir() and folder != folder.parent:
        folder = folder.parent
    return folder


def mount_of(folder: Path, look: Look) -> Mount | None:
    """The file system that a folder is on."""
    around = (folder, *folder.parents)
    found = [mount for mount in look.mounts if mount.folder in around]
    return max(found, key=lambda mount: len(mount.folder.parts), default=None)


def check_space(look: Look) -> Iterator[Finding]:
    """Whether the cache can be written, and how much it may take."""
    from omlx.server.probe import write_fault

    cache, folder = look.resolved.settings.cache, look.resolved.cache_dir
    if not cache.is_on or cache.max_size == 0:
        yield warning("disk", "the disk tier is off by setting", "omlx config unset cache.max_size")
        return
    there = nearest(folder)
    if reason := write_fault(there):
        fix = "omlx config set cache.dir DIR, or make it writable"
        yield broken("disk", f"nothing can be stored in {there}: {reason}", fix)
        return
    free = shutil.disk_usage(there).free
    text = f"{folder}: {format_size(free)} are free"
    if free <= cache.min_free:
        yield warning(
            "disk", f"{text}, and {format_size(cache.min_free)} stay free (cache.min_free): "
            "nothing new is stored",
            "free some space, or omlx config set cache.min_free, or cache.dir on another disk",
        )  # fmt: skip
    else:
        yield ok("disk", text)


def check_speed(look: Look) -> Iterator[Finding]:
    """How fast the disk writes and reads, with a file that is removed again."""
    cache, folder = look.resolved.settings.cache, nearest(look.resolved.cache_dir)
    if not cache.is_on or shutil.disk_usage(folder).free < cache.min_free + 2 * _BYTES:
        return
    try:
        written, read = _speed(folder)
    except OSError:
        return  # `check_space` has said why
    text = f"{format_size(written)}/s written, {format_size(read)}/s read"
    if min(written, read) < _SLOW:
        yield warning("disk speed", f"{text}: a restart may compute what it could load", _MOVE)
    else:
        yield ok("disk speed", text)


def _speed(folder: Path) -> tuple[float, float]:
    """Bytes a second written to the disk and read from it; OSError."""
    piece = os.urandom(_PIECE)  # what no disk can make smaller
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        begin = time.perf_counter()
        for _ in range(_BYTES // _PIECE):
            file.write(piece)
        os.fsync(file.fileno())
        written = _BYTES / (time.perf_counter() - begin)
        _uncache(file.fileno())
        file.seek(0)
        begin = time.perf_counter()
        while file.read(_PIECE):
            pass
        return written, _BYTES / (time.perf_counter() - begin)


def _uncache(fd: int) -> None:
    """Have the next read come from the disk."""
    if sys.platform == "darwin":
        import fcntl

        with suppress(OSError):
            fcntl.fcntl(fd, _NOCACHE, 1)
    else:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


def check_place(look: Look) -> Iterator[Finding]:
    """A network, a synced folder, memory: places where a cache costs more than it saves."""
    folder = nearest(look.resolved.cache_dir)
    mount = mount_of(folder, look)
    kind = "" if mount is None else mount.kind.lower()
    if kind in _NETWORK:
        yield warning(
            "disk place", f"the cache is on a network volume ({kind}): slow, and gone with it",
            _MOVE,
        )  # fmt: skip
    elif kind in _VOLATILE:
        yield warning("disk place", f"the cache is in memory ({kind}): gone after a restart", _MOVE)
    elif mount is not None and _is_external(mount, look):
        yield warning(
            "disk place", f"the cache is on an external volume ({mount.folder}): gone when that is "
            "unplugged",
            _MOVE,
        )  # fmt: skip
    if (service := synced_by(folder, look)) is not None:
        yield warning(
            "disk place", f"the cache is in a folder that is copied to other places ({service}): "
            "prompts leave this machine, and every block is sent",
            _MOVE,
        )  # fmt: skip


def _is_external(mount: Mount, look: Look) -> bool:
    if look.system == "darwin":
        return mount.folder.parts[:2] == ("/", "Volumes")
    name = Path(mount.device).name
    block = look.root / "sys" / "class" / "block" / name
    try:
        real = block.resolve(strict=True)
        whole = real.parent if (real / "partition").exists() else real
        is_removable = (whole / "removable").read_text().strip() == "1"
    except OSError:
        return False
    return is_removable or any(part.startswith("usb") for part in real.parts)


def synced_by(folder: Path, look: Look) -> str | None:
    """What keeps a folder the same as others elsewhere; None where nothing is known to."""
    user = Path(look.env.get("HOME") or "/").resolve()
    for one in (folder, *folder.parents):
        if one == user:
            break
        names = [one.name] if one.parent == user else []
        if user in one.parents:
            names.append(str(one.relative_to(user)))
        for name in names:
            for known in _SYNCED:
                if name == known or (name.startswith(f"{known} ") and "/" not in name):
                    return name
        for mark in _MARKS:
            if (one / mark).exists():
                return f"{one}, which has {mark}"
    if look.system == "darwin" and user in folder.parents:
        top = folder.relative_to(user).parts[0]
        if top in ("Desktop", "Documents") and (user / _ICLOUD / top).exists():
            return f"iCloud Drive: {top}"
    return None


def check_backups(look: Look) -> Iterator[Finding]:
    """Time Machine: a cache is no good there, and changes every hour."""
    folder = look.resolved.cache_dir
    if look.system != "darwin" or not folder.is_dir():
        return
    done = look.run(["tmutil", "isexcluded", str(folder)], 15.0)
    if done.code != 0:
        return
    if done.out.startswith("[Excluded]"):
        yield ok("backups", "Time Machine leaves the cache out")
        return

    def exclude() -> str:
        done = look.run(["tmutil", "addexclusion", str(folder)], 60.0)
        return "" if done.code == 0 else done.said

    fix = f"omlx doctor --fix, or tmutil addexclusion '{folder}'"
    yield warning("backups", f"Time Machine copies the cache in {folder}", fix, exclude)


CHECKS = (check_space, check_speed, check_place, check_backups)
