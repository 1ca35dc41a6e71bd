"""The engines of a server, one process a model: which of them are loaded, and when they go.

Knows nothing about HTTP; never imports mlx.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from omlx.engine.child import Child
from omlx.engine.config import EngineConfig
from omlx.engine.lifecycle import EngineHealth, Phase
from omlx.engine.process import EngineProcess
from omlx.engine.request import EngineState, Listener
from omlx.engine.room import Resident, RoomLimits, Verdict, make_room
from omlx.engine.spawn import Spawner
from omlx.engine.supervisor import SupervisedEngine
from omlx.engine.watch import Patience
from omlx.errors import OmlxError
from omlx.models.locate import ModelEntry
from omlx.models.names import names_of
from omlx.models.version import files_version
from omlx.settings.build import Resolved

_log = logging.getLogger("omlx.engine.pool")
_TICK_S = 0.25
_LOADED = (Phase.RUNNING, Phase.PAUSED, Phase.UNLOADING)


def engine_config(entry: ModelEntry, resolved: Resolved) -> EngineConfig:
    """What an engine of `entry` is started with under these settings."""
    s = resolved.settings
    cache, scheduler = s.cache, s.scheduler
    return EngineConfig(
        model_id=entry.id,
        model_path=str(entry.path),
        max_active=scheduler.max_concurrent_requests,
        max_waiting=scheduler.max_queue,
        prefill_chunk=None if scheduler.prefill_chunk == "auto" else scheduler.prefill_chunk,
        max_gap_s=scheduler.max_gap,
        ageing_s=scheduler.ageing,
        cache_enabled=cache.enabled,
        cache_dir=str(resolved.cache_dir),
        block_size=cache.block_size,
        snapshot_interval=cache.snapshot_interval,
        memory_limit=s.engine.memory_limit,
        memory_bytes=None if cache.memory_size == "auto" else cache.memory_size,
        disk_bytes=None if cache.max_size == "auto" else cache.max_size,
        state_bytes=None if cache.snapshot_max_size == "auto" else cache.snapshot_max_size,
        daily_bytes=cache.max_write_per_day,
        min_free_bytes=cache.min_free,
        load=cache.load,
        write_delay_s=cache.write_delay,
        drain_s=s.server.drain_timeout,
        warm_up=resolved.for_model(entry.id, entry.path).engine.warm_up,
        log_level=s.log.level,
    )


@dataclass(frozen=True, slots=True)
class Stay:
    """How a model comes and goes; `ttl_s` is how long it may be idle, None for ever."""

    is_preloaded: bool = False
    is_pinned: bool = False
    ttl_s: float | None = None


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """What holds for all engines; `unload_s` is how long one may write what it holds."""

    limits: RoomLimits = RoomLimits()
    patience: Patience = Patience()
    unload_s: float = 10.0


class Wish(Enum):
    """Who wants a model beside its requests; for a preload nobody has to leave."""

    PRELOAD = "preload"
    COMMAND = "command"


class _Slot:
    """A model and its engine; `version` is of the files that were loaded last."""

    def __init__(self, entry: ModelEntry, stay: Stay, engine: SupervisedEngine) -> None:
        self.entry = entry
        self.stay = stay
        self.engine = engine
        self.version = ""
        self.wish: Wish | None = None
        self.refusal = ""  # why it was not loaded when it was wanted last
        self.is_held = False  # gets no new requests until another model is loaded

    def resident(self, now: float) -> Resident:
        """The model as the policy sees it."""
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


class Pool:
    """Owns the engines. Models load at their first request, those least recently used make room.

    `make_child` builds the process of a model without starting it. A thread of the pool's own
    decides; every method may be called from any other.
    """

    def __init__(
        self,
        entries: Sequence[ModelEntry],
        make_child: Callable[[ModelEntry], Child],
        *,
        stay: Callable[[ModelEntry], Stay] = lambda entry: Stay(is_preloaded=True),
        policy: PoolPolicy | None = None,
        spawner: Spawner | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spawner = spawner
        self._entries = tuple(entries)
        self._make_child = make_child
        self._policy = policy or PoolPolicy()
        self._clock = clock
        self._woken = threading.Event()
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._wanted: list[str] = []  # in the order in which they were asked for
        self._slots = {entry.id: self._slot(entry, stay(entry)) for entry in entries}

    def _slot(self, entry: ModelEntry, stay: Stay) -> _Slot:
        engine = SupervisedEngine(
            entry.id,
            lambda: self._new_child(entry.id),
            patience=self._policy.patience,
            clock=self._clock,
            wake=self._woken.set,
        )
        return _Slot(entry, stay, engine)

    def models(self) -> Sequence[ModelEntry]:
        """The models that are served, in a stable order."""
        return self._entries

    def get(self, model_id: str) -> SupervisedEngine:
        """The engine of a model by its exact id; KeyError."""
        return self._slots[model_id].engine

    def health(self, model_id: str) -> EngineHealth:
        """How the engine of a model gets on; KeyError."""
        return self._slots[model_id].engine.health()

    def version(self, model_id: str) -> str:
        """Of the files that a request's tokens must fit: those loaded, else those there now."""
        slot = self._slots[model_id]
        if slot.engine.phase in _LOADED:
            return slot.version
        return files_version(slot.entry.path)

    def load(self, model_id: str) -> None:
        """Begin to load a model if it is not loaded; KeyError."""
        slot = self._slots[model_id]
        slot.refusal, slot.wish = "", Wish.COMMAND
        self._woken.set()

    def refusal(self, model_id: str) -> str | None:
        """Why a model is not loaded, empty if nobody wanted it; None if it is, or will be soon."""
        slot = self._slots[model_id]
        is_open = slot.wish is not None or slot.engine.phase in _LOADED
        return None if is_open else slot.engine.error() or slot.refusal

    def unload(self, model_id: str) -> bool:
        """Begin to end the engine of a model; False if it has requests. KeyError."""
        slot = self._slots[model_id]
        slot.wish = None
        if slot.engine.health().num_live:
            return False
        slot.refusal = ""
        return slot.engine.unload(self._policy.unload_s)

    def start_all(self, listener_factory: Callable[[str], Listener]) -> None:
        """Begin to load the models that are preloaded. Returns soon."""
        for model_id, slot in self._slots.items():
            slot.engine.start(listener_factory(model_id))
            slot.wish = Wish.PRELOAD if slot.stay.is_preloaded else None
        self._thread = threading.Thread(target=self._run, name="omlx-pool", daemon=True)
        self._thread.start()

    def stop_all(self, timeout_s: float) -> None:
        """Flush and end every engine, all at the same time."""
        self._is_closing = True
        self._woken.set()
        if self._thread is not None:
            self._thread.join()
        threads = [
            threading.Thread(target=slot.engine.stop, args=(timeout_s,), name=f"stop {model_id}")
            for model_id, slot in self._slots.items()
            if slot.engine.state() is not EngineState.STOPPED
        ]
        for thread in threads:
            thread.start()
        if self._spawner is not None:
            self._spawner.close()
        for thread in threads:
            thread.join()

    def _run(self) -> None:
        while not self._is_closing:
            self.turn()
            self._woken.wait(_TICK_S)
            self._woken.clear()

    def turn(self) -> None:
        """Do what is due (the pool's thread, or a test in its place)."""
        for slot in self._slots.values():
            slot.engine.tick()
            health, ttl_s = slot.engine.health(), slot.stay.ttl_s
            is_expired = ttl_s is not None and (health.idle_s or 0.0) > ttl_s
            if is_expired and not slot.stay.is_pinned and slot.engine.unload(self._policy.unload_s):
                _log.info("unloading %s: idle for %.0f s", slot.entry.id, health.idle_s)
        self._note_wanted()
        while self._wanted and self._admit(self._slots[self._wanted[0]]):
            self._wanted.pop(0)
        if not self._wanted:
            self._release()
        self._keep_spare()

    def _keep_spare(self) -> None:
        """Start a spare process while no model loads, which its imports would slow down."""
        states = {slot.engine.state() for slot in self._slots.values()}
        if self._spawner is None or states & {EngineState.STARTING, EngineState.LOADING}:
            return
        if EngineState.READY not in states:
            return
        try:
            self._spawner.refill()
        except (OmlxError, OSError) as error:
            _log.warning("no spare engine process can be started: %s", error)
            self._spawner = None

    def _note_wanted(self) -> None:
        for model_id, slot in self._slots.items():
            phase, health = slot.engine.phase, slot.engine.health()
            if phase in (Phase.RUNNING, Phase.PAUSED):
                slot.wish = None
            has_requests = phase is Phase.UNLOADED and health.num_live > 0
            is_wanted = slot.wish is not None or has_requests
            if is_wanted and model_id not in self._wanted:
                self._wanted.append(model_id)
            elif not is_wanted and model_id in self._wanted:
                self._wanted.remove(model_id)

    def _admit(self, slot: _Slot) -> bool:
        """Load a model, or have others leave for it; whether it is dealt with."""
        if slot.engine.phase is Phase.UNLOADING:
            return False
        now = self._clock()
        residents = [s.resident(now) for s in self._slots.values() if s.engine.phase in _LOADED]
        entry = slot.entry
        room = make_room(entry.id, entry.weight_bytes, residents, self._policy.limits)
        is_preload = slot.wish is Wish.PRELOAD and not slot.engine.health().num_live
        if room.verdict is Verdict.LOAD:
            self._release()
            slot.engine.load()
            slot.wish, slot.refusal = None, ""
            return True
        if room.verdict is Verdict.REFUSE or is_preload:
            slot.refusal = room.reason or f"{entry.id} is not preloaded: there is no room for it"
            slot.wish = None
            _log.warning("%s", slot.refusal)
            slot.engine.refuse_all(slot.refusal)
            return True
        for model_id in room.leave_now:
            if self._slots[model_id].engine.unload(self._policy.unload_s):
                _log.info("unloading %s to make room for %s", model_id, entry.id)
        for model_id in room.leave_later:
            self._slots[model_id].is_held = True
            self._slots[model_id].engine.take_new(does=False)
        return False

    def _release(self) -> None:
        """Let the models that were to leave take new requests again."""
        for slot in self._slots.values():
            if slot.is_held:
                slot.is_held = False
                slot.engine.take_new(does=True)

    def _new_child(self, model_id: str) -> Child:
        """The next process of a model (the pool's thread)."""
        slot = self._slots[model_id]
        version = files_version(slot.entry.path)
        if slot.engine.phase is Phase.PAUSED and version != slot.version:
            # The tokens of requests that ran may mean something else to the new files.
            slot.engine.refuse_all("the model's files were replaced while the request ran")
        slot.version = version
        return self._make_child(slot.entry)


def process_pool(entries: Sequence[ModelEntry], resolved: Resolved) -> Pool:
    """A pool whose engines are processes."""
    settings = resolved.settings
    engine, spawner = settings.engine, Spawner(settings.engine.blas)
    limits = RoomLimits(settings.models.max_loaded, resolved.ceiling_bytes)
    named = settings.server.default_model
    default = names_of(entries, resolved).find(named) if named is not None else None

    def stay(entry: ModelEntry) -> Stay:
        own = resolved.for_model(entry.id, entry.path).engine
        is_first = len(entries) == 1 or (default is not None and default.entry is entry)
        is_preloaded = own.preload == "always" or (own.preload == "auto" and (is_first or own.pin))
        return Stay(is_preloaded=is_preloaded, is_pinned=own.pin, ttl_s=own.ttl)

    return Pool(
        entries,
        lambda entry: EngineProcess(engine_config(entry, resolved), take=spawner.take),
        stay=stay,
        policy=PoolPolicy(
            limits,
            Patience(engine.stall_timeout, engine.step_timeout, engine.load_timeout),
            settings.server.drain_timeout,
        ),
        spawner=spawner if engine.spare else None,
    )
