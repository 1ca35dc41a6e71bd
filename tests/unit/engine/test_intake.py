"""Requests that begin alike, at the same time: what they share is computed once."""

from collections.abc import Sequence

import pytest

from omlx.cache.policy import StorePolicy
from omlx.engine.request import FailureCode, Finished, FinishReason, Prefilled
from omlx.engine.turns import Stage
from tests.fakes.blocks import MANY
from tests.fakes.cache import BLOCK, BLOCK_BYTES, Rig
from tests.fakes.loop import LoopRig, Outcome, assert_as_solo

LONG = [*range(1, 42)]  # five chunks of eight and a token
SHORT = [49, 48, 47]


def computed(*outcomes: Outcome) -> list[int]:
    """How many prompt tokens each request had computed for it, or has until now."""
    return [
        max((e.done for e in outcome.events if isinstance(e, Prefilled)), default=0)
        for outcome in outcomes
    ]


def cached(outcome: Outcome) -> int:
    assert isinstance(outcome.last, Finished)
    return outcome.last.stats.cached_memory + outcome.last.stats.cached_disk


@pytest.mark.parametrize(("memory_bytes", "has_disk"), [(MANY, True), (MANY, False), (0, True)])
@pytest.mark.parametrize("num", [2, 4])
def test_duplicates(num: int, memory_bytes: int, *, has_disk: bool) -> None:
    rig = LoopRig(cache=Rig(memory_bytes=memory_bytes, has_disk=has_disk), max_active=4)
    outcomes = [rig.submit(LONG, 4) for _ in range(num)]
    rig.until()
    for outcome in outcomes:
        assert_as_solo(outcome)
    assert computed(*outcomes) == [len(LONG)] + [1] * (num - 1)
    assert [cached(o) for o in outcomes] == [0] + [len(LONG) - 1] * (num - 1)


@pytest.mark.parametrize("num_shared", [BLOCK, 17, 23, 24, 40])
def test_a_shared_prefix_and_another_end(num_shared: int) -> None:
    rig = LoopRig(cache=Rig(), max_active=4)
    ends = [[10 + i] * (5 + i) for i in range(4)]
    outcomes = [rig.submit([*LONG[:num_shared], *end]) for end in ends]
    rig.until()
    for outcome in outcomes:
        assert_as_solo(outcome)
    assert computed(*outcomes) == [num_shared + 5, 6, 7, 8]


def test_without_a_memory_tier_blocks_are_found_before_they_are_written() -> None:
    cache = Rig(memory_bytes=0)
    rig = LoopRig(cache=cache)
    outcomes = [rig.submit(LONG) for _ in range(2)]
    for _ in range(40):
        rig.turn(has_io=False)
        cache.readers.run()
        rig.answer()
    for outcome in outcomes:
        assert_as_solo(outcome)
    assert computed(*outcomes) == [len(LONG), 1]
    assert cache.block_files() == []


def test_a_prompt_that_goes_on_where_another_ends_and_the_reverse() -> None:
    for first, second in ((LONG[:19], LONG), (LONG, LONG[:19])):
        rig = LoopRig(cache=Rig())
        outcomes = [rig.submit(first), rig.submit(second)]
        rig.until()
        for outcome in outcomes:
            assert_as_solo(outcome)
        assert cached(outcomes[1]) == 18


def test_a_follower_waits_for_blocks_and_not_for_the_request() -> None:
    rig = LoopRig(cache=Rig(has_disk=False))
    leader, follower = rig.submit(LONG, 9), rig.submit([*LONG[:10], *SHORT])
    while computed(leader) < [16]:  # this chunk ends the block in which they part
        rig.turn()
        assert rig.stage(follower) is Stage.LOADING
    rig.turn()
    assert rig.stage(follower) is rig.stage(leader) is Stage.PREFILLING
    rig.until()
    assert cached(follower) == 10


def test_later_requests_wait_for_what_a_running_prefill_will_produce() -> None:
    rig = LoopRig(cache=Rig())
    leader = rig.submit(LONG)
    while computed(leader) < [16]:
        rig.turn()
    follower = rig.submit(LONG)
    rig.until()
    assert_as_solo(follower)
    assert computed(leader, follower) == [len(LONG), 1]


def test_the_leader_goes_and_the_next_one_takes_over() -> None:
    """Three of them, one after the other: each computes what the one before had not."""
    rig = LoopRig(cache=Rig(), max_active=4)
    outcomes = [rig.submit(LONG) for _ in range(4)]
    for i, outcome in enumerate(outcomes[:3]):
        while computed(outcome) < [8]:
            rig.turn()
        assert [rig.stage(o) for o in outcomes[i + 1 :]] == [Stage.LOADING] * (3 - i)
        rig.abort(outcome)
    rig.until()
    assert [o.reason for o in outcomes[:3]] == [FinishReason.ABORT] * 3
    assert_as_solo(outcomes[3])
    assert computed(*outcomes) == [8, 8, 8, len(LONG) - 24]


def test_a_follower_that_is_aborted_is_gone_at_once() -> None:
    rig = LoopRig(cache=Rig(), max_active=3)
    leader, first, second = (rig.submit(LONG) for _ in range(3))
    rig.turn()
    rig.turn()
    rig.abort(first)
    rig.turn()
    assert first.reason is FinishReason.ABORT
    assert rig.stage(first) is None
    assert isinstance(first.last, Finished)
    assert (first.last.stats.queue_s, first.last.stats.load_s) == (3.0, 0.0)
    rig.until()
    for outcome in (leader, second):
        assert_as_solo(outcome)
    assert computed(leader, second) == [len(LONG), 1]


def test_the_parts_of_a_followers_time_add_up_and_its_wait_is_in_the_queue() -> None:
    rig = LoopRig(cache=Rig(has_disk=False))
    leader, follower = rig.submit(LONG, 9), rig.submit(LONG, 9)
    rig.until()
    assert isinstance(follower.last, Finished) and isinstance(leader.last, Finished)
    stats = follower.last.stats
    parts = (stats.queue_s, stats.load_s, stats.restore_s, stats.prefill_s, stats.bookkeeping_s)
    assert sum(parts) == stats.ttft_s
    assert stats.load_s == stats.bookkeeping_s == 0.0
    assert stats.queue_s == 6.0, "the leader's five chunks, then its own turn beside the last token"


def test_a_held_request_counts_as_active_and_others_are_served_beside_it() -> None:
    rig = LoopRig(cache=Rig(), max_active=3)
    leader, held, other = rig.submit(LONG), rig.submit(LONG), rig.submit(SHORT)
    waits = rig.submit([7, 8, 9])
    for _ in range(3):
        rig.turn()
    assert rig.stage(held) is Stage.LOADING
    assert rig.stage(waits) is Stage.WAITING
    rig.until()
    for outcome in (leader, held, other, waits):
        assert_as_solo(outcome)


def test_one_that_was_held_keeps_its_place() -> None:
    """One that came later is put in the batch while it is held, but does not end before it."""
    rig = LoopRig(cache=Rig(), max_active=4)
    rig.submit(LONG)
    follower = rig.submit([*LONG, *SHORT, *range(20, 30)], 1)
    stranger = rig.submit([*reversed(LONG)], 1)
    rig.until(follower)
    assert stranger.last is None
    rig.until()


def test_without_a_cache_nobody_waits() -> None:
    rig = LoopRig()
    outcomes = [rig.submit(LONG) for _ in range(2)]
    rig.turn()
    assert [rig.stage(o) for o in outcomes] == [Stage.PREFILLING, Stage.READY]
    rig.until()
    assert computed(*outcomes) == [len(LONG)] * 2


def test_nobody_waits_for_one_that_stores_nothing() -> None:
    rig = LoopRig(cache=Rig(), max_active=3)
    private = rig.submit(LONG, store=StorePolicy.OFF)
    outcomes = [rig.submit(LONG) for _ in range(2)]
    for _ in range(3):
        rig.turn()
    assert [rig.stage(o) for o in (private, *outcomes)] == [
        Stage.PREFILLING,
        Stage.READY,
        Stage.LOADING,
    ]
    rig.until()
    assert computed(private, *outcomes) == [len(LONG), len(LONG), 1]


@pytest.mark.parametrize("blocks", [0, 1, 3])
def test_blocks_that_are_lost_are_computed_again(blocks: int) -> None:
    rig = LoopRig(cache=Rig(memory_bytes=blocks * BLOCK_BYTES, has_disk=False), max_active=4)
    outcomes = [rig.submit(LONG) for _ in range(3)]
    rig.until()
    for outcome in outcomes:
        assert_as_solo(outcome)
    assert computed(*outcomes) == [len(LONG), *[len(LONG) - blocks * BLOCK] * 2]


def test_two_families_at_once() -> None:
    rig = LoopRig(cache=Rig(), max_active=8, max_waiting=8)
    families: Sequence[Sequence[int]] = (LONG, [*reversed(LONG)])
    outcomes = [rig.submit([*families[i % 2], i + 1]) for i in range(8)]
    rig.until()
    for outcome in outcomes:
        assert_as_solo(outcome)
    assert computed(*outcomes) == [len(LONG) + 1] * 2 + [1] * 6


def test_three_generations() -> None:
    """The second shares more with the third than with the first."""
    rig = LoopRig(cache=Rig(), max_active=4)
    second = [*LONG[:20], *range(30, 49)]
    outcomes = [rig.submit(LONG), rig.submit(second), rig.submit([*second[:30], *SHORT])]
    rig.until()
    for outcome in outcomes:
        assert_as_solo(outcome)
    assert computed(*outcomes) == [len(LONG), len(second) - 20, 3]


def test_a_leader_whose_step_fails_runs_again() -> None:
    rig = LoopRig(cache=Rig(), max_active=3)
    outcomes = [rig.submit(LONG) for _ in range(3)]
    while computed(outcomes[0]) < [24]:
        rig.turn()
    rig.batch.failures.add(rig.batch.num_steps + 1)
    rig.until()
    assert rig.batch.num_resets == 1
    for outcome in outcomes:
        assert_as_solo(outcome)
    prefixes = sorted(len(row.prefix) for row in rig.batch.inserted)
    assert prefixes == [0, 24, 40, 40]


@pytest.mark.parametrize("tokens", [LONG, LONG[::-1]])
def test_one_that_kills_every_step_takes_nobody_with_it_who_waits(tokens: list[int]) -> None:
    """Neither for what it computes nor for its turn."""
    rig = LoopRig(cache=Rig(), max_active=3)
    bad, *others = (rig.submit(t) for t in (LONG, tokens, tokens))
    rig.batch.poison.add(bad.request.id)
    rig.until()
    assert bad.code is FailureCode.CRASH
    for outcome in others:
        assert_as_solo(outcome)


def test_a_leader_with_a_fault_of_its_own_leaves_its_blocks() -> None:
    rig = LoopRig(cache=Rig())
    bad, good = rig.submit(LONG), rig.submit(LONG)
    rig.batch.faulty.add(bad.request.id)
    rig.until()
    assert bad.code is FailureCode.BAD_REQUEST
    assert_as_solo(good)
    assert computed(good) == [1]


def test_stop_ends_those_that_are_held() -> None:
    rig = LoopRig(cache=Rig(), max_active=3)
    outcomes = [rig.submit(LONG) for _ in range(3)]
    rig.turn()
    rig.turn()
    rig.loop.stop()
    rig.loop.run()
    assert [o.reason for o in outcomes] == [FinishReason.ABORT] * 3
