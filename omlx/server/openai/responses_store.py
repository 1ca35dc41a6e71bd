"""Answers that later requests may go on from, in memory, for those whose they are.

Knows nothing about what is in them: both parts are JSON text.
"""

import threading
from collections import OrderedDict
from dataclasses import dataclass

_MAX_BYTES = 64 * 1024 * 1024
_MAX_COUNT = 1000


@dataclass(frozen=True, slots=True)
class Kept:
    """An answer with everything that it was an answer to, as a JSON list of items."""

    items: bytes
    response: bytes

    @property
    def num_bytes(self) -> int:
        """How much it takes."""
        return len(self.items) + len(self.response)


class ResponseStore:
    """Drops what was not used for the longest time; any thread may use it."""

    def __init__(self, *, max_bytes: int = _MAX_BYTES, max_count: int = _MAX_COUNT) -> None:
        self._max_bytes = max_bytes
        self._max_count = max_count
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], Kept] = OrderedDict()
        self._num_bytes = 0

    def put(self, tenant: str, response_id: str, kept: Kept) -> None:
        """Keep an answer, and drop others where there is no room (mutates)."""
        with self._lock:
            self._drop((tenant, response_id))
            self._kept[tenant, response_id] = kept
            self._num_bytes += kept.num_bytes
            while self._num_bytes > self._max_bytes or len(self._kept) > self._max_count:
                self._drop(next(iter(self._kept)))

    def get(self, tenant: str, response_id: str) -> Kept | None:
        """An answer of this tenant's; None if it is not kept (mutates the order)."""
        with self._lock:
            kept = self._kept.get((tenant, response_id))
            if kept is not None:
                self._kept.move_to_end((tenant, response_id))
            return kept

    def remove(self, tenant: str, response_id: str) -> bool:
        """Forget an answer of this tenant's; False if it is not kept (mutates)."""
        with self._lock:
            return self._drop((tenant, response_id))

    def _drop(self, key: tuple[str, str]) -> bool:
        kept = self._kept.pop(key, None)
        self._num_bytes -= kept.num_bytes if kept else 0
        return kept is not None
