"""Blocks on their way to disk are found and read as if they were there; a tier may be empty."""

import pytest

from omlx.cache.block import Chain
from omlx.cache.hashing import token_array
from omlx.cache.lookup import Hit
from omlx.cache.queued import QueuedBlocks
from omlx.storage.layout import BlockKind
from tests.fakes import state
from tests.fakes.blocks import MANY, ROOT, make_block, make_chain, make_state
from tests.fakes.cache import BLOCK, BLOCK_BYTES, Rig

LONG = [*range(1, 23)]  # five full blocks and a tail of two


def look_up_unwritten(rig: Rig, tokens: list[int]) -> Hit:
    """Look up while the thread that writes has not run since."""
    hits: list[Hit] = []
    rig.prefix.look_up(token_array(tokens), hits.append)
    while rig.readers.run() + rig.answer():
        pass
    (hit,) = hits
    assert not hit.num_tokens or state.holds(rig.prefix.restore(hit), tokens[: hit.num_tokens])
    return hit


@pytest.mark.parametrize("memory_bytes", [0, MANY])
@pytest.mark.parametrize("has_disk", [True, False])
def test_a_repeat_at_once_is_exact_wherever_blocks_may_be(
    memory_bytes: int, *, has_disk: bool
) -> None:
    """Memory only, disk only, both; with neither there is nothing to find."""
    rig = Rig(memory_bytes=memory_bytes, has_disk=has_disk)
    chain = Chain(token_array(LONG))
    rig.keep(chain, LONG)
    hit = look_up_unwritten(rig, [*LONG, 99])
    assert hit.num_tokens == (len(LONG) if has_disk or memory_bytes else 0)
    assert hit.from_memory == (len(LONG) if memory_bytes else 0)
    if has_disk:
        assert rig.block_files() == []
        rig.restart()
        assert rig.look_up([*LONG, 99]).from_disk == len(LONG)


def test_a_hit_may_be_partly_on_disk_and_partly_on_its_way() -> None:
    rig = Rig(memory_bytes=0)
    rig.compute(LONG[:12])
    rig.settle()
    assert rig.on_disk() == [BLOCK] * 3
    rig.keep(Chain(token_array(LONG)), LONG)
    assert rig.on_disk() == [BLOCK] * 3
    assert look_up_unwritten(rig, [*LONG, 99]).num_tokens == len(LONG)
    assert look_up_unwritten(rig, [*LONG[:18], 99, 98]).num_tokens == 18
    rig.settle()
    assert rig.look_up([*LONG, 99]).num_tokens == len(LONG)
    assert (rig.disk.queued.num_bytes, rig.writeback.dirty_bytes) == (0, 0)


def test_what_left_memory_is_found_while_it_is_on_its_way() -> None:
    rig = Rig(memory_bytes=2 * BLOCK_BYTES)
    rig.keep(Chain(token_array(LONG)), LONG)
    assert rig.block_files() == []
    hit = look_up_unwritten(rig, [*LONG, 99])
    assert (hit.from_memory, hit.from_disk) == (2 * BLOCK, len(LONG) - 2 * BLOCK)


def test_without_memory_a_tail_that_grows_is_not_kept_twice() -> None:
    rig = Rig(memory_bytes=0)
    hit = rig.compute(LONG[:10])
    rig.settle()
    assert rig.on_disk() == [2, BLOCK, BLOCK]
    rig.keep(hit.chain, LONG[:11])
    rig.settle()
    assert rig.on_disk() == [3, BLOCK, BLOCK]
    rig.keep(hit.chain, LONG[:13])
    rig.settle()
    assert rig.on_disk() == [1, BLOCK, BLOCK, BLOCK]
    rig.keep(hit.chain, LONG[:13])
    rig.settle()
    assert rig.on_disk() == [1, BLOCK, BLOCK, BLOCK], "what is stored again stays"


def test_without_memory_a_tail_goes_that_another_request_found_and_grew() -> None:
    rig = Rig(memory_bytes=0)
    rig.compute(LONG[:10])
    rig.settle()
    rig.compute(LONG[:13])
    rig.settle()
    assert rig.on_disk() == [1, BLOCK, BLOCK, BLOCK]


def test_a_device_with_memory_of_its_own_writes_at_once_where_there_is_no_memory_tier() -> None:
    rig = Rig(memory_bytes=0)
    rig.codec.is_zero_copy = False
    rig.prefix.tick(is_busy=True)
    rig.compute(LONG)
    assert rig.writeback.num_lost == 0
    assert rig.look_up([*LONG, 99]).num_tokens == len(LONG)


# ---- the queue by itself


def queue_of(limit: int) -> QueuedBlocks:
    return QueuedBlocks(lambda: limit)


def test_bytes_are_bounded_by_the_limit_of_the_moment() -> None:
    blocks = make_chain(3)
    size = sum(map(len, blocks[0].data))
    limits = [2 * size]
    queue = QueuedBlocks(lambda: limits[0])
    added = [queue.add(b.key, b.tokens, b.sections) for b in blocks]
    assert (added, queue.num_bytes) == ([True, True, False], 2 * size)
    limits[0] = 3 * size
    assert queue.add(blocks[2].key, blocks[2].tokens, blocks[2].sections)
    for block in blocks:
        queue.remove(block.key)
    limits[0] = 0
    assert queue.num_bytes == 0
    assert queue.add(blocks[0].key, blocks[0].tokens, blocks[0].sections), "one is always taken"
    assert not queue.add(blocks[1].key, blocks[1].tokens, blocks[1].sections)


def test_a_block_added_twice_stays_until_it_is_removed_twice() -> None:
    queue, block = queue_of(MANY), make_block(ROOT, 1)
    size = sum(map(len, block.data))
    for _ in range(2):
        assert queue.add(block.key, block.tokens, block.sections)
    assert queue.num_bytes == size
    queue.remove(block.key)
    assert block.key in queue
    queue.remove(block.key)
    assert block.key not in queue
    assert (queue.children([ROOT]), queue.num_bytes) == ([], 0)


def test_all_or_some_sections_are_read_and_only_of_the_right_tokens() -> None:
    queue, block = queue_of(MANY), make_block(ROOT, 1)
    queue.add(block.key, block.tokens, block.sections)
    buffers = [bytearray(spec.nbytes) for spec in block.specs]
    views = [(s, memoryview(b)) for s, b in zip(block.specs, buffers, strict=True)]
    assert queue.read(block.key, block.tokens, views[1:])
    assert (bytes(buffers[0]), bytes(buffers[1])) == (bytes(len(buffers[0])), block.data[1])
    assert queue.read(block.key, block.tokens, views)
    assert tuple(map(bytes, buffers)) == block.data
    other = make_block(ROOT, 2)
    assert not queue.read(block.key, other.tokens, views)
    assert not queue.read(other.key, other.tokens, views)
    wider = make_block(ROOT, 1, width=16)
    assert not queue.read(block.key, block.tokens, wider.sections)


def test_children_are_blocks_and_states() -> None:
    queue, (first, second) = queue_of(MANY), make_chain(2)
    snapshot = make_state(second)
    for one in (first, second, snapshot):
        queue.add(one.key, one.tokens, one.sections)
    found = queue.children([first.key.name])
    assert {child.key for child in found} == {second.key, snapshot.key}
    assert {child.tokens for child in found} == {second.tokens}
    assert [c.key.kind for c in queue.children([ROOT])] == [BlockKind.BLOCK]
