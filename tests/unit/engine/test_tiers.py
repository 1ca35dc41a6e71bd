"""An engine whose tiers may be empty, what it says of them, and how much may wait to be written."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from omlx.engine.memory import QueueLimit
from tests.fakes import tiny
from tests.fakes.blocks import Clock
from tests.fakes.harness import Harness
from tests.unit.engine.test_exact_kinds import B, prompt

LENGTH = 3 * B + 7


@pytest.fixture
def engine_of(tmp_path: Path) -> Iterator[Callable[..., Harness]]:
    """Starts engines that end with the test, however it goes."""
    running: list[Harness] = []

    def make(name: str, **config: float | None) -> Harness:
        model = tiny.build_config(tiny.CONFIGS[name])
        running.append(Harness(model, tmp_path, block_size=B, prefill_chunk=2 * B, **config))
        return running[-1]

    yield make
    for harness in running:
        harness.stop()


@pytest.mark.parametrize(
    ("memory_bytes", "disk_bytes", "after_restart"),
    [(None, None, LENGTH - 1), (0, None, LENGTH - 1), (None, 0, 0), (0, 0, 0)],
)
def test_either_tier_may_be_empty(
    engine_of: Callable[..., Harness],
    memory_bytes: int | None,
    disk_bytes: int | None,
    after_restart: int,
) -> None:
    """The second request comes at once after the first: it is an exact hit with any tier."""
    h = engine_of("llama", memory_bytes=memory_bytes, disk_bytes=disk_bytes, write_delay_s=100.0)
    is_none = (memory_bytes, disk_bytes) == (0, 0)
    cold = h.ask(prompt(LENGTH), 3)
    warm = h.ask(prompt(LENGTH), 3)
    assert cold.failed is None and warm.tokens == cold.tokens
    assert (cold.cached, warm.cached) == (0, 0 if is_none else LENGTH - 1)
    assert (warm.admitted.trail is None) == is_none
    stats = warm.stats
    assert (stats.cached_memory > 0, stats.cached_disk > 0) == (
        memory_bytes is None,
        memory_bytes == 0 and not is_none,
    )
    h.restart()
    assert h.ask(prompt(LENGTH), 3).cached == after_restart
    note = h.engine.snapshot().cache_note
    assert (
        note
        == {
            (None, None): "",
            (0, None): "",
            (None, 0): "disk tier off by setting",
            (0, 0): "off: memory tier 0, disk tier off by setting",
        }[memory_bytes, disk_bytes]
    )


def test_the_figures_of_a_model_with_snapshots(engine_of: Callable[..., Harness]) -> None:
    config = {"daily_bytes": 10**9, "memory_bytes": 10**8, "disk_bytes": 10**9}
    h = engine_of("falcon_h1", write_delay_s=0.0, **config)
    h.ask(prompt(LENGTH), 2)
    h.restart()
    h.ask(prompt(LENGTH), 2)
    found = h.engine.snapshot()
    snapshots, writes = found.snapshots, found.writes
    assert snapshots.memory.blocks == 2, "the one that was found, and the reply's"
    assert 0 < snapshots.memory.bytes < found.memory.bytes
    assert snapshots.memory.budget_bytes == 10**8 // 4
    assert snapshots.disk.blocks == 2
    assert 0 < snapshots.disk.bytes < found.disk.bytes
    assert snapshots.disk.budget_bytes == 10**9 // 4
    assert found.disk.blocks > snapshots.disk.blocks
    assert writes.max_day_bytes == 10**9
    assert writes.today_bytes > snapshots.disk.bytes
    assert writes.max_queued_bytes > 0
    assert found.counters.dropped["queue_full"] == 0


def test_the_room_for_writes_follows_the_free_memory_and_is_looked_at_seldom() -> None:
    clock, free, looks = Clock(), [16 << 30], []

    def available() -> int:
        looks.append(clock.now)
        return free[0]

    limit = QueueLimit(clock, available)
    assert limit() == 2 << 30
    free[0] = 4 << 30
    clock.now += 4.9
    assert limit() == 2 << 30
    clock.now += 0.1
    assert limit() == 512 << 20
    assert len(looks) == 2
    free[0] = 1 << 40
    clock.now += 5
    assert limit() == 4 << 30, "so much can be written before an end"


def test_the_real_free_memory_leaves_room() -> None:
    assert QueueLimit(Clock())() > 1 << 20


def test_lossy_blocks_are_found_again_by_who_asks_for_them(
    engine_of: Callable[..., Harness],
) -> None:
    """Each form has blocks of its own: an engine never finds those of the other."""
    lossy = engine_of("llama", pack_8bit=True, write_delay_s=0.0)
    cold = lossy.ask(prompt(LENGTH), 3)
    assert "blocks in 8 bits, lossy" in lossy.engine.snapshot().cache_note
    warm = lossy.ask(prompt(LENGTH), 3)
    lossy.restart()
    again = lossy.ask(prompt(LENGTH), 3)
    assert (warm.cached, again.cached) == (LENGTH - 1, LENGTH - 1)
    lossy.stop()
    for found in (warm, again):
        off = np.abs(found.logits[0] - cold.logits[0]).max()
        assert 0 < off < 0.1 * np.abs(cold.logits[0]).max()
    exact = engine_of("llama", write_delay_s=0.0)
    assert exact.ask(prompt(LENGTH), 3).cached == 0
    assert exact.ask(prompt(LENGTH), 3).cached == LENGTH - 1
