"""The engines of a server, one process a model: which of them are loaded, and when they go.

Knows nothing about HTTP; never imports mlx.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from omlx.engine.ceiling import Ceiling, Claim
from omlx.engine.child import Child
from omlx.engine.config import EngineConfig
from omlx.engine.lifecycle import EngineHealth, Phase
from omlx.engine.process import EngineProcess
from omlx.engine.request import EngineState, Listener
from omlx.engine.room import RoomLimits, Verdict, make_room
from omlx.engine.slot import Slot, Stay, Wish
from omlx.engine.spares import Spares
from omlx.engine.spawn import Spawner
from omlx.engine.supervisor import SupervisedEngine
from omlx.engine.watch import Patience
from omlx.models.locate import ModelEntry
from omlx.models.names import names_of
from omlx.models.version import files_version
from omlx.settings.build import Resolved

_log = logging.getLogger("omlx.engine.pool")
_TICK_S = 0.25
_LONG_IDLE_S = 30.0  # a model that leaves for requests that wait has been idle so long


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
        disk_bytes_per_s=cache.max_disk_rate,
        min_free_bytes=cache.min_free,
        load=cache.load,
        write_delay_s=cache.write_delay,
        drain_s=s.server.drain_timeout,
        kernel_records=str(resolved.kernels_path) if s.kernels.enabled else "",
        require_kernels=s.kernels.require,
        warm_up=resolved.for_model(entry.id, entry.path).engine.warm_up,
        log_level=s.log.level,
        log_file=None if s.log.file is None else str(s.log.file),
        log_max_bytes=s.log.max_size,
        log_keep=s.log.keep,
    )


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """What holds for all engines; `unload_s` is how long one may write what it holds, `max_live`
    how many requests it may have, in its queue or not, and `reserve_bytes` is left of the memory
    for what their processes hold beside arrays."""

    limits: RoomLimits = RoomLimits()
    reserve_bytes: int = 0
    patience: Patience = Patience()
    unload_s: float = 10.0
    max_live: int | None = None


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
        self._spawner, self._spares = spawner, Spares(spawner)
        self._entries = tuple(entries)
        self._stay = stay
        self._listener_factory: Callable[[str], Listener] | None = None
        self._make_child = make_child
        self._policy = policy or PoolPolicy()
        self._clock = clock
        self._woken = threading.Event()
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._ceiling = Ceiling(self._policy.limits.max_bytes, self._policy.reserve_bytes)
        self._joining: Claim | None = None  # a model that waits for others to give up memory
        self._wanted: list[str] = []  # in the order in which they were asked for
        self._slots = {entry.id: self._slot(entry, stay(entry)) for entry in entries}

    def _slot(self, entry: ModelEntry, stay: Stay) -> Slot:
        engine = SupervisedEngine(
            entry.id,
            lambda: self._new_child(entry.id),
            max_live=self._policy.max_live,
            patience=self._policy.patience,
            clock=self._clock,
            wake=self._woken.set,
        )
        return Slot(entry, stay, engine)

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
        if slot.is_loaded:
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
        is_open = slot.wish is not None or slot.is_loaded
        return None if is_open else slot.engine.error() or slot.refusal

    def pin(self, model_id: str, *, is_pinned: bool) -> None:
        """Let a model stay loaded whoever needs room, or no more; KeyError."""
        slot = self._slots[model_id]
        slot.stay = replace(slot.stay, is_pinned=is_pinned)

    def is_pinned(self, model_id: str) -> bool:
        """Whether a model stays; KeyError."""
        return self._slots[model_id].stay.is_pinned

    def add(self, entry: ModelEntry) -> None:
        """Serve one more model, whose id no other has; it is loaded once it is wanted."""
        assert entry.id not in self._slots
        slot = self._slot(entry, self._stay(entry))
        if self._listener_factory is not None:
            slot.engine.start(self._listener_factory(entry.id))
        # In new objects: other threads go through those that there are.
        self._slots = {**self._slots, entry.id: slot}
        self._entries = (*self._entries, entry)

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
        self._listener_factory = listener_factory
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
        _stop(self._slots.values(), self._spawner, timeout_s)

    def _run(self) -> None:
        while not self._is_closing:
            self.turn()
            self._woken.wait(_TICK_S)
            self._woken.clear()

    def turn(self) -> None:
        """Do what is due (the pool's thread, or a test in its place)."""
        for slot in self._slots.values():
            slot.engine.tick()
            slot.expire(self._policy.unload_s)
        _note_wanted(self._slots.values(), self._wanted)
        self._joining = None
        while self._wanted and self._admit(self._slots[self._wanted[0]]):
            self._wanted.pop(0)
        if not self._wanted:
            _release(self._slots.values())
        self._share()
        self._spares.turn([s.engine for s in self._slots.values()], self._clock())

    def _share(self) -> None:
        """Tell the engines what they may use of the memory; rows need it more than idle models."""
        claims = self._claims()
        for model_id, limit_bytes in self._ceiling.turn(claims, self._joining).items():
            self._slots[model_id].engine.allow(limit_bytes)
        is_short = self._ceiling.excess(claims, is_waiting=False) > 0
        if is_short or self._ceiling.excess(claims, is_waiting=True):
            slot = _idlest(self._slots.values(), 0.0 if is_short else _LONG_IDLE_S)
            if slot is not None and slot.engine.unload(self._policy.unload_s):
                _log.info("unloading %s: requests of others need its memory", slot.entry.id)

    def _claims(self, *, but: str = "") -> list[Claim]:
        return [s.claim() for s in self._slots.values() if s.is_loaded and s.entry.id != but]

    def _admit(self, slot: Slot) -> bool:
        """Load a model, or have others leave for it; whether it is dealt with."""
        if slot.engine.phase is Phase.UNLOADING:
            return False
        now = self._clock()
        residents = [s.resident(now) for s in self._slots.values() if s.is_loaded]
        entry = slot.entry
        room = make_room(entry.id, entry.weight_bytes, residents, self._policy.limits)
        is_preload = slot.wish is Wish.PRELOAD and not slot.engine.health().num_live
        if room.verdict is Verdict.LOAD and not self._ceiling.admits(self._claims(), slot.claim()):
            self._joining = slot.claim()
            return False
        if room.verdict is Verdict.LOAD:
            _release(self._slots.values())
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

    def _new_child(self, model_id: str) -> Child:
        """The next process of a model (the pool's thread)."""
        slot = self._slots[model_id]
        version = files_version(slot.entry.path)
        if slot.engine.phase is Phase.PAUSED and version != slot.version:
            # The tokens of requests that ran may mean something else to the new files.
            slot.engine.refuse_all("the model's files were replaced while the request ran")
        slot.version = version
        child, claim = self._make_child(slot.entry), slot.claim()
        limit_bytes = self._ceiling.begin(claim, self._claims(but=model_id))
        if limit_bytes is not None:
            child.allow(limit_bytes)
        return child


def _stop(slots: Collection[Slot], spawner: Spawner | None, timeout_s: float) -> None:
    """Flush and end engines, all at the same time."""
    threads = [
        threading.Thread(target=slot.engine.stop, args=(timeout_s,), name=f"stop {slot.entry.id}")
        for slot in slots
        if slot.engine.state() is not EngineState.STOPPED
    ]
    for thread in threads:
        thread.start()
    if spawner is not None:
        spawner.close()
    for thread in threads:
        thread.join()


def _note_wanted(slots: Collection[Slot], wanted: list[str]) -> None:
    """Which models somebody wants, in the order in which they came to (mutates both)."""
    for slot in slots:
        model_id, is_wanted = slot.entry.id, slot.note_wanted()
        if is_wanted and model_id not in wanted:
            wanted.append(model_id)
        elif not is_wanted and model_id in wanted:
            wanted.remove(model_id)


def _release(slots: Collection[Slot]) -> None:
    """Let the models that were to leave take new requests again."""
    for slot in slots:
        if slot.is_held:
            slot.is_held = False
            slot.engine.take_new(does=True)


def _idlest(slots: Collection[Slot], least_s: float) -> Slot | None:
    """The model that has been idle longest, and longer than that, if it may leave; None while
    another one is leaving."""
    if any(slot.engine.phase is Phase.UNLOADING for slot in slots):
        return None
    idle = [(slot.engine.health().idle_s or 0.0, slot) for slot in slots]
    free = [(s, slot) for s, slot in idle if s > least_s and not slot.stay.is_pinned]
    return max(free, key=lambda found: found[0])[1] if free else None


def _reserve_bytes(resolved: Resolved) -> int:
    """What `engine.memory_limit` leaves of the memory."""
    limit = resolved.ceiling_bytes
    return resolved.machine.usable_bytes() - limit if resolved.machine and limit else 0


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
            _reserve_bytes(resolved),
            Patience(engine.stall_timeout, engine.step_timeout, engine.load_timeout),
            settings.server.drain_timeout,
            settings.scheduler.max_concurrent_requests + settings.scheduler.max_queue,
        ),
        spawner=spawner if engine.spare else None,
    )
