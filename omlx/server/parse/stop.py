"""Text up to the first stop string.

Knows nothing about tokens or dialects; its result does not depend on how the text was cut.
"""

from collections.abc import Sequence


class StopStrings:
    """Text up to, and without, the stop string that is complete first; for one answer.

    Holds back text that may be the beginning of one. Of two that are complete at the same
    character, the longer counts.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        assert all(stops), "an empty stop string"
        self._stops = tuple(sorted(dict.fromkeys(stops), key=len, reverse=True))
        self._held = ""
        self.matched: str | None = None

    def add(self, text: str) -> str:
        """Take more text, return what is certain; nothing comes after a match (mutates)."""
        if not self._stops:
            return text
        if self.matched is not None:
            return ""
        self._held += text
        ends = [
            (at + len(stop), stop) for stop in self._stops if (at := self._held.find(stop)) >= 0
        ]
        if ends:
            end, self.matched = min(ends, key=lambda found: found[0])
            certain, self._held = self._held[: end - len(self.matched)], ""
            return certain
        cut = len(self._held) - self._unsure()
        certain, self._held = self._held[:cut], self._held[cut:]
        return certain

    def finish(self) -> str:
        """Return what was held back, once the text has ended (mutates)."""
        rest, self._held = self._held, ""
        return rest

    def _unsure(self) -> int:
        """How many characters at the end may be the beginning of a stop string."""
        longest = len(self._stops[0]) - 1 if self._stops else 0
        for size in range(min(len(self._held), longest), 0, -1):
            tail = self._held[-size:]
            if any(len(stop) > size and stop.startswith(tail) for stop in self._stops):
                return size
        return 0
