"""Which snapshots of a long row stay in memory, and which leave it for their files."""

from typing import Any

import mlx.core as mx
from mlx_lm.models.cache import ArraysCache

from omlx.cache.block import Chain
from omlx.cache.codec import Codec
from omlx.cache.hashing import token_array
from omlx.cache.lookup import Tiers
from omlx.cache.memory import MemoryTier
from omlx.cache.snapshots import NEWEST, Snapshots
from omlx.cache.statestore import StateStore
from omlx.cache.writeback import WriteBack
from omlx.storage.layout import BlockHash
from tests.fakes.blocks import MANY, ROOT
from tests.fakes.cache import Rig

STEP = 8192  # apart enough that all of them stay
HEAD = 3 * STEP


class Row:
    """A row of a model that keeps recurrent state only."""

    def __init__(self, rig: Rig) -> None:
        self.codec = Codec.from_caches(self.caches(0))
        self.writeback = WriteBack(self.codec, rig.disk, delay_s=9.0, drain_s=9.0)
        self.snapshots: Snapshots[Any] = Snapshots(MANY)
        tiers = Tiers(
            ROOT,
            self.codec,
            MemoryTier(MANY, BlockHash(ROOT)),
            self.writeback,
            rig.disk,
            STEP,
            self.snapshots,
        )
        self.states = StateStore(tiers, clock=lambda: 0.0, interval=STEP)
        self.chain = Chain(token_array(range(10 * STEP)))

    def caches(self, value: int) -> list[Any]:
        return [ArraysCache.from_state(([mx.full((1, 2), float(value))], None, None))]

    def go_to(self, position: int) -> None:
        self.chain.names.append(BlockHash(position.to_bytes(32, "big")))
        self.states.store(self.chain, self.caches(position), position)

    def in_memory(self) -> list[int]:
        entries = self.snapshots._entries.values()
        return sorted(entry.payload.count for entry in entries)


def test_what_lies_between_leaves_memory_once_it_is_on_disk() -> None:
    rig = Rig()
    row = Row(rig)
    row.chain.head = HEAD
    places = [STEP * i for i in range(1, 8)]
    for position in places:
        row.go_to(position)
        rig.settle()
    assert [position for position, _ in row.chain.snapshots] == places, "none is outdated"
    # That before the newest has been queued just now; it leaves with the next one.
    assert row.in_memory() == [places[0], HEAD, *places[-NEWEST - 1 :]]
    assert row.writeback.dirty_bytes < len(places) * 8


def test_without_a_disk_all_of_them_stay() -> None:
    row = Row(Rig(has_disk=False))
    places = [STEP * i for i in range(1, 8)]
    for position in places:
        row.go_to(position)
    assert row.in_memory() == places


def test_what_could_not_be_written_stays() -> None:
    rig = Rig()
    row = Row(rig)
    places = [STEP * i for i in range(1, 8)]
    for position in places:
        row.go_to(position)
    assert row.in_memory() == places, "no write has been done yet"


def test_memory_that_is_needed_takes_snapshots_used_longest_ago() -> None:
    row = Row(Rig(has_disk=False))
    places = [STEP * i for i in range(1, 5)]
    for position in places:
        row.go_to(position)
    size = row.snapshots.used_bytes // 4
    assert [entry.payload.count for entry in row.snapshots.shrink(size + 1)] == places[:2]
    assert row.in_memory() == places[2:] and row.snapshots.used_bytes == 2 * size
    assert len(row.snapshots.shrink(9 * size)) == 2 and row.snapshots.used_bytes == 0
    assert row.snapshots.evicted == 4
