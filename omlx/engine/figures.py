"""The figures of a model's cache, read off its parts.

Knows nothing about who reads them. Engine thread only.
"""

from dataclasses import replace

from omlx.cache.lookup import Tiers
from omlx.cache.prefix import PrefixCache
from omlx.engine.request import (
    CacheCounters,
    CacheFigures,
    SnapshotUsage,
    TierUsage,
    WriteUsage,
)


def figures_of(prefix: PrefixCache, tiers: Tiers, *, max_day_bytes: int | None) -> CacheFigures:
    """Usage of both tiers, snapshots included, and what happened in them."""
    memory, disk, snapshots = tiers.memory, tiers.disk, tiers.snapshots
    states = TierUsage(len(snapshots), snapshots.used_bytes, snapshots.budget_bytes)
    found = CacheFigures(
        memory=TierUsage(
            len(memory) + states.blocks,
            memory.used_bytes + states.bytes,
            memory.budget_bytes + states.budget_bytes,
        ),
        snapshots=SnapshotUsage(states),
        counters=CacheCounters(
            blocks_stored=prefix.blocks_stored, evicted_memory=memory.evicted + snapshots.evicted
        ),
    )
    if disk is None:
        return found
    done, usage = disk.counters(), disk.usage()
    return replace(
        found,
        disk=TierUsage(usage.blocks + usage.states, usage.used_bytes, usage.max_bytes),
        snapshots=SnapshotUsage(
            states, TierUsage(usage.states, usage.state_bytes, usage.max_state_bytes)
        ),
        writes=WriteUsage(
            dirty_bytes=tiers.writeback.dirty_bytes,
            queued_bytes=disk.queued.num_bytes,
            max_queued_bytes=disk.queued.max_bytes,
            today_bytes=done.bytes_written_today,
            max_day_bytes=max_day_bytes,
        ),
        counters=replace(
            found.counters,
            blocks_written=done.blocks_written,
            bytes_written=done.bytes_written,
            blocks_read=done.blocks_read,
            bytes_read=done.bytes_read,
            evicted_disk=done.evicted,
            bytes_evicted=done.evicted_bytes,
            dropped_writes=done.dropped_writes + tiers.writeback.num_lost,
            dropped={
                **{reason.value: count for reason, count in done.dropped.items()},
                "queue_full": tiers.writeback.num_lost,
            },
            bad={reason.value: count for reason, count in done.bad.items()},
        ),
    )
