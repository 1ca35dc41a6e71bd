"""Puts an engine loop together: model, codec, tiers, scheduler, batch.

Knows nothing about processes or threads but that all of this belongs to the engine thread.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from omlx.cache.codec import Codec, UncacheableError
from omlx.cache.hashing import compute_root_hash
from omlx.cache.io import DiskTier
from omlx.cache.lookup import Tiers
from omlx.cache.memory import MemoryTier
from omlx.cache.prefix import PrefixCache
from omlx.cache.snapshots import Snapshots
from omlx.cache.writeback import WriteBack
from omlx.engine.batch import Batch
from omlx.engine.config import EngineConfig
from omlx.engine.gauge import Gauge, no_cache
from omlx.engine.inbox import Inbox
from omlx.engine.keeper import Keeper
from omlx.engine.loop import EngineLoop
from omlx.engine.memory import auto_prefill_chunk, auto_tier_bytes
from omlx.engine.request import CacheCounters, EngineSnapshot, Event, TierUsage
from omlx.engine.row import Row
from omlx.engine.sampling import Sampling, make_sampling
from omlx.engine.scheduler import Limits, Scheduler
from omlx.errors import StoreError
from omlx.models.fingerprint import fingerprint
from omlx.models.load import LoadedModel, load, mlx_lm_version, probe_caches
from omlx.storage.budget import Budget, auto_max_bytes
from omlx.storage.fs import RealFileSystem
from omlx.storage.layout import BlockHash, RootHash
from omlx.storage.store import BlockStore
from omlx.units import format_size

_log = logging.getLogger("omlx.engine")
_MAX_QUEUED_BYTES = 1 << 30  # writes in flight; what is over stays in memory until there is room

_SNAPSHOT_SHARE = 4  # snapshots take one part in so many of the memory tier's bytes


@dataclass(frozen=True, slots=True)
class Assembly:
    """A loop that can run, and what has to be closed after it."""

    inbox: Inbox
    loop: EngineLoop
    batch: Batch
    prefix: PrefixCache | None
    disk: DiskTier | None

    def close(self, timeout_s: float) -> None:
        """Write what is dirty within the limit and end the I/O threads (engine thread)."""
        deadline = time.monotonic() + timeout_s
        if self.prefix is not None and not self.prefix.flush(timeout_s):
            _log.warning("not all blocks were written within %.0f s", timeout_s)
        self.inbox.run_jobs(0.0)
        if self.disk is not None:
            self.disk.close(max(0.0, deadline - time.monotonic()))
        self.batch.close()


@dataclass(frozen=True, slots=True)
class _Cache:
    prefix: PrefixCache
    tiers: Tiers

    def figures(self) -> tuple[TierUsage, TierUsage, CacheCounters]:
        """Usage of both tiers and what happened in them."""
        memory, disk, snapshots = self.tiers.memory, self.tiers.disk, self.tiers.snapshots
        in_memory = TierUsage(
            len(memory) + len(snapshots),
            memory.used_bytes + snapshots.used_bytes,
            memory.budget_bytes + snapshots.budget_bytes,
        )
        counters = CacheCounters(
            blocks_stored=self.prefix.blocks_stored,
            evicted_memory=memory.evicted + snapshots.evicted,
        )
        if disk is None:
            return in_memory, TierUsage(), counters
        done = disk.counters()
        usage = disk.usage()
        return (
            in_memory,
            TierUsage(usage.blocks, usage.used_bytes, usage.max_bytes),
            replace(
                counters,
                blocks_written=done.blocks_written,
                bytes_written=done.bytes_written,
                blocks_read=done.blocks_read,
                bytes_read=done.bytes_read,
                evicted_disk=done.evicted,
                dropped_writes=done.dropped_writes + self.tiers.writeback.num_lost,
                bad={reason.value: count for reason, count in done.bad.items()},
            ),
        )


def assemble(
    config: EngineConfig,
    *,
    emit: Callable[[Sequence[Event]], None],
    publish: Callable[[EngineSnapshot], None],
) -> Assembly:
    """Load the model and build the loop around it; ModelError, StoreError."""
    started = time.monotonic()
    loaded = load(Path(config.model_path))
    seconds = time.monotonic() - started
    _log.info("loaded %s of weights in %.1f s", format_size(loaded.weight_bytes), seconds)
    identity = fingerprint(Path(config.model_path), mlx_lm_version=mlx_lm_version())
    return assemble_loaded(config, loaded, identity, emit=emit, publish=publish)


def assemble_loaded(
    config: EngineConfig,
    loaded: LoadedModel,
    identity: str,
    *,
    emit: Callable[[Sequence[Event]], None],
    publish: Callable[[EngineSnapshot], None],
    make_batch: Callable[..., Batch] = Batch,
) -> Assembly:
    """The loop around a model that is in memory already; `identity` is its fingerprint."""
    inbox = Inbox()
    chunk = config.prefill_chunk or auto_prefill_chunk()
    cache, note = _build_cache(config, loaded, identity, inbox)
    batch = make_batch(
        loaded.model,
        max_rows=config.max_active,
        prefill_chunk=chunk,
        is_ahead=cache is None or cache.tiers.codec.is_sliceable,
    )
    gauge = Gauge(
        publish,
        cache_figures=cache.figures if cache else no_cache,
        cache_note=note,
        clock=time.monotonic,
    )

    def sampling(row: Row) -> Sampling:
        return make_sampling(
            row.request.sampling,
            seed=row.seed,
            position=len(row.emitted),
            num_vocab=loaded.num_vocab,
        )

    loop = EngineLoop(
        batch,
        Keeper(batch, cache.prefix if cache else None),
        Scheduler(Limits(config.max_active, config.max_waiting, chunk)),
        inbox=inbox,
        make_sampling=sampling,
        emit=emit,
        gauge=gauge,
        prefill_chunk=chunk,
        num_vocab=loaded.num_vocab,
        clock=time.monotonic,
    )
    return Assembly(
        inbox,
        loop,
        batch,
        cache.prefix if cache else None,
        cache.tiers.disk if cache else None,
    )


def _build_cache(
    config: EngineConfig, loaded: LoadedModel, identity: str, inbox: Inbox
) -> tuple[_Cache | None, str]:
    """The cache and a note for people; None with the reason where the model has none."""
    if not config.cache_enabled:
        return None, "off by setting"
    try:
        codec = Codec.from_caches(probe_caches(loaded.model))
    except UncacheableError as error:
        _log.warning("serving %s without a prefix cache: %s", config.model_id, error)
        return None, f"off: {error}"
    layout = {**codec.layout(), "block_size": str(config.block_size)}
    root = compute_root_hash(identity, layout)
    disk, note = _open_disk(config, root, identity, layout, inbox)
    budget = auto_tier_bytes() if config.memory_bytes is None else config.memory_bytes
    for_snapshots = budget // _SNAPSHOT_SHARE if codec.has_states else 0
    if codec.has_states and not note:
        note = f"snapshots every {config.snapshot_interval} tokens"
    tiers = Tiers(
        root=root,
        codec=codec,
        memory=MemoryTier(budget - for_snapshots, BlockHash(root)),
        writeback=WriteBack(codec, disk, delay_s=config.write_delay_s, drain_s=config.drain_s),
        disk=disk,
        block_size=config.block_size,
        snapshots=Snapshots(for_snapshots),
    )
    prefix = PrefixCache(tiers, clock=time.monotonic, snapshot_interval=config.snapshot_interval)
    return _Cache(prefix, tiers), note


def _open_disk(
    config: EngineConfig, root: RootHash, identity: str, layout: Mapping[str, str], inbox: Inbox
) -> tuple[DiskTier | None, str]:
    """The disk tier, or None with the reason: a directory that can't be used is no outage."""
    if config.disk_bytes == 0 or not config.cache_dir:
        return None, "disk tier off by setting"
    directory, fs = Path(config.cache_dir), RealFileSystem()
    try:
        max_bytes = config.disk_bytes
        if max_bytes is None:
            max_bytes = auto_max_bytes(fs, directory)
        budget = Budget(
            max_bytes, config.min_free_bytes, fs, directory, max_state_bytes=config.state_bytes
        )
        store = BlockStore(
            directory,
            root,
            fs=fs,
            budget=budget,
            clock=time.time,
            max_daily_bytes=config.daily_bytes,
            describe={"model": config.model_id, "fingerprint": identity, "layout": dict(layout)},
        )
        store.index()
    except (StoreError, OSError) as error:
        _log.warning("the disk tier is off: %s", error)
        return None, f"disk tier off: {error}"
    return DiskTier(store, budget, inbox.post, max_queued_bytes=_MAX_QUEUED_BYTES), ""
