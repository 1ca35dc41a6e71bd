"""Where the blocks of a request go: both tiers, memory only, nowhere."""

import pytest

from omlx.cache.block import Chain
from omlx.cache.hashing import token_array
from omlx.cache.policy import StorePolicy
from omlx.settings.leaf import leaves
from tests.fakes.blocks import MANY
from tests.fakes.cache import BLOCK, BLOCK_BYTES, Rig

ALL, MEMORY = StorePolicy.ALL, StorePolicy.MEMORY
LONG = [*range(1, 15)]  # three full blocks and a tail of two


def test_the_values_are_those_of_the_setting() -> None:
    assert leaves()["cache.store"].option.choices == tuple(p.value for p in StorePolicy)


@pytest.mark.parametrize("memory_bytes", [0, 2 * BLOCK_BYTES, MANY])
def test_blocks_of_the_memory_tier_only_never_go_to_disk(memory_bytes: int) -> None:
    rig = Rig(memory_bytes=memory_bytes)
    rig.compute(LONG, MEMORY)
    in_memory = min(memory_bytes, len(LONG) * BLOCK_BYTES // BLOCK)
    assert rig.look_up([*LONG, 99]).from_memory == in_memory * BLOCK // BLOCK_BYTES
    rig.pass_delay()
    rig.compute(range(100, 100 + 2 * BLOCK), MEMORY)
    rig.restart()
    assert rig.on_disk() == []
    assert rig.writeback.num_lost == 0


def test_what_another_request_wants_on_disk_is_written_then() -> None:
    rig = Rig()
    rig.compute(LONG, MEMORY)
    rig.pass_delay()
    hit = rig.compute([*LONG[:-1], 70, 71, 72], ALL)
    assert hit.from_memory == len(LONG) - 1
    rig.pass_delay()
    assert rig.on_disk() == [BLOCK] * 4
    rig.start()
    assert rig.look_up([*LONG, 99]).num_tokens == len(LONG) - 1, "the other's last token is not"


def test_the_same_sequence_is_written_whole() -> None:
    rig = Rig()
    rig.compute(LONG, MEMORY)
    rig.compute(LONG, ALL)
    rig.pass_delay()
    assert rig.on_disk() == [2, *[BLOCK] * 3]


def test_tokens_that_only_the_memory_only_request_had_are_not_written() -> None:
    """Its longer tail covers the shorter one, but must not be written for it."""
    rig = Rig()
    rig.compute([*LONG, 66], MEMORY)
    rig.compute(LONG, ALL)
    rig.pass_delay()
    assert rig.on_disk() == [2, *[BLOCK] * 3]
    assert rig.look_up([*LONG, 66, 67]).from_memory == len(LONG) + 1


def test_a_memory_only_block_does_not_replace_one_that_belongs_on_disk() -> None:
    rig = Rig()
    rig.compute(LONG, ALL)
    rig.compute([*LONG, 66, 67, 68], MEMORY)
    rig.pass_delay()
    rig.restart()
    assert rig.on_disk() == [2, *[BLOCK] * 3]
    assert rig.look_up([*LONG, 66]).num_tokens == len(LONG)


def test_a_memory_only_block_replaces_its_own_kind() -> None:
    rig = Rig()
    hit = rig.compute(LONG, MEMORY)
    rig.keep(hit.chain, [*LONG, 66])
    assert sorted(map(len, rig.in_memory())) == [3, *[BLOCK] * 3]


def test_blocks_that_both_compute_at_the_same_time_are_written() -> None:
    rig = Rig()
    first, second = Chain(token_array(LONG), policy=MEMORY), Chain(token_array(LONG))
    rig.keep(first, LONG)
    rig.keep(second, LONG)
    rig.pass_delay()
    assert rig.on_disk() == [2, *[BLOCK] * 3]
