"""Gets a model from a hub: checks for room, goes on where it broke off, lets it appear whole.

Knows nothing about terminals: progress goes to a callback.
"""

import errno
import fcntl
import os
import re
import shutil
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from omlx.errors import ModelError, UsageError
from omlx.models.choose import is_weights, needed_files
from omlx.models.demo import OnProgress
from omlx.models.destination import Destination
from omlx.models.hub import Hub, Repo
from omlx.models.shelf import Shelf
from omlx.units import format_size

_PULL = ".pull"
_REPO = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9])?(?:/[A-Za-z0-9._-]{1,96})")
_REVISION = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]{0,199}")
# For the file system's own needs while a model is written.
_SPARE_BYTES = 64 * 10**6

FreeBytes = Callable[[Path], int]


@dataclass(frozen=True, slots=True)
class Pulled:
    """A model that is there; `fetched_bytes` is what this pull brought, 0 if it was there."""

    path: Path
    commit: str
    fetched_bytes: int


def parse_repo(text: str) -> Repo:
    """A repository as users write it, OWNER/NAME or OWNER/NAME@REVISION; UsageError."""
    name, at, revision = text.partition("@")
    parts = name.split("/")
    if (
        not _REPO.fullmatch(name)
        or any(part.startswith((".", "-")) or part.endswith((".", "-")) for part in parts)
        or any(odd in name for odd in ("--", ".."))
    ):
        raise UsageError(
            f"{text[:200]!r} names no model: expected OWNER/NAME, as the hub writes it, or demo",
            hint="for example: omlx model pull mlx-community/Qwen3-0.6B-4bit",
        )
    if at and (not _REVISION.fullmatch(revision) or ".." in revision):
        raise UsageError(f"{revision[:200]!r} is no branch, tag or commit of {name}")
    return Repo(name, revision if at else "main")


def free_bytes(folder: Path) -> int:
    """Free space where a folder is."""
    return shutil.disk_usage(folder).free


def pull(
    repo: Repo,
    destination: Destination,
    *,
    hub: Hub,
    progress: OnProgress,
    check_config: Callable[[Mapping[str, object]], None] = lambda _: None,
    check_weights: Callable[[int], None] = lambda _: None,
    free: FreeBytes = free_bytes,
) -> Pulled:
    """The model's folder at its destination, with the files of the revision's newest commit.

    `check_weights` gets the bytes of all weights first, `check_config` config.json before any
    weights are fetched; both may raise. After a failure what was fetched stays in .pull there, for
    the next try. ModelError.
    """
    listing = hub.listing(repo)
    files = needed_files(listing.files)
    root, commit = destination.root, listing.commit
    place = destination.place(repo, commit)
    try:
        destination.check(repo)
        if destination.is_there(repo, commit, files):
            return Pulled(place, commit, 0)
        staging = root / _PULL / repo.name.replace("/", "--")
        staging.mkdir(parents=True, exist_ok=True)
        with _locked(staging, repo):
            shelf = Shelf(staging, files, hub, repo, listing)
            if (earlier := destination.earlier(repo)) is not None:
                shelf.reuse(earlier)
            check_weights(sum(file.size for file in files if is_weights(file)))
            _require_room(root, shelf.missing_bytes(), repo, free)
            fetched = shelf.fill(progress, check_config)
            shelf.tidy()
            destination.appear(staging, repo, commit, files)
        with suppress(OSError):
            (root / _PULL).rmdir()  # only where nothing else is kept in it
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ModelError(
                f"the disk of {root} is full: {repo} was not fetched to its end",
                hint="make room and try again: what was fetched is kept, and it goes on from there",
            ) from None
        where = error.filename or root
        raise ModelError(f"{where} can't be used: {error.strerror or error}") from None
    return Pulled(place, commit, fetched)


def _require_room(root: Path, missing: int, repo: Repo, free: FreeBytes) -> None:
    needed, there = missing + _SPARE_BYTES, free(root)
    if there < needed:
        raise ModelError(
            f"there is no room for {repo} in {root}: it needs {format_size(needed)} "
            f"({needed:,} bytes), and {format_size(there)} ({there:,} bytes) are free",
            hint="make room, or name a folder on another disk with --model-dir",
        )


@contextmanager
def _locked(staging: Path, repo: Repo) -> Generator[None]:
    """Hold the staging folder against other pulls; the system lets go of it when we end."""
    lock = staging.with_name(f"{staging.name}.lock")
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Another pull may have removed it, at its end, after it was opened here.
            if not lock.exists() or lock.stat().st_ino != os.fstat(file.fileno()).st_ino:
                raise BlockingIOError
        except BlockingIOError:
            raise ModelError(
                f"another omlx gets {repo.name} at this moment",
                hint="wait for it, or stop it: what it has fetched is kept",
            ) from None
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
