"""The last error in a log.

Knows nothing about how logs are written and rotated.
"""

import re
from pathlib import Path

from omlx.cli.view.text import harmless

_TAIL_BYTES = 256_000
_LOGGED = re.compile(r"(\S+) (?:ERROR|CRITICAL) \S+ (.*)")
_SAID = "error: "


def last_error(log: Path | None) -> str | None:
    """The newest error that is logged, with its time; None where there is none near the end."""
    for line in reversed(_tail(log)):
        if match := _LOGGED.match(line):
            return harmless(f"{match[1]} {match[2]}")
    return None


def last_words(output: Path) -> str | None:
    """What a server said before it ended without being ready: its errors, or its last line."""
    lines = [line for line in _tail(output) if line.strip()]
    said = [line.removeprefix(_SAID) for line in lines if line.startswith(_SAID)]
    if said:
        return harmless(said[-1])
    return harmless(lines[-1]) if lines else None


def _tail(path: Path | None) -> list[str]:
    if path is None:
        return []
    try:
        with path.open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(0, end - _TAIL_BYTES))
            return file.read(_TAIL_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
