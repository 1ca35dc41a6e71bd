"""The blocks that continue a block."""

import errno

from omlx.storage.children import MAX_CHILDREN, Child
from omlx.storage.layout import BlockHash
from omlx.storage.record import BadReason
from tests.fakes.blocks import (
    OTHER_ROOT,
    ROOT,
    Block,
    Clock,
    Shelf,
    make_block,
    make_chain,
    make_state,
)
from tests.fakes.fs import FaultFileSystem, MemoryFileSystem


def shelf_with(*blocks: Block) -> tuple[Shelf, FaultFileSystem, MemoryFileSystem]:
    clock = Clock()
    memory = MemoryFileSystem(clock)
    fs = FaultFileSystem(memory)
    shelf = Shelf(fs, clock)
    for block in blocks:
        shelf.put(block)
        clock.now += 1
    return shelf, fs, memory


def names(children: list[Child]) -> list[BlockHash]:
    return [child.key.name for child in children]


def test_children_come_newest_first_with_their_token_ids() -> None:
    tail, full = make_block(ROOT, 1, count=2), make_block(ROOT, 2)
    shelf, _, memory = shelf_with(tail, full, make_block(full.key.name, 3))
    children = shelf.store.children(BlockHash(ROOT))
    assert names(children) == [full.key.name, tail.key.name]
    assert [child.tokens for child in children] == [full.tokens, tail.tokens]
    assert [child.key.count for child in children] == [4, 2]
    assert children[0].size == memory.stat(full.path()).size
    assert children[0].mtime == memory.stat(full.path()).mtime


def test_a_parent_without_children_has_none() -> None:
    shelf, _, _ = shelf_with()
    assert shelf.store.children(BlockHash(ROOT)) == []


def test_a_second_look_reads_no_file_again_until_it_changes() -> None:
    blocks = [make_block(ROOT, seed) for seed in range(3)]
    shelf, fs, _ = shelf_with(*blocks)
    first = shelf.store.children(BlockHash(ROOT))
    opened = fs.calls.count("open")
    assert shelf.store.children(BlockHash(ROOT)) == first
    assert fs.calls.count("open") == opened
    shelf.store.touch([blocks[0].key])
    again = shelf.store.children(BlockHash(ROOT))
    assert names(again)[0] == blocks[0].key.name
    assert fs.calls.count("open") == opened + 1


def test_only_the_newest_headers_are_read() -> None:
    blocks = [make_block(ROOT, seed) for seed in range(MAX_CHILDREN + 6)]
    shelf, fs, _ = shelf_with(*blocks)
    before = fs.calls.count("open")
    children = shelf.store.children(BlockHash(ROOT))
    assert names(children) == [block.key.name for block in reversed(blocks[6:])]
    assert fs.calls.count("open") == before + MAX_CHILDREN


def test_bad_files_are_left_out_removed_and_counted() -> None:
    good, bad, empty = (make_block(ROOT, seed) for seed in range(3))
    shelf, _, memory = shelf_with(good, bad, empty)
    memory.content(bad.path())[4096] ^= 1
    memory.content(empty.path()).clear()
    memory.write(good.path().parent / "notes", b"not a block")
    assert names(shelf.store.children(BlockHash(ROOT))) == [good.key.name]
    assert shelf.store.counters().bad == {BadReason.CHECKSUM: 1, BadReason.EMPTY: 1}
    assert bad.path() not in memory.files() and empty.path() not in memory.files()
    assert good.path().parent / "notes" in memory.files()


def test_a_parent_whose_name_begins_alike_has_its_own_children() -> None:
    twin = BlockHash(ROOT[:8] + bytes(24))
    mine, others = make_block(ROOT, 1), make_block(twin, 2)
    shelf, _, memory = shelf_with(mine, others)
    assert mine.path().parent == others.path().parent
    assert names(shelf.store.children(BlockHash(ROOT))) == [mine.key.name]
    assert names(shelf.store.children(twin)) == [others.key.name]
    assert shelf.store.counters().bad == {} and len(memory.files()) == 3


def test_a_block_of_another_root_under_this_name_is_foreign() -> None:
    block = make_block(ROOT, 1)
    shelf, fs, memory = shelf_with(block)
    other = Shelf(memory, Clock(), root=OTHER_ROOT)
    other.put(block)
    memory.content(block.path())[:] = memory.content(block.path(OTHER_ROOT))
    assert shelf.store.children(BlockHash(ROOT)) == []
    assert shelf.store.counters().bad == {BadReason.FOREIGN: 1}


def test_files_stay_when_only_descriptors_are_short() -> None:
    block = make_block(ROOT, 1)
    shelf, fs, memory = shelf_with(block)
    fs.fail_next("open", "once", errno.EMFILE)
    assert shelf.store.children(BlockHash(ROOT)) == []
    assert names(shelf.store.children(BlockHash(ROOT))) == [block.key.name]
    counters = shelf.store.counters()
    assert (counters.busy, counters.bad) == (1, {})


def test_a_shard_that_can_not_be_listed_has_no_children() -> None:
    shelf, fs, _ = shelf_with(make_block(ROOT, 1))
    fs.fail_next("names", "once", errno.EIO)
    assert shelf.store.children(BlockHash(ROOT)) == []


def test_files_that_vanish_meanwhile_are_left_out() -> None:
    shelf, fs, _ = shelf_with(make_block(ROOT, 1))
    for call in ("stat", "open"):
        fs.fail_next(call, "once", errno.ENOENT)
        assert shelf.store.children(BlockHash(ROOT)) == []
    assert shelf.store.counters().bad == {}
    assert len(shelf.store.children(BlockHash(ROOT))) == 1


def test_children_are_of_both_kinds_and_the_newest_of_each() -> None:
    blocks = [make_block(ROOT, seed) for seed in range(MAX_CHILDREN + 3)]
    state = make_state(blocks[0])
    shelf, _, _ = shelf_with(state, *blocks)
    children = shelf.store.children(BlockHash(ROOT))
    assert [child.key for child in children] == [
        *(block.key for block in reversed(blocks[3:])),
        state.key,
    ]
    shelf, _, _ = shelf_with(blocks[0], *map(make_state, blocks))
    children = shelf.store.children(BlockHash(ROOT))
    assert len(children) == MAX_CHILDREN + 1 and children[-1].key == blocks[0].key


def test_states_of_many_parents_are_found_together() -> None:
    chain = make_chain(6)
    tails = [make_block(block.key.name, seed, 2) for seed, block in enumerate(chain)]
    states = [make_state(block) for block in (chain[2], tails[0], tails[4])]
    shelf, _, _ = shelf_with(*chain, *tails, *states)
    parents = [BlockHash(ROOT), *(block.key.name for block in chain[:4])]
    found = shelf.store.states(parents)
    assert {child.key for child in found} == {states[0].key, states[1].key}
    assert {child.tokens for child in found} == {chain[2].tokens, tails[0].tokens}
    assert shelf.store.states([]) == []


def test_shards_are_listed_again_only_when_they_have_changed() -> None:
    blocks = [make_block(ROOT, seed) for seed in range(2)]
    shelf, fs, memory = shelf_with(*blocks, make_state(blocks[0]))
    parents = [BlockHash(ROOT)]
    shelf.clock.now += 10
    for _ in range(2):
        assert [child.key for child in shelf.store.states(parents)] == [make_state(blocks[0]).key]
    assert fs.calls.count("names") == 1
    shelf.put(make_state(blocks[1]))
    assert len(shelf.store.states(parents)) == 2
    shelf.put(make_state(make_block(ROOT, 5)))  # within the same tick of the clock
    assert len(shelf.store.states(parents)) == 3
    memory.unlink(make_state(blocks[0]).path())
    assert len(shelf.store.states(parents)) == 2


def test_states_that_are_bad_are_removed_and_counted() -> None:
    block = make_block(ROOT, 1)
    state = make_state(block)
    shelf, fs, memory = shelf_with(block, state)
    memory.content(state.path())[4096] ^= 1
    assert shelf.store.states([BlockHash(ROOT)]) == []
    assert shelf.store.counters().bad == {BadReason.CHECKSUM: 1}
    assert memory.files() and state.path() not in memory.files()
    for call in ("stat", "names"):
        fs.fail_next(call, "once", errno.EIO)
        assert shelf.store.states([BlockHash(ROOT)]) == []
