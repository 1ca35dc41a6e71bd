"""Look-ups: exact to the token, over both tiers, and a failure is only a smaller hit.

The rig's `look_up` compares every restored value with the state of the prefix.
"""

import errno

import pytest

from omlx.cache.block import Chain
from omlx.cache.hashing import token_array
from omlx.cache.lookup import Hit
from tests.fakes import state
from tests.fakes.cache import BLOCK, BLOCK_BYTES, Rig
from tests.fakes.fs import FaultFileSystem

LONG = [*range(1, 23)]  # five full blocks and a tail of two


def stored(tokens: list[int] = LONG, **options: int) -> Rig:
    """A rig that has computed `tokens` and knows them from disk only."""
    rig = Rig(**options)
    rig.compute(tokens)
    rig.restart()
    return rig


def start(rig: Rig, tokens: list[int]) -> list[Hit]:
    """Begin a look-up; its answer arrives in the list."""
    hits: list[Hit] = []
    rig.prefix.look_up(token_array(tokens), hits.append)
    return hits


@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("length", [1, 2, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 3])
def test_a_repeat_finds_all_but_the_last_token(length: int, where: str) -> None:
    rig = Rig()
    assert rig.compute(LONG[:length]).num_tokens == 0
    if where == "disk":
        rig.restart()
    hit = rig.look_up(LONG[:length])
    assert (hit.from_memory if where == "memory" else hit.from_disk) == length - 1
    assert hit.num_tokens == length - 1


@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("fork", range(0, len(LONG), 3))
def test_a_fork_finds_what_is_shared(fork: int, where: str) -> None:
    rig = Rig() if where == "memory" else stored()
    if where == "memory":
        rig.compute(LONG)
    assert rig.look_up([*LONG[:fork], *range(1001, 1010)]).num_tokens == fork


def test_what_memory_answers_alone_is_answered_at_once() -> None:
    rig = Rig()
    rig.compute(LONG)
    assert [hit.num_tokens for hit in start(rig, LONG)] == [len(LONG) - 1]
    assert start(rig, [*LONG, 98, 99]) == [], "the disk might have more"


def test_the_rest_of_a_sequence_comes_from_disk() -> None:
    rig = stored()
    rig.look_up(LONG[:9])
    hit = rig.look_up([*LONG, 99])
    assert (hit.from_memory, hit.from_disk) == (8, len(LONG) - 8)


def test_what_came_from_disk_is_in_memory_then() -> None:
    rig = stored()
    rig.look_up([*LONG, 99])
    hit = rig.look_up([*LONG, 99])
    assert (hit.from_memory, hit.from_disk) == (len(LONG), 0)
    assert rig.writeback.dirty_bytes == 0, "it needs no write"


def test_the_longer_of_two_continuations_is_taken() -> None:
    rig = stored(LONG[:14])
    rig.compute([*LONG[:12], 77, 78, 79])
    hit = rig.look_up([*LONG[:14], 99])
    assert (hit.from_memory, hit.from_disk) == (12, 2), "the tail on disk, not the one in memory"
    hit = rig.look_up([*LONG[:12], 77, 78, 80])
    assert (hit.from_memory, hit.from_disk) == (14, 0)


@pytest.mark.parametrize("harm", ["missing", "truncated", "flipped", "empty"])
@pytest.mark.parametrize("k", range(5))
def test_a_bad_block_k_keeps_k_blocks_and_is_written_again(k: int, harm: str) -> None:
    """P15 and S8; what comes after the bad block stays valid."""
    rig = stored()
    reference = rig.twin()
    path = rig.file_of(reference.look_up([*LONG, 99]).chain, k)
    whole = bytes(rig.fs.content(path))
    if harm == "missing":
        rig.fs.unlink(path)
    elif harm == "truncated":
        del rig.fs.content(path)[-7:]
    elif harm == "flipped":
        rig.fs.content(path)[-7] ^= 1
    else:
        rig.fs.content(path).clear()
    hit = rig.compute([*LONG, 99])
    assert hit.num_tokens == k * BLOCK
    rig.pass_delay()
    assert bytes(rig.fs.content(path)) == whole
    rig.start()
    assert rig.look_up([*LONG, 99, 0]).from_disk == len(LONG) + 1


def test_a_bad_tail_keeps_the_full_blocks() -> None:
    rig = stored()
    (tail,) = [p for p in rig.block_files() if ".2." in p.name]
    rig.fs.content(tail)[-1] ^= 1
    assert rig.look_up([*LONG, 99]).num_tokens == 5 * BLOCK
    assert tail not in rig.fs.files()


def test_a_bad_block_on_disk_leaves_the_shorter_one_in_memory() -> None:
    rig = Rig()
    rig.compute(LONG[:5])
    other = rig.twin()
    other.keep(Chain(token_array(LONG[:7])), LONG[:7])
    other.pass_delay()
    (tail,) = [p for p in rig.block_files() if ".3." in p.name]
    rig.fs.content(tail)[-1] ^= 1
    hit = rig.look_up([*LONG[:7], 99])
    assert (hit.from_memory, hit.from_disk) == (5, 0)


@pytest.mark.parametrize("call", ["open", "preadv", "fstat", "stat", "names"])
def test_a_disk_that_fails_is_a_miss(call: str) -> None:
    rig = stored()
    fault = FaultFileSystem(rig.fs)
    rig.start(fault)
    fault.fail_next(call, "forever", errno.EIO)
    assert rig.look_up([*LONG, 99]).num_tokens in (0, 5 * BLOCK)
    assert fault.calls.count(call) > 0
    assert rig.compute(LONG[:9]).num_tokens in (0, 8)


def test_memory_that_is_evicted_while_reads_are_on_their_way() -> None:
    rig = stored(memory_bytes=8 * BLOCK_BYTES)
    rig.look_up(LONG[:9])
    hits = start(rig, [*LONG, 99])
    rig.readers.run()
    rig.answer()  # the disk has said what it has; reads are queued
    rig.keep(Chain(token_array(range(500, 532))), [*range(500, 532)])
    assert all(tokens[0] >= 500 for tokens in rig.in_memory())
    rig.settle()
    (hit,) = hits
    assert (hit.from_memory, hit.from_disk) == (8, len(LONG) - 8)
    assert state.holds(rig.prefix.restore(hit), LONG)
    assert rig.memory.used_bytes <= 8 * BLOCK_BYTES


def test_blocks_that_another_row_computes_while_reads_are_on_their_way() -> None:
    rig = stored()
    hits = start(rig, [*LONG, 99])
    rig.readers.run()
    rig.answer()
    rig.keep(Chain(token_array(LONG)), LONG)
    num_blocks = len(rig.memory)
    rig.settle()
    assert [hit.num_tokens for hit in hits] == [len(LONG)]
    assert len(rig.memory) == num_blocks


def test_two_look_ups_of_one_sequence_at_a_time() -> None:
    rig = stored()
    first, second = start(rig, [*LONG, 99]), start(rig, [*LONG, 99])
    rig.settle()
    for (hit,) in (first, second):
        assert hit.from_disk == len(LONG)
        assert state.holds(rig.prefix.restore(hit), LONG)
    assert len(rig.memory) == 6


def test_a_hit_that_is_larger_than_memory() -> None:
    rig = stored(memory_bytes=2 * BLOCK_BYTES)
    assert rig.look_up([*LONG, 99]).from_disk == len(LONG)
    hit = rig.look_up([*LONG, 99])
    assert (hit.from_memory, hit.from_disk) == (2 * BLOCK, len(LONG) - 2 * BLOCK)


def test_a_hit_counts_as_a_use() -> None:
    rig = Rig(memory_bytes=3 * BLOCK_BYTES)
    for first in (100, 200, 300):
        rig.compute(range(first, first + BLOCK))
    rig.look_up([*range(100, 104), 0])
    rig.compute(range(400, 404))
    assert [tokens[0] for tokens in rig.in_memory()] == [300, 100, 400]


def test_a_hit_touches_the_files_leaf_first_so_that_no_child_is_younger() -> None:
    rig = stored()
    fault = FaultFileSystem(rig.fs)
    rig.start(fault)
    rig.clock.now += 1000
    chain = rig.look_up([*LONG, 99]).chain
    assert fault.calls.count("utime") == 6
    times = {rig.fs.stat(p).mtime for p in rig.block_files()}
    assert times == {rig.clock.now}
    assert rig.file_of(chain, 0) in rig.block_files()


def test_the_chain_names_the_full_blocks_only() -> None:
    rig = Rig()
    first = rig.compute(LONG)
    hit = rig.look_up(LONG[:10])
    assert hit.chain.names == first.chain.names[:2]
    assert hit.chain.tokens.tolist() == LONG[:10]


@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("fork", [1, 6, 9])
def test_a_fork_then_stores_the_block_in_which_it_forked(fork: int, where: str) -> None:
    rig = Rig() if where == "memory" else stored()
    if where == "memory":
        rig.compute(LONG)
    other = [*LONG[:fork], *range(1001, 1013)]
    hit = rig.compute(other)
    assert hit.num_tokens == fork
    assert len(hit.chain.names) == len(other) // BLOCK
    assert rig.compute([*other, 99]).from_memory == len(other)


def test_a_tail_that_a_longer_one_replaces_while_its_read_is_on_its_way() -> None:
    rig = Rig(memory_bytes=0)
    chain = Chain(token_array(LONG))
    rig.keep(chain, LONG, is_held=True)
    rig.writer.run()
    rig.answer()  # the held tail waits in the queue
    hits = start(rig, [*LONG, 99])
    rig.readers.run()
    rig.answer()  # the disk has said what it has; reads are queued
    rig.keep(chain, [*LONG, 98])
    rig.settle()
    (hit,) = hits
    assert hit.num_tokens == len(LONG)
    assert state.holds(rig.prefix.restore(hit), LONG)


def test_a_bad_block_leaves_a_shorter_one_of_the_same_place() -> None:
    rig = stored(LONG[:6])
    other = rig.twin()
    other.keep(Chain(token_array(LONG[:9])), LONG[:9])
    other.pass_delay()
    assert rig.on_disk() == [1, 2, 4, 4]
    path = rig.file_of(rig.twin().look_up([*LONG[:9], 99]).chain, 1)
    rig.fs.content(path)[-1] ^= 1
    assert rig.look_up([*LONG[:9], 99]).num_tokens == 6


def test_a_disk_that_always_promises_and_never_gives_ends_a_look_up() -> None:
    rig = stored()
    fault = FaultFileSystem(rig.fs)
    rig.start(fault)
    fault.fail_next("preadv", "forever", errno.EAGAIN)  # no fault of the files: they stay
    assert rig.look_up([*LONG, 99]).num_tokens == 0
    assert len(rig.block_files()) == 6
