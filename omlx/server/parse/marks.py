"""Finds marks in text that arrives in pieces.

Knows nothing about what a mark means.
"""

import re
from collections.abc import Iterable


class Marks:
    """A set of marks to look for; holds no text itself, so it is shared freely."""

    def __init__(self, marks: Iterable[str]) -> None:
        self.all = tuple(sorted(dict.fromkeys(marks), key=len, reverse=True))
        assert all(self.all), "an empty mark"
        # A mark that begins another would be found or not, by how the text was cut.
        assert not any(a != b and a.startswith(b) for a in self.all for b in self.all)
        self._pattern = re.compile("|".join(map(re.escape, self.all)) or r"(?!)")
        self._beginnings = frozenset(
            mark[:size] for mark in self.all for size in range(1, len(mark))
        )
        self._longest = max(map(len, self.all), default=0)

    def find(self, text: str, at: int) -> tuple[int, str] | None:
        """The first mark at or behind `at`, and where it begins."""
        found = self._pattern.search(text, at)
        return None if found is None else (found.start(), found.group())

    def unsure_from(self, text: str, at: int) -> int:
        """From where on text without a mark may turn out to be the beginning of one."""
        for start in range(max(at, len(text) - self._longest + 1), len(text)):
            if text[start:] in self._beginnings:
                return start
        return len(text)
