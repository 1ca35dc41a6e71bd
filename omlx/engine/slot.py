"""A model of a pool with its engine: how it comes and goes, and what it takes.

Knows nothing about other models.
"""

import logging
from dataclasses import dataclass
from enum import Enum

from omlx.engine.ceiling import Claim, claim_of
from omlx.engine.lifecycle import Phase
from omlx.engine.room import Resident
from omlx.engine.supervisor import SupervisedEngine
from omlx.models.locate import ModelEntry

_log = logging.getLogger("omlx.engine.pool")
_SHORT_ROW = 512  # tokens that `admission` counts for the shortest one
_LOADED = (Phase.RUNNING, Phase.PAUSED, Phase.UNLOADING)


@dataclass(frozen=True, slots=True)
class Stay:
    """How a model comes and goes; `ttl_s` is how long it may be idle, None for ever."""

    is_preloaded: bool = False
    is_pinned: bool = False
    ttl_s: float | None = None


class Wish(Enum):
    """Who wants a model beside its requests; for a preload nobody has to leave."""

    PRELOAD = "preload"
    COMMAND = "command"


class Slot:
    """A model and its engine; `version` is of the files that were loaded last."""

    def __init__(self, entry: ModelEntry, stay: Stay, engine: SupervisedEngine) -> None:
        self.entry = entry
        self.stay = stay
        self.engine = engine
        self.version = ""
        self.wish: Wish | None = None
        self.refusal = ""  # why it was not loaded when it was wanted last
        self.is_held = False  # gets no new requests until another model is loaded

    @property
    def is_loaded(self) -> bool:
        """Whether it takes up room."""
        return self.engine.phase in _LOADED

    def resident(self, now: float) -> Resident:
        """The model as the policy of `room` sees it."""
        health = self.engine.health()
        num_busy = health.num_submitted if self.is_held else health.num_live
        return Resident(
            self.entry.id,
            self.entry.weight_bytes,
            now - (health.idle_s or 0.0),
            is_pinned=self.stay.is_pinned,
            is_busy=num_busy > 0,
            is_leaving=self.engine.phase is Phase.UNLOADING,
        )

    def claim(self) -> Claim:
        """What it takes of the memory, or would if it were loaded."""
        snapshot = self.engine.figures() if self.is_loaded else None
        is_leaving = self.engine.phase is Phase.UNLOADING
        least_bytes = self.entry.needed_bytes(_SHORT_ROW)
        return claim_of(self.entry.id, least_bytes, snapshot, is_leaving=is_leaving)

    def expire(self, unload_s: float) -> None:
        """Unload it if it has been idle for its time to live."""
        idle_s, ttl_s = self.engine.health().idle_s or 0.0, self.stay.ttl_s
        is_expired = ttl_s is not None and idle_s > ttl_s
        if is_expired and not self.stay.is_pinned and self.engine.unload(unload_s):
            _log.info("unloading %s: idle for %.0f s", self.entry.id, idle_s)

    def note_wanted(self) -> bool:
        """Whether somebody wants the model loaded (mutates its wish)."""
        phase = self.engine.phase
        if phase in (Phase.RUNNING, Phase.PAUSED):
            self.wish = None
        has_requests = phase is Phase.UNLOADED and self.engine.health().num_live > 0
        return self.wish is not None or has_requests
