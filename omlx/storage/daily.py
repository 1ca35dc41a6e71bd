"""How many bytes were written to a cache directory today, and whether more may be.

Knows nothing about blocks. A day begins at midnight UTC. What all processes wrote is in one small
file; when two write it at once, one count is lost, and that is no error.
"""

import itertools
import json
import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from omlx.storage.blockfile import write_file
from omlx.storage.budget import Budget
from omlx.storage.fs import FileSystem, read_file
from omlx.storage.layout import DAY_FILE, temp_name
from omlx.storage.scan import FileKind, FoundFile

MAX_FILE_BYTES = 64

_logger = logging.getLogger("omlx.storage")


class DailyWrites:
    """Counts the bytes written today against a limit, None for no limit; any thread may call it.

    Without a limit there is no file, and only what this process wrote is counted.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: Path,
        budget: Budget,
        *,
        max_bytes: int | None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.max_bytes = max_bytes
        self._fs = fs
        self._directory = directory
        self._budget = budget
        self._clock = clock
        self._lock = threading.Lock()
        self._temp_numbers = itertools.count(1)
        self._day: str = ""
        self._num_bytes = 0
        self._unsaved = 0

    @property
    def extra_bytes(self) -> int:
        """What `add` may need in the directory for itself."""
        return 0 if self.max_bytes is None else 2 * MAX_FILE_BYTES

    @property
    def today_bytes(self) -> int:
        """Bytes written since midnight, as far as known. Reads no file."""
        with self._lock:
            self._begin_day()
            return self._num_bytes

    def look(self) -> None:
        """Take over what was written today before. Reads the file."""
        with self._lock:
            self._load()

    def is_allowed(self, num_bytes: int) -> bool:
        """Whether so many more bytes keep the limit. Reads the file."""
        if self.max_bytes is None:
            return True
        with self._lock:
            self._load()
            return self._num_bytes + num_bytes <= self.max_bytes

    def add(self, num_bytes: int) -> None:
        """So many bytes were written. Mutates the file."""
        with self._lock:
            self._load()
            self._num_bytes += num_bytes
            self._unsaved += num_bytes
            if self.max_bytes is not None:
                self._save()

    def _begin_day(self) -> None:
        """Count from nothing where it is another day, in whichever direction."""
        try:
            today = datetime.fromtimestamp(self._clock(), UTC).date().isoformat()
        except (ValueError, OverflowError, OSError):  # a clock beyond all years
            today = ""
        if today != self._day:
            self._day, self._num_bytes, self._unsaved = today, 0, 0

    def _load(self) -> None:
        """Take over what the file says of today, and add what could not be saved."""
        self._begin_day()
        if self.max_bytes is None:
            return
        try:
            day, num_bytes = _parse(read_file(self._fs, self._path, max_bytes=MAX_FILE_BYTES))
        except (OSError, ValueError):
            return
        if day == self._day:
            self._num_bytes = num_bytes + self._unsaved

    def _save(self) -> None:
        text = json.dumps({"day": self._day, "bytes": self._num_bytes}).encode() + b"\n"
        temp = self._directory / temp_name(self._budget.pid, next(self._temp_numbers))
        try:
            write_file(self._fs, temp, self._path, [memoryview(text)])
        except OSError as error:
            _logger.debug("can't note what was written today: %s", error)
            return
        self._unsaved = 0
        self._budget.add(FoundFile(DAY_FILE, len(text), self._clock(), FileKind.DAY_FILE))

    @property
    def _path(self) -> Path:
        return self._directory / DAY_FILE


def _parse(data: bytes) -> tuple[str, int]:
    """The day and the number in a file; ValueError."""
    tree: object = json.loads(data)
    if not isinstance(tree, dict):
        raise ValueError("not an object")
    fields = cast(dict[str, object], tree)
    day, num_bytes = fields.get("day"), fields.get("bytes")
    if not isinstance(day, str) or not isinstance(num_bytes, int) or not 0 <= num_bytes < 1 << 60:
        raise ValueError("not a day and a number")
    return day, num_bytes
