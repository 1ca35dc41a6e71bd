"""Case D2: answers that repeat themselves without end, and such as may repeat."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.engine.repetition import Repetition
from omlx.engine.request import Finished, FinishReason
from tests.fakes.cache import Rig
from tests.fakes.loop import NUM_VOCAB, LoopRig, assert_as_solo

MOST = 200


def ends_at(tokens: list[int], most: int = MOST) -> int | None:
    """After how many tokens the guard ends an answer; None if it lets it pass."""
    guard = Repetition(most)
    return next((i + 1 for i, token in enumerate(tokens) if guard.add(token)), None)


@pytest.mark.parametrize("period", [1, 7, 40, 64])
def test_d2_a_loop_ends_after_so_many_tokens(period: int) -> None:
    start = [*range(1000, 1100)]
    assert ends_at([*start, *[*range(period)] * 500]) == len(start) + MOST


def test_d2_off_is_off() -> None:
    assert ends_at([5] * 10_000, most=0) is None


@pytest.mark.parametrize(
    "tokens",
    [
        [1, *[7] * (MOST - 1), 2] * 5,  # a rule of a table, a row of zeros
        [t for row in range(300) for t in (1, 2, 3, 4, 1000 + row, 5)],  # rows that differ
        [*range(65)] * 30,  # a longer round than is looked for
        [(i * i) % 997 for i in range(5000)],
    ],
)
def test_d2_what_may_repeat_passes(tokens: list[int]) -> None:
    assert ends_at(tokens) is None


@given(st.lists(st.integers(0, 3), max_size=120), st.integers(4, 30))
def test_d2_it_ends_where_a_naive_search_does(tokens: list[int], most: int) -> None:
    def is_loop(end: int) -> bool:
        part = tokens[max(0, end - most) : end]
        return len(part) == most and any(
            part[period:] == part[:-period] for period in range(1, min(64, most // 2) + 1)
        )

    naive = next((end for end in range(1, len(tokens) + 1) if is_loop(end)), None)
    assert ends_at(tokens, most) == naive


def test_d2_the_engine_ends_it_says_so_and_keeps_no_tail() -> None:
    cache = Rig()
    rig = LoopRig(cache=cache)
    rig.batch.num_vocab = 1  # it says the same token over and over
    outcome = rig.submit([*range(1, 12)], 500, repetition_guard=30)
    rig.until()
    assert outcome.reason is FinishReason.REPETITION
    assert outcome.tokens == [0] * 30
    assert isinstance(outcome.last, Finished)
    assert len(rig.batch) == 0
    found = cache.look_up([*range(1, 12), *[0] * 40])
    num_found = found.from_memory + found.from_disk
    assert num_found == 11 + 30 - (11 + 30) % cache.block_size, "full blocks, no tail"
    rig.batch.num_vocab = NUM_VOCAB
    again = rig.submit([*range(1, 12)], 5, repetition_guard=30)
    rig.until()
    assert_as_solo(again)
