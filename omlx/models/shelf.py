"""The files of one model as they come in from a hub: which are whole, which begun, which missing.

Knows nothing about where the model goes when all are there.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from omlx.errors import ModelError
from omlx.models.config import mapping, read_json, read_json_if_there
from omlx.models.demo import OnProgress, Progress, Stage
from omlx.models.hub import Hub, Listing, RemoteFile, Repo
from omlx.models.locate import PULL_RECORD

_PIECE_BYTES = 2**20
# Verifying less than this is over before anyone could read of it.
_SHOWN_BYTES = 256 * 10**6


class Shelf:
    """The files of one model as they come in; finished ones have their names and were verified."""

    def __init__(
        self, folder: Path, files: tuple[RemoteFile, ...], hub: Hub, repo: Repo, listing: Listing
    ) -> None:
        self._folder = folder
        self._files = files
        self._hub = hub
        self._repo = repo
        self._commit = listing.commit
        self._done = digests_of(folder)
        self._drop_others()

    def reuse(self, old: Path) -> None:
        """Take over what an earlier version of the model has in common (a link, no copy)."""
        known = digests_of(old)
        for file in self._files:
            place = self._folder / file.name
            is_same = known.get(file.name) == file.digest and size_of(old / file.name) == file.size
            if is_same and not place.exists():
                with suppress(OSError):
                    place.parent.mkdir(exist_ok=True)
                    os.link(old / file.name, place)
                    self._done[file.name] = file.digest

    def missing_bytes(self) -> int:
        """How much is still to come."""
        return sum(file.size - self._size(file) for file in self._files)

    def fill(
        self, progress: OnProgress, check_config: Callable[[Mapping[str, object]], None]
    ) -> int:
        """Fetch and verify what is missing; how many bytes that was."""
        total = sum(file.size for file in self._files)
        missing = self.missing_bytes()
        done = 0
        for file in self._files:
            report = _from(progress, Stage.DOWNLOAD, done, total)
            report(self._size(file))
            if not self._is_done(file):
                is_shown = file.size >= _SHOWN_BYTES
                verified = _from(progress, Stage.VERIFY, 0, file.size) if is_shown else _unseen
                self._get(file, report, verified)
            done += file.size
            if file.name == "config.json":
                check_config(read_json(self._folder / file.name))
        return missing

    def tidy(self) -> None:
        """Remove what is left of parts (mutates the folder)."""
        for rest in self._folder.glob(".*.part"):
            rest.unlink()

    def _get(
        self, file: RemoteFile, report: Callable[[int], None], verified: Callable[[int], None]
    ) -> None:
        place, part = self._folder / file.name, self._part(file)
        place.parent.mkdir(exist_ok=True)
        if not place.exists():
            self._hub.fetch(self._repo, self._commit, file, part, report)
            part.rename(place)
        if not _has_digest(place, file, verified):
            place.unlink()
            raise ModelError(
                f"{file.name} is not what {self._hub.endpoint} says it is: its digest differs",
                hint="try again: this file is fetched anew, the others are kept",
            )
        self._done[file.name] = file.digest
        write_json(self._folder / PULL_RECORD, {"files": self._done})

    def _is_done(self, file: RemoteFile) -> bool:
        place = self._folder / file.name
        return self._done.get(file.name) == file.digest and size_of(place) == file.size

    def _size(self, file: RemoteFile) -> int:
        place = self._folder / file.name
        return size_of(place) if place.exists() else min(size_of(self._part(file)), file.size)

    def _part(self, file: RemoteFile) -> Path:
        return self._folder / f".{file.name.replace('/', '-')}.{file.digest[:16]}.part"

    def _drop_others(self) -> None:
        """Remove what is of another commit, or not as large as it has to be."""
        sizes = {file.name: file for file in self._files}
        kept = {PULL_RECORD, *(self._part(file).name for file in self._files)}
        for place in [path for path in self._folder.rglob("*") if path.is_file()]:
            name = place.relative_to(self._folder).as_posix()
            file = sizes.get(name)
            known = self._done.get(name)
            is_ours = file and size_of(place) == file.size and known in (None, file.digest)
            if not is_ours and name not in kept:
                place.unlink()
                self._done.pop(name, None)


def _from(progress: OnProgress, stage: Stage, start: int, total: int) -> Callable[[int], None]:
    """What reports the bytes of one file as a part of all."""
    return lambda done: progress(Progress(stage, min(start + done, total), total))


def _unseen(done: int) -> None:
    pass


def _has_digest(place: Path, file: RemoteFile, verified: Callable[[int], None]) -> bool:
    """Whether a file is what the hub says: its SHA-256, or git's name of its content."""
    if size_of(place) != file.size or not file.digest:
        return size_of(place) == file.size
    digest = hashlib.sha256() if file.sha256 else hashlib.sha1(usedforsecurity=False)
    if not file.sha256:
        digest.update(f"blob {file.size}\0".encode())
    done = 0
    with place.open("rb") as source:
        while piece := source.read(_PIECE_BYTES):
            digest.update(piece)
            done += len(piece)
            verified(done)
    return digest.hexdigest() == file.digest


def write_json(path: Path, value: Mapping[str, object]) -> None:
    """Write a small file at once, or leave it as it was."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_text(json.dumps(value, indent=1) + "\n")
    fresh.replace(path)


def record_of(folder: Path) -> Mapping[str, object]:
    """What an earlier pull noted in a folder; empty where none did, or it can't be read."""
    try:
        return read_json_if_there(folder / PULL_RECORD)
    except ModelError:
        return {}


def digests_of(folder: Path) -> dict[str, str]:
    """The digests of the files that an earlier pull has verified in a folder."""
    files = mapping(record_of(folder).get("files"))
    return {name: digest for name, digest in files.items() if isinstance(digest, str)}


def size_of(path: Path) -> int:
    """The size of a file, 0 where there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
