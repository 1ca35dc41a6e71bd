"""The disk tier: jobs on other threads, answers on this one, and nothing that raises."""

import queue
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from omlx.cache.finding import Found
from omlx.cache.hashing import token_array
from omlx.cache.io import DiskTier, ReadJob
from omlx.storage.layout import BlockHash, BlockKey
from omlx.storage.pace import Pace
from tests.fakes.blocks import ROOT, Block, Clock, Shelf, make_block, make_chain, make_state
from tests.fakes.executor import ManualExecutor
from tests.fakes.fs import MemoryFileSystem

Tier = tuple[DiskTier, Shelf, ManualExecutor, ManualExecutor, list[Callable[[], None]]]


@pytest.fixture
def rig() -> Tier:
    shelf = Shelf(MemoryFileSystem(Clock()))
    return make_tier(shelf, shelf.store)


def make_tier(shelf: Shelf, store: Any, max_queued_bytes: int = 1 << 30) -> Tier:
    readers, writer = ManualExecutor(), ManualExecutor()
    posted: list[Callable[[], None]] = []
    tier = DiskTier(
        store,
        shelf.budget,
        posted.append,
        max_queued_bytes=lambda: max_queued_bytes,
        readers=readers,
        writer=writer,
    )
    return tier, shelf, readers, writer, posted


def answer(posted: list[Callable[[], None]]) -> None:
    for job in posted:
        job()
    posted.clear()


def ids(raw: bytes) -> list[int]:
    return np.frombuffer(raw, dtype="<u4").tolist()


def find(rig: Tier, keys: list[BlockKey], parent: bytes, rest: list[int], **needs: bool) -> Found:
    tier, _, readers, _, posted = rig
    found: list[Found] = []
    tier.find(keys, BlockHash(parent), token_array(rest), found.append, **needs)
    readers.run()
    assert found == [], "the answer belongs to the engine thread"
    answer(posted)
    return found[0]


def test_find_walks_as_far_as_blocks_exist(rig: Tier) -> None:
    blocks = make_chain(4)
    for block in (blocks[0], blocks[1], blocks[3]):
        rig[1].put(block)
    tokens = [t for block in blocks for t in ids(block.tokens)]
    found = find(rig, [b.key for b in blocks], ROOT, tokens)
    assert found == Found(2, None)


def test_find_takes_the_child_with_the_longest_run_of_equal_tokens(rig: Tier) -> None:
    (head,) = make_chain(1)
    rig[1].put(head)
    children = [make_block(head.key.name, seed, count) for seed, count in ((1, 3), (2, 7), (3, 2))]
    for child in children:
        rig[1].put(child)
    wanted = ids(children[1].tokens)
    rest = [*wanted[:5], wanted[5] + 1, wanted[6]]
    found = find(rig, [head.key], ROOT, [*ids(head.tokens), *rest])
    assert found.num_blocks == 1
    assert found.partial is not None
    assert (found.partial.key, found.partial.take) == (children[1].key, 5)
    assert found.partial.tokens.tolist() == wanted


@pytest.mark.parametrize("rest", [[], [60_000]])
def test_find_gives_no_partial_for_nothing_shared(rig: Tier, rest: list[int]) -> None:
    rig[1].put(make_block(ROOT, 1))
    assert find(rig, [], ROOT, rest) == Found(0, None)


def sequence(blocks: list[Block]) -> list[int]:
    return [t for block in blocks for t in ids(block.tokens)]


def test_find_gives_the_states_on_the_way_the_deepest_first(rig: Tier) -> None:
    chain = make_chain(4)
    last = chain[3].key.name
    tails = [make_block(last, 1, count=2), make_block(last, 1, count=3), make_block(last, 2)]
    for block in chain:
        rig[1].put(block)
    states = [make_state(block) for block in (chain[0], chain[2], *tails)]
    for state in states:
        rig[1].put(state)
    tokens = [*sequence(chain), *ids(tails[1].tokens), 70_000]
    found = find(rig, [b.key for b in chain], ROOT, tokens, needs_states=True)
    assert (found.num_blocks, found.partial) == (4, None), "a state is no block"
    assert found.states == tuple(states[i].key for i in (3, 2, 1, 0))
    shorter = find(rig, [b.key for b in chain], ROOT, tokens[:-2], needs_states=True)
    assert shorter.states == found.states[1:], "a state may not reach beyond what is asked for"
    assert find(rig, [b.key for b in chain], ROOT, tokens).states == ()


def test_find_gives_states_within_blocks_that_were_walked(rig: Tier) -> None:
    """The snapshot at the end of a head lies deep in a sequence that goes on."""
    chain = make_chain(4)
    head = Block(
        replace(chain[1].key, name=BlockHash(b"h" * 32), count=2), chain[1].tokens[:8], (), ()
    )
    twin = Block(replace(chain[2].key, name=BlockHash(b"t" * 32)), chain[2].tokens, (), ())
    branch = make_block(chain[1].key.name, 1)
    for block in chain:
        rig[1].put(block)
    states = [make_state(block) for block in (chain[0], head, chain[3], twin, branch)]
    for state in states:
        rig[1].put(state)
    keys, tokens = [b.key for b in chain], sequence(chain)
    # one of equal tokens under another name was of another image, and a branch is not the way
    wanted = tuple(states[i].key for i in (2, 1, 0))
    for needs_blocks in (True, False):
        found = find(rig, keys, ROOT, tokens, needs_blocks=needs_blocks, needs_states=True)
        assert found.states == wanted
    assert find(rig, keys[:1], ROOT, tokens[:7], needs_states=True).states == wanted[1:]


def test_find_gives_no_states_beyond_the_last_block(rig: Tier) -> None:
    chain = make_chain(4)
    for block in (chain[0], chain[1], chain[3], *map(make_state, chain)):
        rig[1].put(block)
    found = find(rig, [b.key for b in chain], ROOT, sequence(chain), needs_states=True)
    assert found.num_blocks == 2
    # the third block's state is a child of the second, and all its tokens were asked for
    assert found.states == tuple(make_state(b).key for b in reversed(chain[:3]))


def test_states_are_found_where_there_are_no_blocks_at_all(rig: Tier) -> None:
    chain = make_chain(4)
    tail = make_block(chain[3].key.name, 1, count=2)
    states = [make_state(block) for block in (chain[1], tail)]
    for state in states:
        rig[1].put(state)
    rest = sequence([*chain, tail])
    keys = [b.key for b in chain]
    found = find(rig, keys, ROOT, rest, needs_blocks=False, needs_states=True)
    assert found == Found(0, None, (states[1].key, states[0].key))
    assert find(rig, keys, ROOT, rest, needs_states=True) == Found(0, None, ())
    assert find(rig, [], ROOT, [], needs_blocks=False, needs_states=True) == Found(0, None, ())


def test_a_state_is_read_touched_and_removed_beside_its_block(rig: Tier) -> None:
    tier, shelf, readers, writer, posted = rig
    (block,) = make_chain(1)
    state = make_state(block)
    done: list[object] = []
    for each in (block, state):
        assert tier.write(each.key, each.tokens, each.sections, done.append)
    writer.run()
    buffers = [bytearray(spec.nbytes) for spec in state.specs]
    views = [(s, memoryview(b)) for s, b in zip(state.specs, buffers, strict=True)]
    tier.read([ReadJob(state.key, state.tokens, views[1:])], done.append)
    readers.run()
    answer(posted)
    assert done == [True, True, [True]] and bytes(buffers[1]) == state.data[1]
    shelf.clock.now += 50
    tier.touch([state.key])
    readers.run()
    assert shelf.fs.stat(state.path()).mtime == shelf.clock.now > shelf.fs.stat(block.path()).mtime
    tier.remove(state.key)
    writer.run()
    assert shelf.has(block) and not shelf.has(state)


def test_what_is_queued_is_found_and_read_as_if_it_were_written(rig: Tier) -> None:
    tier, shelf, readers, writer, posted = rig
    chain = make_chain(3)
    tail = make_block(chain[2].key.name, 1, count=2)
    states = [make_state(block) for block in (chain[0], tail)]
    shelf.put(chain[0])
    queued = [*chain[1:], tail, *states]
    done: list[object] = []
    for block in queued:
        assert tier.write(block.key, block.tokens, block.sections, done.append)
    tokens = [*sequence([*chain, tail]), 70_000]
    keys = [block.key for block in chain]
    for is_written in (False, True):
        if is_written:
            writer.run()
            answer(posted)
        found = find(rig, keys, ROOT, tokens, needs_states=True)
        assert (found.num_blocks, found.partial and found.partial.key) == (3, tail.key)
        assert found.states == (states[1].key, states[0].key)
        for block in queued:
            buffers = [bytearray(spec.nbytes) for spec in block.specs]
            views = [(s, memoryview(b)) for s, b in zip(block.specs, buffers, strict=True)]
            results: list[list[bool]] = []
            tier.read([ReadJob(block.key, block.tokens, views)], results.append)
            readers.run()
            answer(posted)
            assert (results, tuple(map(bytes, buffers))) == ([[True]], block.data)
    assert done == [True] * len(queued)


def test_reads_answer_once_and_in_order_whatever_ends_first(rig: Tier) -> None:
    tier, shelf, readers, _, posted = rig
    blocks = make_chain(3)
    shelf.put(blocks[0])
    shelf.put(blocks[2])
    buffers = [[bytearray(spec.nbytes) for spec in b.specs] for b in blocks]
    jobs = [
        ReadJob(b.key, b.tokens, [(s, memoryview(v)) for s, v in zip(b.specs, into, strict=True)])
        for b, into in zip(blocks, buffers, strict=True)
    ]
    results: list[list[bool]] = []
    tier.read(jobs, lambda good: results.append(list(good)))
    assert readers.run(newest_first=True) == 3
    answer(posted)
    assert results == [[True, False, True]]
    assert tuple(map(bytes, buffers[0])) == blocks[0].data
    assert tuple(map(bytes, buffers[2])) == blocks[2].data


class RaisingStore:
    """A store that breaks its promise."""

    def __getattr__(self, name: str) -> Any:
        def raises(*args: Any) -> Any:
            raise RuntimeError(f"{name} is broken")

        return raises


def test_an_error_in_a_job_is_a_miss(caplog: pytest.LogCaptureFixture) -> None:
    shelf = Shelf(MemoryFileSystem(Clock()))
    rig = make_tier(shelf, RaisingStore())
    tier, _, readers, writer, posted = rig
    (block,) = make_chain(1)
    assert find(rig, [block.key], ROOT, [1]) == Found(0, None)
    results: list[object] = []
    tier.read([ReadJob(block.key, block.tokens, block.sections)], results.append)
    readers.run()
    assert tier.write(block.key, block.tokens, block.sections, results.append)
    writer.run()
    answer(posted)
    assert results == [[False], False]
    assert len([r for r in caplog.records if r.exc_info]) == 3


def test_the_queue_is_bounded_in_bytes_and_takes_one_block_at_least() -> None:
    shelf = Shelf(MemoryFileSystem(Clock()))
    blocks = make_chain(3)
    size = sum(map(len, blocks[0].data))
    tier, _, _, writer, posted = make_tier(shelf, shelf.store, max_queued_bytes=2 * size)
    done: list[bool] = []
    queued = [tier.write(b.key, b.tokens, b.sections, done.append) for b in blocks]
    assert queued == [True, True, False]
    writer.run()
    assert tier.write(blocks[2].key, blocks[2].tokens, blocks[2].sections, done.append)
    writer.run()
    answer(posted)
    assert done == [True] * 3
    assert all(shelf.has(b) for b in blocks)
    large = make_block(ROOT, 9, count=64)
    assert sum(map(len, large.data)) > 2 * size
    assert tier.write(large.key, large.tokens, large.sections, done.append)


def test_a_block_that_is_there_already_counts_as_written(rig: Tier) -> None:
    tier, shelf, _, writer, posted = rig
    (block,) = make_chain(1)
    shelf.put(block)
    done: list[bool] = []
    tier.write(block.key, block.tokens, block.sections, done.append)
    writer.run()
    answer(posted)
    assert done == [True]
    assert tier.counters().blocks_written == 1


def test_drain_waits_for_removals_too(rig: Tier) -> None:
    tier, shelf, _, writer, _ = rig
    (block,) = make_chain(1)
    shelf.put(block)
    tier.remove(block.key)
    assert not tier.drain(0.0)
    writer.run()
    assert tier.drain(0.0)
    assert not shelf.has(block)


def test_touch_marks_blocks_as_used_now(rig: Tier) -> None:
    tier, shelf, readers, _, _ = rig
    (block,) = make_chain(1)
    shelf.put(block)
    shelf.clock.now += 50
    tier.touch([block.key])
    readers.run()
    assert shelf.fs.stat(block.path()).mtime == shelf.clock.now


def test_usage_is_that_of_the_directory(rig: Tier) -> None:
    tier, shelf, _, _, _ = rig
    for block in make_chain(2):
        shelf.put(block)
    usage = tier.usage()
    assert usage.blocks == 2
    assert usage.used_bytes == shelf.budget.used_bytes > 2 * 4096
    assert usage.max_bytes == shelf.max_bytes


def test_real_threads_write_and_remove_all_before_they_end() -> None:
    """close() finishes writes and removals that were queued before it."""
    shelf = Shelf(MemoryFileSystem(Clock()))
    blocks = make_chain(20)
    posted: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
    tier = DiskTier(shelf.store, shelf.budget, posted.put, max_queued_bytes=lambda: 1 << 30)
    done: list[bool] = []
    for block in blocks:
        assert tier.write(block.key, block.tokens, block.sections, done.append)
    for block in blocks[10:]:
        tier.remove(block.key)
    tier.close(10.0)
    for _ in blocks:
        posted.get(timeout=10)()
    assert done == [True] * 20
    assert [shelf.has(b) for b in blocks] == [True] * 10 + [False] * 10


@pytest.mark.parametrize(("num_cores", "most"), [(1, 1), (2, 1), (6, 3), (64, 8)])
def test_fewer_blocks_are_read_at_a_time_while_rows_run(num_cores: int, most: int) -> None:
    shelf = Shelf(MemoryFileSystem(Clock()))
    blocks = make_chain(20)
    for block in blocks:
        shelf.put(block)
    readers, posted = ManualExecutor(), list[Callable[[], None]]()
    tier = DiskTier(
        shelf.store,
        shelf.budget,
        posted.append,
        max_queued_bytes=lambda: 0,
        readers=readers,
        writer=ManualExecutor(),
        num_cores=num_cores,
        pace=(pace := Pace()),
    )
    results: list[bool] = []
    tier.set_busy(is_busy=True)
    assert pace.is_busy
    for block in blocks:
        buffers = [(spec, memoryview(bytearray(spec.nbytes))) for spec in block.specs]
        tier.read([ReadJob(block.key, block.tokens, buffers)], results.extend)
    assert len(readers.jobs) == most
    tier.set_busy(is_busy=False)
    assert len(readers.jobs) == 8 and not pace.is_busy
    readers.run()
    answer(posted)
    assert results == [True] * 20
    tier.set_busy(is_busy=True)
    assert tier.drain(0.0) and not pace.is_busy
