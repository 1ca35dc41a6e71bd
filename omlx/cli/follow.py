"""Reads a log and the files that it was rotated into, and goes on with what is written.

Knows nothing about who writes it; several processes may, and some late into an old file.
"""

import os
import re
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

_MAX_OLD = 100
_MAX_TRIES = 5
_MAX_READ = 1_000_000
_LATE_FILES = 2  # an engine notices a new file when it logs next, and writes to the old till then
_STAMPED = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} [A-Z]+ [\w.]+ ")

Wanted = Callable[[], Callable[[str], bool]]  # gives a new test, since lines depend on those before


def wanted(model: str | None) -> Wanted:
    """A test of lines in order: all, or those of a model and lines without a time after them."""
    if model is None:
        return lambda: lambda line: True
    name = re.escape(model)
    tag = re.compile(rf"{_STAMPED.pattern}(?:\[{name}\]|.*(?<![\w./-]){name}(?![\w./-]))")

    def begin() -> Callable[[str], bool]:
        is_shown = False

        def test(line: str) -> bool:
            nonlocal is_shown
            if _STAMPED.match(line):
                is_shown = tag.match(line) is not None
            return is_shown

        return test

    return begin


class _Reader:
    """One open file of a log."""

    def __init__(self, file: BinaryIO, test: Callable[[str], bool]) -> None:
        self._file = file
        self._test = test
        self._rest = b""
        status = os.fstat(file.fileno())
        self.identity = status.st_dev, status.st_ino

    def lines(self) -> Iterator[str]:
        """The whole lines that are there and were not read yet (mutates)."""
        if os.fstat(self._file.fileno()).st_size < self._file.tell():
            self._file.seek(0)  # somebody emptied it
            self._rest = b""
        while data := self._file.read(_MAX_READ):
            *whole, self._rest = (self._rest + data).split(b"\n")
            for raw in whole:
                line = raw.decode("utf-8", "replace").rstrip("\r")
                if self._test(line):
                    yield line

    def end(self) -> Sequence[str]:
        """The last line, if it has no end (mutates)."""
        line, self._rest = self._rest.decode("utf-8", "replace"), b""
        return [line] if line and self._test(line) else []

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class Follower:
    """Reads one log; for one thread. OSError if it can't be read."""

    def __init__(self, path: Path, wanted: Wanted) -> None:
        self._path = path
        self._wanted = wanted
        self._readers: list[_Reader] = []  # the newest is last

    def last(self, num_lines: int, *, is_all: bool = False) -> Sequence[str]:
        """The last lines of the log and of what it was rotated into; `more` goes on from there.

        With `is_all` nothing comes after it, and so a line that has no end yet belongs to it.
        """
        found = deque[str](maxlen=num_lines)
        for _ in range(_MAX_TRIES):
            self.close()
            found.clear()
            before = self._identities()
            for path in reversed([self._path, *self._old()]):
                reader = self._open(path)
                if reader is None:
                    continue
                found.extend(reader.lines())
                if is_all:
                    found.extend(reader.end())
                self._add(reader)
            if self._identities() == before:  # else files were moved meanwhile
                break
        return list(found)

    def more(self) -> Sequence[str]:
        """What was written since (mutates), in whole lines."""
        found = [line for reader in self._readers for line in reader.lines()]
        for path, identity in self._newer():
            reader = self._open(path)
            if reader is None:
                break
            if reader.identity != identity:  # moved again: the next call finds it
                reader.close()
                break
            # What was written to the file before while this one was begun.
            found += [line for old in self._readers for line in old.lines()]
            found += reader.lines()
            self._add(reader)
        return found

    def close(self) -> None:
        """Close its files."""
        while self._readers:
            self._readers.pop().close()

    def _add(self, reader: _Reader) -> None:
        self._readers.append(reader)
        while len(self._readers) > 1 + _LATE_FILES:
            self._readers.pop(0).close()

    def _old(self) -> list[Path]:
        """The files that the log was rotated into, newest first."""
        found: list[Path] = []
        for number in range(1, _MAX_OLD + 1):
            path = self._path.with_name(f"{self._path.name}.{number}")
            if not path.is_file():
                break
            found.append(path)
        return found

    def _identities(self) -> list[tuple[int, int] | None]:
        return [_identity(path) for path in (self._path, *self._old())]

    def _newer(self) -> list[tuple[Path, tuple[int, int]]]:
        """The files that are newer than the one that was read last, oldest first."""
        known = {reader.identity for reader in self._readers}
        found: list[tuple[Path, tuple[int, int]]] = []
        for path in [self._path, *self._old()]:
            identity = _identity(path)
            if identity in known:
                break
            if identity is not None:
                found.append((path, identity))
        return found[::-1]

    def _open(self, path: Path) -> _Reader | None:
        try:
            return _Reader(path.open("rb"), self._wanted())
        except FileNotFoundError:
            return None


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
