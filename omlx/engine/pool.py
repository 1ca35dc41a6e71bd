"""The engines of a server: one process a model.

Knows nothing about HTTP; never imports mlx.
"""

import threading
from collections.abc import Callable, Sequence

from omlx.engine.config import EngineConfig
from omlx.engine.process import EngineProcess
from omlx.engine.request import Engine, EngineState, Listener
from omlx.models.locate import ModelEntry
from omlx.settings.build import Resolved


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
        log_level=s.log.level,
    )


class Pool:
    """Owns the engines; `make_engine` builds the one of a model without starting it."""

    def __init__(
        self, entries: Sequence[ModelEntry], make_engine: Callable[[ModelEntry], Engine]
    ) -> None:
        self._entries = tuple(entries)
        self._engines = {entry.id: make_engine(entry) for entry in entries}

    def models(self) -> Sequence[ModelEntry]:
        """The models that are served, in a stable order."""
        return self._entries

    def get(self, model_id: str) -> Engine:
        """The engine of a model by its exact id; KeyError."""
        return self._engines[model_id]

    def start_all(self, listener_factory: Callable[[str], Listener]) -> None:
        """Begin to load every model. Returns soon."""
        for model_id, engine in self._engines.items():
            engine.start(listener_factory(model_id))

    def stop_all(self, timeout_s: float) -> None:
        """Flush and end every engine, all at the same time."""
        threads = [
            threading.Thread(target=engine.stop, args=(timeout_s,), name=f"stop {model_id}")
            for model_id, engine in self._engines.items()
            if engine.state() is not EngineState.STOPPED
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


def process_pool(entries: Sequence[ModelEntry], resolved: Resolved) -> Pool:
    """A pool whose engines are processes."""
    blas = resolved.settings.engine.blas
    return Pool(entries, lambda entry: EngineProcess(engine_config(entry, resolved), blas=blas))
