"""Write-behind: what reaches the disk, when, and what never does."""

import errno
import itertools

import pytest

from omlx.cache.block import Chain
from omlx.cache.hashing import token_array
from omlx.storage.layout import parse_block_name
from tests.fakes import state
from tests.fakes.cache import BLOCK, BLOCK_BYTES, Rig
from tests.fakes.fs import FaultFileSystem

A = [*range(1, 11)]  # two full blocks and a tail of two


def names_written(rig: Rig) -> list[str]:
    """The block files in the order in which they appeared."""
    return [p.name for p in rig.block_files()]


def test_nothing_is_written_before_the_delay() -> None:
    rig = Rig(delay_s=2.0)
    rig.compute(A)
    assert rig.prefix.tick() == 2.0
    rig.clock.now += 1.5
    assert rig.prefix.tick() == 0.5
    rig.settle()
    assert rig.on_disk() == []
    rig.clock.now += 0.5
    assert rig.prefix.tick() is None
    rig.settle()
    assert rig.on_disk() == [2, BLOCK, BLOCK]
    assert rig.writeback.dirty_bytes == 0


def test_a_chain_is_written_head_first() -> None:
    rig = Rig()
    hit = rig.compute(A)
    rig.pass_delay()
    parsed = [parse_block_name(name) for name in names_written(rig)]
    assert [p.name32 for p in parsed if p][:2] == [n.hex()[:32] for n in hit.chain.names]
    assert [p.count for p in parsed if p] == [BLOCK, BLOCK, 2]


def test_a_tail_replaced_before_the_delay_is_never_written() -> None:
    rig = Rig()
    hit = rig.compute(A)
    rig.keep(hit.chain, [*A, 11])
    rig.keep(hit.chain, [*A, 11, 12, 13])
    rig.pass_delay()
    assert rig.on_disk() == [1, BLOCK, BLOCK, BLOCK]
    assert rig.disk is not None and rig.disk.counters().blocks_written == 4


def test_a_tail_replaced_after_it_was_written_is_deleted_once_the_longer_one_is_there() -> None:
    rig = Rig()
    hit = rig.compute(A)
    rig.pass_delay()
    rig.keep(hit.chain, [*A, 11])
    rig.settle()
    assert rig.on_disk() == [2, BLOCK, BLOCK], "the longer one is not written yet"
    rig.pass_delay()
    assert rig.on_disk() == [3, BLOCK, BLOCK]


def test_a_tail_replaced_while_its_write_is_queued_is_deleted_as_well() -> None:
    rig = Rig()
    hit = rig.compute(A)
    rig.clock.now += 2.0
    rig.prefix.tick()  # queued, not written
    rig.keep(hit.chain, [*A, 11])
    rig.pass_delay()
    assert rig.on_disk() == [3, BLOCK, BLOCK]


def test_a_written_tail_goes_when_the_replacement_of_its_replacement_is_written() -> None:
    rig = Rig()
    hit = rig.compute(A)
    rig.pass_delay()
    rig.keep(hit.chain, [*A, 11])
    rig.keep(hit.chain, [*A, 11, 12])  # the tail of three is never written
    rig.pass_delay()
    assert rig.on_disk() == [BLOCK, BLOCK, BLOCK]


def test_two_written_tails_that_one_block_replaces_both_go() -> None:
    rig = Rig()
    rig.compute(A[:9])
    rig.restart()
    rig.look_up([*A[:9], 99])  # its tail of one token is in memory again
    other = rig.twin()
    other.keep(Chain(token_array(A)), A)
    other.pass_delay()
    assert rig.look_up([*A, 99]).from_disk == 2, "the tail that the other process wrote"
    assert rig.on_disk() == [1, 2, BLOCK, BLOCK]
    rig.compute([*A, 11, 12])
    rig.pass_delay()
    assert rig.on_disk() == [BLOCK, BLOCK, BLOCK]


def test_a_replaced_tail_stays_on_disk_when_its_replacement_is_dropped() -> None:
    rig = Rig()
    fault = FaultFileSystem(rig.fs)
    rig.start(fault)
    hit = rig.compute(A)
    rig.pass_delay()
    fault.fail_next("writev", "forever", errno.EACCES)
    rig.keep(hit.chain, [*A, 11])
    rig.pass_delay()
    assert rig.disk is not None and rig.disk.counters().dropped_writes == 1
    assert rig.on_disk() == [2, BLOCK, BLOCK]


def test_what_leaves_memory_is_written_at_once() -> None:
    rig = Rig(memory_bytes=2 * BLOCK_BYTES)
    rig.compute(range(1, 9))
    rig.compute(range(101, 109))
    rig.settle()
    assert rig.on_disk() == [BLOCK, BLOCK]
    assert rig.prefix.tick() == 2.0, "what is still in memory waits"
    rig.start()
    assert rig.look_up([*range(1, 9), 0]).from_disk == 8


def test_what_leaves_memory_is_written_after_what_leads_to_it() -> None:
    """S10: else a stop with little time would keep the end of a prompt, which nobody can find."""
    rig = Rig(memory_bytes=2 * BLOCK_BYTES)
    rig.compute(range(1, 17))
    rig.settle()
    names = [parse_block_name(name) for name in names_written(rig)]
    assert len(names) == 4 and all(names)
    for before, after in itertools.pairwise(names):
        assert before is not None and after is not None and after.parent16 == before.name16


def test_hurry_writes_a_sequence_at_once_and_nothing_else() -> None:
    rig = Rig()
    hit = rig.compute(A)
    rig.compute(range(101, 106))
    rig.prefix.hurry(hit.chain)
    rig.settle()
    assert rig.on_disk() == [2, BLOCK, BLOCK]
    assert rig.writeback.dirty_bytes == 5 * state.BYTES_PER_TOKEN


def test_too_many_dirty_bytes_are_written_before_the_delay() -> None:
    """The limit is the assumed write rate for half the drain time: here a block and a half."""
    rig = Rig(drain_s=2 * 1.5 * BLOCK_BYTES / 200e6)
    rig.compute(range(1, 13))
    assert rig.prefix.tick() == 2.0
    rig.settle()
    assert rig.on_disk() == [BLOCK, BLOCK]
    assert rig.writeback.dirty_bytes == BLOCK_BYTES


def test_a_full_queue_keeps_the_block_for_later() -> None:
    rig = Rig(max_queued_bytes=BLOCK_BYTES)
    rig.compute(range(1, 13))
    rig.clock.now += 2.0
    assert rig.prefix.tick() == 2.0, "one is queued, the next must wait"
    assert rig.writeback.dirty_bytes == 2 * BLOCK_BYTES
    for _ in range(3):
        rig.settle()
        rig.prefix.tick()
    rig.settle()
    assert rig.on_disk() == [BLOCK] * 3
    assert rig.writeback.num_lost == 0, "a block that waits is not lost"


def test_a_block_that_leaves_memory_while_the_queue_is_full_is_lost_and_counted() -> None:
    rig = Rig(memory_bytes=BLOCK_BYTES, max_queued_bytes=BLOCK_BYTES)
    for tokens in ([1, 2, 3, 4], [5, 6, 7, 8], [9, 10, 11, 12]):
        rig.keep(Chain(token_array(tokens)), tokens)
    assert rig.writeback.num_lost == 1
    rig.pass_delay()
    rig.pass_delay()
    assert rig.on_disk() == [BLOCK, BLOCK]
    assert rig.writeback.dirty_bytes == 0


def test_flush_writes_all_that_is_dirty() -> None:
    rig = Rig()
    rig.compute(A)
    rig.compute(range(101, 106))
    assert not rig.prefix.flush(0.0), "queued, but no thread has written it"
    rig.settle()
    assert rig.prefix.flush(0.0)
    assert rig.on_disk() == [1, 2, BLOCK, BLOCK, BLOCK]
    assert rig.writeback.dirty_bytes == 0


def test_flush_with_a_full_queue_gives_up_at_the_limit_and_goes_on_later() -> None:
    rig = Rig(max_queued_bytes=BLOCK_BYTES)
    rig.compute(range(1, 13))
    for _ in range(3):
        assert not rig.prefix.flush(0.0)
        rig.settle()
    assert rig.prefix.flush(0.0)
    assert rig.on_disk() == [BLOCK] * 3


@pytest.mark.parametrize("ask", ["tick", "flush", "hurry"])
def test_without_a_disk_there_is_nothing_to_write(ask: str) -> None:
    rig = Rig(has_disk=False)
    hit = rig.compute(A)
    rig.clock.now += 100
    if ask == "tick":
        assert rig.prefix.tick() is None
    elif ask == "flush":
        assert rig.prefix.flush(0.0)
    else:
        rig.prefix.hurry(hit.chain)
    assert rig.writeback.dirty_bytes == 0
    assert len(rig.memory) == 3


def test_bytes_are_those_of_the_time_of_storing() -> None:
    """A write that runs late still writes the state that was stored."""
    rig = Rig()
    rig.compute(A)
    rig.clock.now += 2.0
    rig.prefix.tick()
    rig.memory.remove(rig.entries()[0].key.name)
    rig.settle()
    rig.start()
    assert rig.look_up([*A, 0]).from_disk == len(A)  # look_up compares the content


@pytest.mark.parametrize("mode", ["once", "forever"])
def test_a_disk_that_fails_loses_writes_and_nothing_else(mode: str) -> None:
    rig = Rig()
    rig.start(FaultFileSystem(rig.fs, fail_at=6, mode=mode))
    rig.compute(A)
    rig.pass_delay()
    assert rig.look_up([*A, 0]).from_memory == len(A)
    rig.start()
    assert rig.look_up([*A, 0]).from_memory == 0


def test_a_device_with_memory_of_its_own_is_read_only_while_it_rests() -> None:
    """Reading a block stops such a device: nothing is written beside running rows."""
    rig = Rig(delay_s=2.0)
    rig.codec.is_zero_copy = False
    rig.compute(A)
    rig.clock.now += 3.0
    rig.prefix.tick(is_busy=True)
    rig.settle()
    assert rig.on_disk() == []
    assert rig.prefix.tick(is_busy=False) == 0.0, "one at a time, so that no request waits long"
    assert rig.prefix.tick(is_busy=True) == 2.0
    rig.settle()
    assert rig.on_disk() == [BLOCK]
    while rig.prefix.tick(is_busy=False) == 0.0:
        pass
    rig.settle()
    assert rig.on_disk() == [2, BLOCK, BLOCK]


# ---- the tail of a running row


def held_rig(**options: int) -> tuple[Rig, Chain]:
    """A row that has prefilled and goes on."""
    rig = Rig(**options)
    chain = Chain(token_array(A))
    rig.keep(chain, A, is_held=True)
    return rig, chain


@pytest.mark.parametrize("memory_bytes", [0, 1 << 40])
def test_a_held_tail_is_found_but_not_written_before_the_row_ends(memory_bytes: int) -> None:
    rig, chain = held_rig(memory_bytes=memory_bytes)
    for _ in range(3):
        rig.pass_delay()
    assert rig.on_disk() == [BLOCK, BLOCK]
    assert rig.look_up([*A, 99]).num_tokens == len(A)
    rig.prefix.release(chain)
    rig.clock.now += 1.9
    rig.prefix.tick()
    rig.settle()
    assert rig.on_disk() == [BLOCK, BLOCK], "the delay begins with the end of the row"
    rig.pass_delay()
    assert rig.on_disk() == [2, BLOCK, BLOCK]
    assert rig.look_up([*A, 99]).num_tokens == len(A)


@pytest.mark.parametrize("memory_bytes", [0, 1 << 40])
@pytest.mark.parametrize("reply", [1, 5])
def test_a_held_tail_that_the_reply_replaces_is_never_written(
    memory_bytes: int, reply: int
) -> None:
    rig, chain = held_rig(memory_bytes=memory_bytes)
    rig.pass_delay()
    whole = [*A, *range(50, 50 + reply)]
    rig.prefix.release(chain)
    rig.keep(chain, whole)
    rig.pass_delay()
    assert sum(rig.on_disk()) == len(whole)
    assert rig.disk is not None and rig.disk.counters().blocks_written == len(rig.on_disk())
    assert (rig.writeback.dirty_bytes, rig.disk.queued.num_bytes) == (0, 0)


@pytest.mark.parametrize("memory_bytes", [0, 1 << 40])
@pytest.mark.parametrize("how", ["flush", "hurry"])
def test_a_held_tail_is_written_at_the_end_and_after_an_abort(memory_bytes: int, how: str) -> None:
    rig, chain = held_rig(memory_bytes=memory_bytes)
    if how == "flush":
        rig.prefix.flush(0.0)
    else:
        rig.prefix.hurry(chain)
    rig.settle()
    assert rig.on_disk() == [2, BLOCK, BLOCK]
    assert (rig.writeback.dirty_bytes, rig.disk.queued.num_bytes) == (0, 0)


def test_a_held_tail_that_falls_out_of_memory_is_still_found() -> None:
    rig, chain = held_rig(memory_bytes=3 * BLOCK_BYTES)
    rig.compute(range(101, 101 + 3 * BLOCK))
    assert all(tokens[0] > 100 for tokens in rig.in_memory())
    rig.settle()
    assert rig.on_disk() == [BLOCK, BLOCK]
    assert rig.look_up([*A, 99]).num_tokens == len(A)
    rig.prefix.release(chain)
    rig.pass_delay()
    assert sum(rig.on_disk()) == len(A) + 3 * BLOCK


def test_a_held_tail_does_not_hold_up_what_comes_after_it() -> None:
    rig, _ = held_rig()
    rig.compute(range(101, 109))
    assert rig.prefix.tick() == 2.0
    rig.pass_delay()
    assert rig.on_disk() == [BLOCK] * 4
    assert rig.prefix.tick() is None


def test_a_row_that_found_the_tail_of_another_does_not_release_it() -> None:
    rig, _ = held_rig()
    other = rig.look_up([*A, 99]).chain
    rig.prefix.release(other)
    rig.pass_delay()
    assert rig.on_disk() == [BLOCK, BLOCK]


def test_a_held_tail_that_can_not_wait_anywhere_is_lost_and_counted() -> None:
    rig = Rig(memory_bytes=0, max_queued_bytes=2 * BLOCK_BYTES)
    chain = Chain(token_array(A))
    rig.keep(chain, A, is_held=True)
    assert rig.writeback.num_lost == 1
    rig.prefix.release(chain)
    rig.pass_delay()
    assert rig.on_disk() == [BLOCK, BLOCK]
