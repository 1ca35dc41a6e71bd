"""Dropping a sequence: no tier has anything left of it that a look-up could use."""

from collections.abc import Callable

import pytest

from omlx.cache.block import Chain
from omlx.cache.hashing import token_array
from omlx.cache.memory import Entry
from omlx.cache.way import Way
from omlx.storage.children import MAX_CHILDREN
from omlx.storage.layout import BlockHash, BlockKey, BlockKind
from tests.fakes import state
from tests.fakes.blocks import ROOT
from tests.fakes.cache import BLOCK, BLOCK_BYTES, Rig

A = list(range(1, 15))  # three blocks of four and a tail of two
OTHER = [*A[:6], 91, 92, 93, 94, 95]  # shares a block and a half
APART = [81, 82, 83, 84, 85, 86]


def everywhere(rig: Rig) -> None:
    rig.pass_delay()


def in_memory_and_dirty(rig: Rig) -> None:
    assert rig.on_disk() == []


def in_the_queue(rig: Rig) -> None:
    rig.clock.now += rig.delay_s
    rig.prefix.tick()
    assert rig.on_disk() == []


def on_disk_only(rig: Rig) -> None:
    rig.restart()
    assert rig.in_memory() == []


@pytest.mark.parametrize("where", [everywhere, in_memory_and_dirty, in_the_queue, on_disk_only])
@pytest.mark.parametrize("extra", [[], [77, 78, 79, 80, 81, 82]], ids=["prompt", "with a reply"])
def test_nothing_is_left_of_it(where: Callable[[Rig], None], extra: list[int]) -> None:
    """The sequence that is dropped may be longer than what is stored of it."""
    rig = Rig()
    rig.compute(A)
    rig.compute(APART)
    where(rig)
    rig.prefix.drop(Chain(token_array([*A, *extra])))
    assert rig.look_up([*A, 99]).num_tokens == 0
    rig.restart()
    assert rig.look_up([*A, 99]).num_tokens == 0
    assert rig.look_up([*APART, 99]).num_tokens == len(APART), "another sequence stays"
    assert rig.on_disk() == [2, 4]
    assert rig.compute(A).num_tokens == 0
    assert rig.look_up([*A, 99]).num_tokens == len(A)


@pytest.mark.parametrize("where", [everywhere, in_memory_and_dirty, on_disk_only])
def test_blocks_that_others_share_go_as_well_and_those_of_others_only_stay(
    where: Callable[[Rig], None],
) -> None:
    rig = Rig()
    rig.compute(A)
    rig.compute(OTHER)
    where(rig)
    rig.prefix.drop(Chain(token_array(A)))
    assert rig.look_up([*OTHER, 99]).num_tokens == 0
    rig.compute(OTHER)
    assert rig.look_up([*OTHER, 99]).num_tokens == len(OTHER)
    assert rig.look_up([*A, 99]).num_tokens == 6, "what the other has computed anew"


def test_a_block_of_another_that_fed_it_goes() -> None:
    """Its first tokens are those of the sequence, so a look-up would cut it there."""
    rig = Rig()
    rig.compute([1, 2, 3, 4, 5])
    assert rig.look_up([1, 2, 3, 70, 71]).num_tokens == 3
    rig.prefix.drop(Chain(token_array([1, 2, 3, 70, 71])))
    assert rig.look_up([1, 2, 3, 70, 71]).num_tokens == 0


def test_a_look_up_right_after_it_waits_for_the_files_to_go() -> None:
    """The threads that read must not overtake the one that deletes."""
    rig = Rig()
    rig.compute(A)
    rig.compute(APART)
    rig.restart()
    rig.prefix.drop(Chain(token_array(A)))
    hits: list[int] = []
    rig.prefix.look_up(token_array([*A, 99]), lambda hit: hits.append(hit.num_tokens))
    rig.readers.run()
    rig.answer()
    assert hits == []
    rig.settle()
    assert hits == [0]
    rig.prefix.look_up(token_array([*APART, 99]), lambda hit: hits.append(hit.num_tokens))
    while rig.readers.run() + rig.answer():
        pass
    assert hits == [0, len(APART)], "later ones don't"


def test_what_a_dropped_block_was_to_replace_goes_too() -> None:
    rig = Rig()
    rig.compute(A[:6])
    rig.pass_delay()
    rig.compute(A)  # its second block replaces the tail of two, which is on disk
    assert rig.on_disk() == [2, 4]
    rig.prefix.drop(Chain(token_array(A)))
    rig.restart()
    assert rig.on_disk() == []


def test_a_row_that_goes_on_after_its_head_was_dropped_is_only_a_miss() -> None:
    rig = Rig()
    hit = rig.compute([*A[:8]])
    rig.prefix.drop(Chain(token_array(A[:8])))
    rig.keep(hit.chain, [*A, 21, 22, 23, 24])
    assert rig.look_up([*A, 99]).num_tokens == 0
    rig.compute(A)
    rig.restart()
    assert rig.look_up([*A, 99]).num_tokens == len(A)


def test_a_drop_without_a_disk() -> None:
    rig = Rig(has_disk=False)
    rig.compute(A)
    rig.prefix.drop(Chain(token_array(A)))
    assert rig.in_memory() == []
    assert rig.memory.used_bytes == 0


@pytest.mark.parametrize(
    ("tokens", "kind", "is_on_way"),
    [
        (A[4:8], BlockKind.BLOCK, True),
        (A[4:6], BlockKind.BLOCK, True),
        ([5, 70, 71, 72], BlockKind.BLOCK, True),
        ([70, 6, 7, 8], BlockKind.BLOCK, False),
        (A[4:8], BlockKind.STATE, True),
        (A[4:6], BlockKind.STATE, True),
        ([5, 70], BlockKind.STATE, False),
    ],
)
def test_what_lies_on_the_way(tokens: list[int], kind: BlockKind, *, is_on_way: bool) -> None:
    way = Way(ROOT, token_array(A), BLOCK)
    assert [key.count for key in way.full_blocks] == [4, 4, 4]
    assert way.parents == (BlockHash(ROOT), *[key.name for key in way.full_blocks])
    key = BlockKey(way.parents[1], BlockHash(b"n" * 32), len(tokens), kind)
    assert way.has(key, token_array(tokens)) == is_on_way
    elsewhere = BlockKey(BlockHash(b"x" * 32), key.name, key.count, kind)
    assert not way.has(elsewhere, token_array(tokens))


def test_the_budget_of_memory_counts_what_is_left() -> None:
    rig = Rig()
    rig.compute(A)
    rig.compute(APART)
    before = rig.memory.used_bytes
    gone = [entry for entry in rig.entries() if entry.tokens[0] < 80]
    rig.prefix.drop(Chain(token_array(A)))
    left: list[Entry] = rig.entries()
    assert rig.memory.used_bytes == before - sum(e.payload.nbytes for e in gone)
    assert rig.writeback.dirty_bytes == sum(e.payload.nbytes for e in left)


@pytest.mark.parametrize("memory_bytes", [10**9, 2 * BLOCK_BYTES])
def test_a_tail_that_is_held_goes(memory_bytes: int) -> None:
    """With little memory it waits in the queue, out of the memory tier."""
    rig = Rig(memory_bytes=memory_bytes)
    chain = rig.look_up(A).chain
    rig.keep(chain, A, has_tail=False)
    rig.prefix.store_tail(chain, state.caches(A), 2, is_held=True)
    rig.compute([*APART, 87, 88])
    rig.prefix.drop(chain)
    rig.prefix.release(chain)
    rig.restart()
    assert rig.on_disk() == [4, 4]
    assert rig.look_up([*A, 99]).num_tokens == 0


def test_a_full_block_behind_many_newer_ones_goes() -> None:
    """A listing shows the newest only; a look-up finds a full block by its name."""
    rig = Rig()
    rig.compute(A)
    rig.pass_delay()
    rig.clock.now += 60.0
    for i in range(MAX_CHILDREN + 1):
        rig.compute([200 + i, 7])
    rig.restart()
    assert rig.on_disk().count(BLOCK) == 3
    rig.prefix.drop(Chain(token_array(A)))
    assert rig.look_up([*A, 99]).num_tokens == 0
    assert BLOCK not in rig.on_disk()
