"""Freed buffers that the allocator keeps for reuse, and when they go back to the system.

Knows nothing about rows or caches. Engine thread only.

On Metal a buffer that is given back while a command buffer may still name it has ended in kernel
panics: there they are given back after a synchronize only, and some steps after a row has left.
"""

import logging
from collections.abc import Callable, Collection
from typing import Protocol

_log = logging.getLogger("omlx.engine.buffers")
_STEPS_APART = 8  # on Metal, between a row that leaves and buffers that are given back
_SETTLED_S = 1.0  # the same for an engine without rows
_IDLE_S = 10.0  # without rows, until all of them are given back
_LEAST_SHARE = 8  # near the limit one part in so many of it, or of what is kept, stays for rows


class Allocator(Protocol):
    """What is needed of mlx.core; sizes are bytes."""

    def get_active_memory(self) -> int: ...
    def get_cache_memory(self) -> int: ...
    def clear_cache(self) -> None: ...
    def synchronize(self) -> None: ...


class FreedBuffers:
    """Gives freed buffers back once they are many, when an engine is idle, and when told to."""

    def __init__(
        self,
        allocator: Allocator,
        kept_bytes: int,
        *,
        is_metal: bool,
        clock: Callable[[], float],
        trim: Callable[[], bool] = lambda: False,
    ) -> None:
        """At most `kept_bytes` are kept. `trim` has the C library give back what it holds, and says
        whether that was worth it."""
        self._allocator = allocator
        self._kept = kept_bytes
        self._is_metal = is_metal
        self._clock = clock
        self._trim = trim
        self._limit: int | None = None
        self._row_ids: set[str] = set()
        self._num_steps = _STEPS_APART  # since a row has left
        self._idle_since: float | None = None
        self._is_trimmed = False

    @property
    def active_bytes(self) -> int:
        """What arrays take."""
        return self._allocator.get_active_memory()

    @property
    def freed_bytes(self) -> int:
        """What is kept for reuse."""
        return self._allocator.get_cache_memory()

    def set_limit(self, limit_bytes: int) -> None:
        """Keep only what arrays leave of so many bytes (mutates)."""
        self._limit = limit_bytes

    def turned(self, row_ids: Collection[str]) -> None:
        """A turn of the loop is over: these rows are in the batch now (mutates)."""
        if self._row_ids - set(row_ids):
            self._num_steps = 0
        self._row_ids = set(row_ids)
        if self._row_ids:
            self._stepped()
        else:
            self._idle()

    def _stepped(self) -> None:
        self._num_steps += 1
        self._idle_since, self._is_trimmed = None, False
        is_settled = not self._is_metal or self._num_steps > _STEPS_APART
        if is_settled and self.freed_bytes > self._most(_LEAST_SHARE):
            self._clear()

    def _idle(self) -> None:
        """Give back what is too much soon, and later the rest."""
        now = self._clock()
        if self._idle_since is None:
            self._idle_since = now
        idle_s, freed_bytes = now - self._idle_since, self.freed_bytes
        if idle_s >= _IDLE_S:
            if freed_bytes or not self._is_trimmed:
                # Other threads may free more than that a little later.
                self._is_trimmed = not self.release()
                self._idle_since = now  # what is freed from now on is used as long
        elif freed_bytes > self._most(None) and (not self._is_metal or idle_s >= _SETTLED_S):
            self._clear()

    def _most(self, least_share: int | None) -> int:
        if self._limit is None:
            return self._kept
        least_bytes = min(self._kept, self._limit) // least_share if least_share else 0
        return min(self._kept, max(least_bytes, self._limit - self.active_bytes))

    def release(self) -> bool:
        """Give all of them back at once: memory is short, or somebody asks for it (mutates).

        Whether the C library had much to give back as well.
        """
        self._clear()
        return self._trim()

    def _clear(self) -> None:
        if self._is_metal:
            try:
                self._allocator.synchronize()
            except RuntimeError as error:  # of a command that failed: its buffers stay
                _log.warning("freed buffers are kept: %s", error)
                return
        self._allocator.clear_cache()
