"""Block files written within the budget; what fails is given up, and nobody is bothered.

Knows nothing about reading them, nor about who wants them stored.
"""

import errno
import itertools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path

from omlx.storage.blockfile import Sections, encode_block, write_file
from omlx.storage.budget import Budget
from omlx.storage.daily import DailyWrites
from omlx.storage.fs import FileSystem, make_directories
from omlx.storage.layout import (
    ROOT_FILE,
    BlockKey,
    RootHash,
    block_path,
    root_dir,
    temp_name,
)
from omlx.storage.record import FORMAT, file_bytes, tokens_spec
from omlx.storage.scan import FileKind, FoundFile, file_kind

_PAUSE_S = 60.0
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)

_logger = logging.getLogger("omlx.storage")


class DropReason(Enum):
    """Why a block was not written."""

    NO_ROOM = "no_room"
    WRITE_BUDGET = "write_budget"
    FAILED = "failed"
    PAUSED = "paused"
    HEADER = "header"


class BlockWriter:
    """Writes the blocks of one root; any thread may call it, and no OSError leaves it."""

    def __init__(
        self,
        directory: Path,
        root: RootHash,
        *,
        fs: FileSystem,
        budget: Budget,
        daily: DailyWrites,
        clock: Callable[[], float],
        describe: Mapping[str, object],
    ) -> None:
        self._directory = directory
        self._root = root
        self._fs = fs
        self._budget = budget
        self._daily = daily
        self._clock = clock
        tree = {"format": FORMAT, "root": root.hex(), **describe}
        self._description = json.dumps(tree, indent=1).encode() + b"\n"
        self._is_described = False
        self._temp_numbers = itertools.count(1)
        self._paused_at: float | None = None
        self._is_reported = False

    def is_paused(self) -> bool:
        """Whether nothing is written for now, since it failed lately."""
        since = self._paused_at
        # A clock that is set back must not make the pause longer.
        return since is not None and 0 <= self._clock() - since < _PAUSE_S

    def is_complete(self, key: BlockKey, sections: Sections) -> bool:
        """Whether a file of exactly the right length is there."""
        try:
            status = self._fs.stat(block_path(self._directory, self._root, key))
            return status.is_file and status.size == self._file_bytes(key, sections)
        except (OSError, ValueError):
            return False

    def write(self, key: BlockKey, tokens: bytes, sections: Sections) -> int | DropReason:
        """The number of bytes written, or why it could not be done. Mutates the directory."""
        if self.is_paused():
            return DropReason.PAUSED
        try:
            if not self._daily.is_allowed(self._file_bytes(key, sections)):
                limit = self._daily.max_bytes
                self._report("the cache has written its %s bytes of today (UTC)", limit)
                return DropReason.WRITE_BUDGET
            buffers = encode_block(self._root, key, tokens, sections)
        except ValueError as error:
            self._report("a block can't be stored: %s", error)
            return DropReason.HEADER
        try:
            num_bytes = self._write_twice(key, buffers)
        except OSError as error:
            self._paused_at = self._clock()
            reason = f"{self._directory}: {error.strerror or error}"
            self._report("stopped writing to the cache for a while: %s", reason)
            return DropReason.FAILED
        if not num_bytes:
            return DropReason.NO_ROOM
        self._paused_at, self._is_reported = None, False
        return num_bytes

    def _file_bytes(self, key: BlockKey, sections: Sections) -> int:
        specs = [tokens_spec(key.count), *(spec for spec, _ in sections)]
        return file_bytes(self._root, key, specs)

    def _report(self, message: str, reason: object) -> None:
        """Say what is wrong once, until a write succeeds."""
        if not self._is_reported:
            _logger.warning(message, reason)
        self._is_reported = True

    def _write_twice(self, key: BlockKey, buffers: Sequence[memoryview]) -> int:
        try:
            return self._write(key, buffers)
        except OSError as error:
            if error.errno in _FULL:
                self._budget.evict(sum(len(buffer) for buffer in buffers))
        return self._write(key, buffers)

    def _write(self, key: BlockKey, buffers: Sequence[memoryview]) -> int:
        """Write one file, 0 where the budget has no room for it; OSError."""
        num_bytes = sum(len(buffer) for buffer in buffers)
        extra = self._daily.extra_bytes
        extra += 0 if self._is_described else len(self._description)
        reservation = self._budget.reserve(num_bytes + extra, key.kind)
        if reservation is None:
            self._report("the cache has no room for a block of %s bytes", num_bytes)
            return 0
        path = block_path(self._directory, self._root, key)
        try:
            self._place(path, buffers)
        except BaseException:
            reservation.abort()
            raise
        self._daily.add(num_bytes)
        reservation.commit(self._file(path, num_bytes, file_kind(key.kind)))
        return num_bytes

    def _place(self, path: Path, buffers: Sequence[memoryview]) -> None:
        if not self._is_described:
            self._write_description()
        try:
            write_file(self._fs, self._new_temp(path.parent), path, buffers)
        except FileNotFoundError:  # the first block here, or someone removed the directory
            self._write_description()
            make_directories(self._fs, self._directory, path.parent)
            write_file(self._fs, self._new_temp(path.parent), path, buffers)

    def _write_description(self) -> None:
        """Say beside the blocks which model and layout they belong to; OSError."""
        folder = root_dir(self._directory, self._root)
        path = folder / ROOT_FILE
        try:
            self._fs.stat(path)
        except FileNotFoundError:
            make_directories(self._fs, self._directory, folder)
            write_file(self._fs, self._new_temp(folder), path, [memoryview(self._description)])
            self._budget.add(self._file(path, len(self._description), FileKind.ROOT_FILE))
        self._is_described = True

    def _new_temp(self, folder: Path) -> Path:
        return folder / temp_name(self._budget.pid, next(self._temp_numbers))

    def _file(self, path: Path, num_bytes: int, kind: FileKind) -> FoundFile:
        place = path.relative_to(self._directory).as_posix()
        return FoundFile(place, num_bytes, self._clock(), kind)
