"""Rows that leave the batch for others come back and go on where they were."""

from pathlib import Path

import pytest

from omlx.engine.request import FailureCode, Finished, FinishReason, Prefilled, RequestClass
from omlx.engine.turns import Stage
from tests.fakes import tiny
from tests.fakes.batch import solo
from tests.fakes.cache import Rig
from tests.fakes.loop import NUM_VOCAB, LoopRig, Outcome, assert_as_solo
from tests.fakes.preempting import preempt_at_random

INTERACTIVE, BATCH = RequestClass.INTERACTIVE, RequestClass.BATCH
LONG = [*range(1, 31)]  # several chunks of eight
SHORT = [49, 48, 47]


def computed(outcome: Outcome) -> int:
    """How many prompt tokens were computed for a request, over all its runs."""
    ends = [e.done for e in outcome.events if isinstance(e, Prefilled)]
    starts = [0, *ends]
    return sum(b - a if b > a else b for a, b in zip(starts, ends, strict=False))


@pytest.mark.parametrize("stage", [Stage.PREFILLING, Stage.DECODING])
@pytest.mark.parametrize("has_cache", [True, False])
def test_an_urgent_request_takes_the_place_of_one_with_time(
    stage: Stage, *, has_cache: bool
) -> None:
    rig = LoopRig(cache=Rig() if has_cache else None, max_active=1)
    slow = rig.submit(LONG, 9, request_class=BATCH)
    rig.until_stage(slow, stage)
    for _ in range(2):
        rig.turn()
    quick = rig.submit(SHORT, 3, request_class=INTERACTIVE)
    rig.turn()
    assert rig.stage(slow) is Stage.PREEMPTED
    rig.until(quick)
    assert slow.last is None
    rig.until()
    for outcome in (slow, quick):
        assert_as_solo(outcome)
        assert outcome.kinds.count("Admitted") == outcome.kinds.count("Started") == 1
    if has_cache:
        assert computed(slow) <= len(LONG) + 2, "what was computed is not computed again"
    assert rig.snapshots[-1].preemptions == 1


@pytest.mark.parametrize("num_tokens", range(1, 8))
@pytest.mark.parametrize("ends_by", ["length", "stop"])
def test_a_row_may_end_with_the_token_that_it_takes_along(num_tokens: int, ends_by: str) -> None:
    new, _ = solo(LONG, 9, NUM_VOCAB)
    rig = LoopRig(cache=Rig(), max_active=1)
    stop = [new[num_tokens - 1 : num_tokens + 1]] if ends_by == "stop" else []
    most = num_tokens if ends_by == "length" else 9
    slow = rig.submit(LONG, most, stop, request_class=BATCH)
    rig.until_stage(slow, Stage.DECODING)
    for _ in range(num_tokens - 1):
        rig.turn()
    quick = rig.submit(SHORT, 1, request_class=INTERACTIVE)
    rig.until()
    for outcome in (slow, quick):
        assert_as_solo(outcome)


def test_a_row_that_can_not_be_kept_is_computed_again() -> None:
    cache = Rig()
    rig = LoopRig(cache=cache, max_active=1)
    slow = rig.submit(LONG, 9, request_class=BATCH)
    rig.until_stage(slow, Stage.DECODING)
    rig.turn()
    quick = rig.submit(SHORT, 3, request_class=INTERACTIVE)
    cache.break_the_next_store()
    rig.until()
    for outcome in (slow, quick):
        assert_as_solo(outcome)


def test_a_preempted_request_can_be_aborted() -> None:
    rig = LoopRig(cache=Rig(), max_active=1)
    slow = rig.submit(LONG, 9, request_class=BATCH)
    rig.until_stage(slow, Stage.DECODING)
    quick = rig.submit(SHORT, 9, request_class=INTERACTIVE)
    rig.until_stage(slow, Stage.PREEMPTED)
    rig.abort(slow)
    rig.until()
    assert slow.reason is FinishReason.ABORT
    assert_as_solo(quick)
    assert len(rig.batch) == 0


def test_one_that_shares_a_prefix_takes_over_from_a_leader_that_leaves() -> None:
    rig = LoopRig(cache=Rig(), max_active=2)
    leader = rig.submit(LONG, 5, request_class=BATCH)
    rig.until_stage(leader, Stage.PREFILLING)
    rig.submit([9, 8], 20, request_class=INTERACTIVE)
    rig.turn()
    follower = rig.submit([*LONG, 7], 3, request_class=INTERACTIVE)
    rig.until()
    for outcome in (leader, follower):
        assert_as_solo(outcome)


def test_being_preempted_is_not_an_attempt_that_failed() -> None:
    rig = LoopRig(cache=Rig(), max_active=1)
    slow = rig.submit(LONG, 9, request_class=BATCH)
    for i in range(3):
        rig.until_stage(slow, Stage.DECODING)
        rig.turn()
        rig.until(rig.submit([40 + i], 1, request_class=INTERACTIVE))
    rig.until_stage(slow, Stage.DECODING)
    rig.batch.failures.add(rig.batch.num_steps + 1)
    rig.until()
    assert_as_solo(slow)
    assert slow.code is not FailureCode.ENGINE
    assert isinstance(slow.last, Finished)


@pytest.mark.parametrize("kind", tiny.CONFIGS)
def test_preempted_at_random_steps_gives_the_tokens_of_an_undisturbed_run(
    kind: str, tmp_path: Path
) -> None:
    counts, _, num_ties = preempt_at_random(kind, tmp_path, least=12)
    assert counts[Stage.DECODING] > 0
    assert num_ties <= 1
