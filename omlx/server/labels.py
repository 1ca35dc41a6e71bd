"""Labels of metrics that come from requests: so many names, and one for all the rest.

Knows nothing about what is counted. Any thread may use it.
"""

import threading

OTHER = "other"
_MAX_CHARS = 80


class Labels:
    """The names that one label may have: the first `limit` that come, and `other`.

    A name that is seen once keeps its series, since a counter may not go backwards.
    """

    def __init__(self, limit: int, *, empty: str = "") -> None:
        """`empty` stands for a name that is not known."""
        assert limit > 0, limit
        self._limit = limit
        self._empty = empty
        self._lock = threading.Lock()
        self._names: set[str] = set()

    def of(self, text: str) -> str:
        """The label of a name, which gets one of its own while there is room (mutates)."""
        name = self._clean(text)
        with self._lock:
            if name not in self._names:
                if len(self._names) >= self._limit:
                    return OTHER
                self._names.add(name)
        return name

    def known(self, text: str) -> str:
        """The label of a name, `other` unless it has one of its own."""
        name = self._clean(text)
        with self._lock:
            return name if name in self._names else OTHER

    @property
    def limit(self) -> int:
        """How many names there may be besides `other`."""
        return self._limit

    def _clean(self, text: str) -> str:
        """The name as one line of text that can be written as UTF-8."""
        text = text[:_MAX_CHARS].encode("utf-8", "replace").decode()
        shown = "".join(char if char.isprintable() else "?" for char in text)
        return shown or self._empty
