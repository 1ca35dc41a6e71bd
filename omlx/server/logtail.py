"""The end of the server's log: of its file, or of what this process has logged if it has none.

Knows nothing about who reads it. A log has no prompts and no keys.
"""

import logging
import os
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

MAX_LINES = 1000
_MAX_CHARS = 2000
_TAIL_BYTES = 1_000_000
_FORMAT = "%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s"


@dataclass(frozen=True, slots=True)
class Tail:
    """The last lines, the newest last; `path` is the file that they are of, if any."""

    lines: Sequence[str]
    path: Path | None


class _Kept(logging.Handler):
    """Keeps the last lines; handlers lock by themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=MAX_LINES)
        self.setFormatter(logging.Formatter(_FORMAT, "%Y-%m-%dT%H:%M:%S"))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.extend(line[:_MAX_CHARS] for line in self.format(record).splitlines())


class LogTail:
    """What can be read of the log of this server; any thread may."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._kept = _Kept()

    @contextmanager
    def kept(self) -> Generator[None]:
        """Keep what this process logs while this is entered, where no file has it."""
        logger = logging.getLogger("omlx")
        if self._path is None:
            logger.addHandler(self._kept)
        try:
            yield
        finally:
            logger.removeHandler(self._kept)

    def last(self, num_lines: int) -> Tail:
        """The last lines, at most so many; OSError where the file can't be read."""
        num_lines = min(num_lines, MAX_LINES)
        lines = list(self._kept.lines) if self._path is None else _end_of(self._path)
        return Tail(lines[-num_lines:] if num_lines else [], self._path)


def _end_of(path: Path) -> list[str]:
    """The lines at the end of a file, and of what it was rotated into where it has only begun."""
    try:
        data = _last_bytes(path)
    except FileNotFoundError:
        data = b""
    if data.count(b"\n") < MAX_LINES:
        with suppress(FileNotFoundError):
            data = _last_bytes(path.with_name(f"{path.name}.1")) + data
    text = data.decode("utf-8", "replace")
    return [line.rstrip("\r")[:_MAX_CHARS] for line in text.split("\n") if line]


def _last_bytes(path: Path) -> bytes:
    """The end of a file, from the beginning of a line."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        start = max(0, size - _TAIL_BYTES)
        file.seek(start)
        data = file.read(_TAIL_BYTES)
    return data.partition(b"\n")[2] if start else data
