"""Windows are read only as far back as they reach, and what was left out is not taken for there.

The rig's `look_up` compares every restored value with the state of the prefix.
"""

from typing import Any

import mlx.core as mx
import pytest
from mlx_lm.models.cache import ArraysCache

from omlx.cache.block import Chain
from omlx.cache.hashing import token_array
from omlx.cache.leaves import StateLeaf
from omlx.cache.lookup import Hit
from tests.fakes import state
from tests.fakes.cache import BLOCK, Rig

LONG = [*range(1, 23)]  # five full blocks and a tail of two


def stored(window: int) -> Rig:
    """A rig that has computed LONG and knows it from disk only."""
    rig = Rig(window=window)
    rig.compute(LONG)
    rig.restart()
    return rig


def num_without_windows(rig: Rig) -> int:
    return sum(entry.payload.arrays[-1] is None for entry in rig.entries())


@pytest.mark.parametrize(("window", "num_left_out"), [(4, 4), (6, 4), (7, 3), (100, 0)])
def test_a_restore_reads_the_blocks_inside_the_window(window: int, num_left_out: int) -> None:
    rig = stored(window)
    assert rig.look_up([*LONG, 99]).from_disk == len(LONG)
    assert num_without_windows(rig) == num_left_out
    all_bytes = len(LONG) * (state.BYTES_PER_TOKEN + state.WINDOW_BYTES_PER_TOKEN)
    left_out = num_left_out * BLOCK * state.WINDOW_BYTES_PER_TOKEN
    assert rig.memory.used_bytes == all_bytes - left_out
    assert rig.memory.used_bytes == sum(entry.payload.nbytes for entry in rig.entries())


@pytest.mark.parametrize("window", [4, 5, 9, 16])
@pytest.mark.parametrize("first", [5, 14, 22])
def test_every_fork_is_right_after_any_other(first: int, window: int) -> None:
    files = stored(window)
    for fork in range(1, len(LONG) + 1, 2):
        files.start()
        files.look_up([*LONG[:first], 99])
        assert files.look_up([*LONG[:fork], 98]).num_tokens == fork


def test_windows_that_were_left_out_are_read_when_they_are_needed() -> None:
    rig = stored(6)
    rig.look_up([*LONG, 99])
    before = rig.memory.used_bytes
    hit = rig.look_up([*LONG[:12], 99])
    assert (hit.from_memory, hit.from_disk) == (12, 0)
    assert rig.memory.used_bytes == before + 2 * BLOCK * state.WINDOW_BYTES_PER_TOKEN
    assert num_without_windows(rig) == 2
    assert rig.writeback.dirty_bytes == 0


def test_windows_that_are_gone_cut_the_hit_and_the_block_is_stored_again() -> None:
    rig = stored(6)
    chain = rig.look_up([*LONG, 99]).chain
    rig.fs.unlink(rig.file_of(chain, 2))
    fork = [*LONG[:12], 97, 98]
    assert rig.compute(fork).num_tokens == 2 * BLOCK
    assert rig.look_up([*fork, 99]).from_memory == len(fork)
    rig.pass_delay()
    assert rig.file_of(chain, 2) in rig.fs.files()
    assert rig.look_up([*LONG, 99]).num_tokens == len(LONG)


def test_memory_makes_room_for_windows_that_are_read_later() -> None:
    whole = state.BYTES_PER_TOKEN + state.WINDOW_BYTES_PER_TOKEN
    rig = Rig(window=4, memory_bytes=len(LONG) * whole - 4 * BLOCK * state.WINDOW_BYTES_PER_TOKEN)
    rig.compute(LONG)
    rig.restart()
    rig.look_up([*LONG, 99])
    assert rig.memory.used_bytes == rig.memory.budget_bytes
    assert rig.look_up([*LONG[:8], 99]).from_memory == 8
    assert rig.memory.used_bytes <= rig.memory.budget_bytes
    assert len(rig.memory) == 5


def hybrid() -> tuple[Rig, Chain]:
    """A rig with recurrent layers as well, which knows LONG from disk, with two snapshots."""
    rig = Rig(window=6, states=[StateLeaf((2,), 0, 1, (2,), "F32")])
    chain = Chain(token_array(LONG))
    rig.prefix.store(chain, row(LONG), 20)
    rig.prefix.store_tail(chain, row(LONG), 2)
    for position in (12, 22):
        rig.prefix.states.store(chain, row(LONG[:position]), position)
    rig.restart()
    return rig, chain


def row(tokens: list[int]) -> list[Any]:
    recurrent = ArraysCache.from_state(([mx.full((1, 2), float(len(tokens)))], None, None))
    return [*state.caches(tokens, 6), recurrent]


def find(rig: Rig, tokens: list[int]) -> int:
    """How many tokens a look-up finds, whose state must be right."""
    hits: list[Hit] = []
    rig.prefix.look_up(token_array([*tokens, 99]), hits.append)
    rig.settle()
    if hits[0].num_tokens:
        *attention, recurrent = rig.prefix.restore(hits[0])
        assert state.holds(attention, tokens[: hits[0].num_tokens], 6)
        assert recurrent.cache[0].tolist() == [[hits[0].num_tokens] * 2]
    return hits[0].num_tokens


def test_a_model_with_states_reads_its_windows_as_they_are_needed() -> None:
    rig, _ = hybrid()
    assert find(rig, LONG) == 22
    assert num_without_windows(rig) == 4
    assert find(rig, LONG[:12]) == 12
    assert num_without_windows(rig) == 2


def test_a_model_with_states_passes_over_a_snapshot_whose_windows_are_gone() -> None:
    rig, chain = hybrid()
    assert find(rig, LONG) == 22
    rig.fs.unlink(rig.file_of(chain, 2))
    assert find(rig, LONG[:12]) == 0
    assert chain.names[2] not in {entry.key.name for entry in rig.entries()}
