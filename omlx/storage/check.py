"""Every file of a cache directory read and verified, and at command the bad ones removed.

Knows nothing about a running server; it is safe beside one, since any file may vanish.
"""

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from omlx.storage.blockfile import verify_block
from omlx.storage.fs import BUSY, FileSystem
from omlx.storage.layout import BlockKind, BlockName, parse_block_name
from omlx.storage.order import EVICTABLE
from omlx.storage.record import BadBlock, BadReason
from omlx.storage.scan import FileKind, FoundFile, is_process_alive, is_stale, scan

_NUM_THREADS = 8
_BATCH = 1024


@dataclass(frozen=True, slots=True)
class BadFile:
    """A file that can't be used, by its place below the directory."""

    place: str
    reason: BadReason
    is_removed: bool


@dataclass(frozen=True, slots=True)
class CheckProgress:
    """How far a check is."""

    num_files: int
    num_files_total: int
    num_bytes: int
    num_bytes_total: int


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check found; `num_other` are of another version of the format, which stay unread.

    `num_busy` could not be opened or read for want of descriptors or memory.
    """

    num_blocks: int
    num_states: int
    num_bytes: int
    bad: tuple[BadFile, ...]
    num_other: int
    num_busy: int
    num_stale_temps: int
    num_temps_removed: int

    @property
    def by_reason(self) -> Mapping[BadReason, int]:
        """How many files are bad, by reason."""
        return Counter(file.reason for file in self.bad)

    @property
    def num_left(self) -> int:
        """Bad files that are still there."""
        return sum(not file.is_removed for file in self.bad)


@dataclass(slots=True)
class _Tally:
    kinds: Counter[BlockKind] = field(default_factory=Counter[BlockKind])
    num_bytes: int = 0
    bad: list[BadFile] = field(default_factory=list[BadFile])
    num_other: int = 0
    num_busy: int = 0


@dataclass(frozen=True, slots=True)
class _Result:
    name: BlockName | None
    num_bytes: int = 0
    bad: BadFile | None = None
    is_other: bool = False
    is_busy: bool = False


class Checker:
    """Checks one directory on several threads; with `repair` it removes what is bad."""

    def __init__(
        self,
        directory: Path,
        fs: FileSystem,
        *,
        repair: bool = False,
        num_threads: int = _NUM_THREADS,
        is_alive: Callable[[int], bool] = is_process_alive,
    ) -> None:
        self._directory = directory
        self._fs = fs
        self._repair = repair
        self._num_threads = num_threads
        self._is_alive = is_alive

    def run(self, *, now: float, progress: Callable[[CheckProgress], None]) -> Checked:
        """Check everything there is now; OSError where the directory can't be listed.

        A directory that is not there holds nothing. `progress` is called on this thread.
        """
        files = self._scan()
        blocks = [file for file in files if file.kind in EVICTABLE]
        total = sum(file.size for file in blocks)
        tally = _Tally()
        done = 0
        for idx, (file, result) in enumerate(self._results(blocks), 1):
            _count(tally, result)
            done += file.size
            progress(CheckProgress(idx, len(blocks), done, total))
        stale = [file for file in files if self._is_stale(file, now)]
        num_removed = sum(self._removed(file) for file in stale) if self._repair else 0
        return Checked(
            num_blocks=tally.kinds[BlockKind.BLOCK],
            num_states=tally.kinds[BlockKind.STATE],
            num_bytes=tally.num_bytes,
            bad=tuple(tally.bad),
            num_other=tally.num_other,
            num_busy=tally.num_busy,
            num_stale_temps=len(stale),
            num_temps_removed=num_removed,
        )

    def _scan(self) -> list[FoundFile]:
        try:
            return scan(self._fs, self._directory)
        except FileNotFoundError:
            return []

    def _results(
        self, files: Sequence[FoundFile]
    ) -> Generator[tuple[FoundFile, _Result], None, None]:
        with _threads(self._num_threads) as executor:
            for start in range(0, len(files), _BATCH):
                batch = files[start : start + _BATCH]
                yield from zip(batch, executor.map(self._check, batch), strict=True)

    def _check(self, file: FoundFile) -> _Result:
        name = parse_block_name(file.filename)
        if name is None:
            return _Result(None, is_other=True)
        try:
            if file.place.split("/")[2] != name.parent16[:2]:
                raise BadBlock(BadReason.FOREIGN, "in another block's folder")
            num_bytes = verify_block(self._fs, self._directory / file.place, name, file.root16)
            return _Result(name, num_bytes)
        except (FileNotFoundError, NotADirectoryError):
            return _Result(None)  # evicted meanwhile
        except BadBlock as error:
            if error.reason is BadReason.FORMAT:
                return _Result(None, is_other=True)
            return self._bad(file, error.reason)
        except OSError as error:
            if error.errno in BUSY:
                return _Result(None, is_busy=True)
            return self._bad(file, BadReason.UNREADABLE)

    def _bad(self, file: FoundFile, reason: BadReason) -> _Result:
        is_removed = self._repair and self._removed(file)
        return _Result(None, bad=BadFile(file.place, reason, is_removed))

    def _removed(self, file: FoundFile) -> bool:
        """Remove a file; whether it is gone."""
        try:
            self._fs.unlink(self._directory / file.place)
        except FileNotFoundError:
            return True
        except OSError:
            return False
        return True

    def _is_stale(self, file: FoundFile, now: float) -> bool:
        return file.kind is FileKind.TEMP and is_stale(file, now=now, is_alive=self._is_alive)


@contextmanager
def _threads(number: int) -> Generator[ThreadPoolExecutor, None, None]:
    """Threads that end with what they are at, where the caller is interrupted."""
    executor = ThreadPoolExecutor(number, "omlx-verify")
    try:
        yield executor
    finally:
        executor.shutdown(wait=True, cancel_futures=True)


def _count(tally: _Tally, result: _Result) -> None:
    tally.num_bytes += result.num_bytes
    tally.num_other += result.is_other
    tally.num_busy += result.is_busy
    if result.name is not None:
        tally.kinds[result.name.kind] += 1
    if result.bad is not None:
        tally.bad.append(result.bad)
