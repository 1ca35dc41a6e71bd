"""Puts the prefix cache of an engine together: codec, tiers, store.

Knows nothing about batches or requests. Engine thread only.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omlx.cache.codec import Codec, UncacheableError
from omlx.cache.cost import LoadCost, LoadMode
from omlx.cache.hashing import compute_root_hash
from omlx.cache.io import DiskTier
from omlx.cache.lookup import Tiers
from omlx.cache.memory import MemoryTier
from omlx.cache.mover import Mover
from omlx.cache.prefix import PrefixCache
from omlx.cache.snapshots import Snapshots
from omlx.cache.writeback import WriteBack
from omlx.custom_kernels.backend import Backend, this_backend
from omlx.custom_kernels.lacking import demand
from omlx.custom_kernels.records import read_records
from omlx.engine.config import EngineConfig
from omlx.engine.figures import figures_of
from omlx.engine.flights import Keeping
from omlx.engine.inbox import Inbox
from omlx.engine.memory import QueueLimit, auto_tier_bytes
from omlx.engine.request import CacheFigures
from omlx.errors import StoreError
from omlx.storage.budget import Budget, auto_max_bytes
from omlx.storage.layout import BlockHash, RootHash
from omlx.storage.others import warn_of_others
from omlx.storage.pace import Pace, PacedFileSystem
from omlx.storage.store import BlockStore
from omlx.storage.throttle import Throttle

_log = logging.getLogger("omlx.engine")
_SNAPSHOT_SHARE = 4  # snapshots take one part in so many of the memory tier's bytes


@dataclass(frozen=True, slots=True)
class EngineCache:
    """The cache of one engine."""

    prefix: PrefixCache
    tiers: Tiers
    kernels: tuple[str, ...] = ()  # those that move blocks

    def keeping(self, config: EngineConfig, prefill_chunk: int) -> Keeping:
        """What a running prompt leaves for others."""
        codec = self.tiers.codec
        return Keeping(
            config.block_size,
            prefill_chunk,
            codec.can_cut,
            config.snapshot_interval if codec.has_states else None,
        )

    def held_bytes(self) -> int:
        """What is in memory."""
        return self.tiers.memory.used_bytes + self.tiers.snapshots.used_bytes

    def figures(self, config: EngineConfig) -> CacheFigures:
        """What both tiers hold and what happened in them."""
        return figures_of(self.prefix, self.tiers, max_day_bytes=config.daily_bytes)


def build_cache(
    config: EngineConfig, caches: Sequence[Any], identity: str, inbox: Inbox, why_solo: str | None
) -> tuple[EngineCache | None, str]:
    """The cache and a note for people; None with the reason where the model has none."""
    if why_solo is not None:
        _log.warning("serving %s one request at a time, uncached: %s", config.model_id, why_solo)
        return None, f"off, one request at a time: {why_solo}"
    if not config.cache_enabled:
        return None, "off by setting"
    try:
        codec, kernels = codec_of(config, caches, this_backend() if config.kernel_records else None)
    except UncacheableError as error:
        _log.warning("serving %s without a prefix cache: %s", config.model_id, error)
        return None, f"off: {error}"
    layout = {**codec.layout(), "block_size": str(config.block_size)}
    root = compute_root_hash(identity, layout)
    disk, note = _open_disk(config, root, identity, layout, inbox)
    budget = auto_tier_bytes() if config.memory_bytes is None else config.memory_bytes
    if disk is None and not budget:
        return None, f"off: memory tier 0, {note}"
    for_snapshots = budget // (_SNAPSHOT_SHARE if codec.has_blocks else 1)
    if not codec.has_states:
        for_snapshots = 0
    notes = [note, f"blocks in {layout['form']}" if "form" in layout else ""]
    if codec.has_states and not note:
        notes.append(f"snapshots every {config.snapshot_interval} tokens")
    tiers = Tiers(
        root=root,
        codec=codec,
        memory=MemoryTier(budget - for_snapshots, BlockHash(root)),
        writeback=WriteBack(
            codec,
            disk,
            delay_s=config.write_delay_s,
            drain_s=config.drain_s,
            is_through=not budget,
        ),
        disk=disk,
        block_size=config.block_size,
        snapshots=Snapshots(for_snapshots),
        cost=LoadCost(LoadMode(config.load)),
    )
    prefix = PrefixCache(tiers, clock=time.monotonic, snapshot_interval=config.snapshot_interval)
    return EngineCache(prefix, tiers, kernels), ", ".join(filter(None, notes))


def codec_of(
    config: EngineConfig, caches: Sequence[Any], backend: Backend | None
) -> tuple[Codec, tuple[str, ...]]:
    """The codec for such layer caches, and the kernels of a GPU that move its blocks.

    UncacheableError; a kernel that is lacking is a warning, or a ModelError where it is required.
    """
    if backend is None:
        return Codec.from_caches(caches, Mover(is_packed=config.pack_8bit)), ()
    from omlx.custom_kernels.selection import Selection  # loads the tables of all operations

    selection = Selection(backend, read_records(Path(config.kernel_records)))
    mover = Mover(selection, is_packed=config.pack_8bit)
    codec = Codec.from_caches(caches, mover)
    kernels = mover.kernels(codec.forms, config.block_size)
    demand(selection.lacking, selection.device, is_required=config.require_kernels)
    mover.warm(codec.forms)
    return codec, kernels


def _open_disk(
    config: EngineConfig, root: RootHash, identity: str, layout: Mapping[str, str], inbox: Inbox
) -> tuple[DiskTier | None, str]:
    """The disk tier, or None with the reason: a directory that can't be used is no outage."""
    if config.disk_bytes == 0 or not config.cache_dir:
        return None, "disk tier off by setting"
    directory, pace = Path(config.cache_dir), Pace()
    rate = config.disk_bytes_per_s
    fs = PacedFileSystem(pace, Throttle(rate) if rate else None)
    describe = {"model": config.model_id, "fingerprint": identity, "layout": dict(layout)}
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
            timer=pace.working_clock,
            max_daily_bytes=config.daily_bytes,
            is_read_once=config.memory_bytes != 0,
            describe=describe,
        )
        store.index()
        warn_of_others(directory, fs, root, describe)
    except (StoreError, OSError) as error:
        _log.warning("the disk tier is off: %s", error)
        return None, f"disk tier off: {error}"
    limit = QueueLimit(time.monotonic)
    return DiskTier(store, budget, inbox.post, max_queued_bytes=limit, pace=pace), ""
