"""Steps, stores and samplers that fail: rows run again, and only who is to blame is given up."""

import pytest

from omlx.engine.request import FailureCode, FinishReason
from omlx.engine.turns import Stage
from tests.fakes.batch import solo
from tests.fakes.cache import Rig
from tests.fakes.loop import NUM_VOCAB, LoopRig, assert_as_solo

LONG = [*range(1, 31)]  # several chunks of eight


def test_a_step_that_fails_once_runs_its_rows_again() -> None:
    rig = LoopRig(cache=Rig(), max_active=2)
    outcomes = [rig.submit([*LONG, i], 8) for i in range(3)]
    for outcome in outcomes[:2]:
        rig.until_stage(outcome, Stage.DECODING)
    rig.turn()
    rig.batch.failures.add(rig.batch.num_steps + 1)
    rig.turn()
    assert rig.batch.num_resets == 1
    rig.until()
    for outcome in outcomes:
        assert_as_solo(outcome)
        assert outcome.kinds.count("Admitted") == 1
    assert [r.row_id for r in rig.batch.inserted] == ["r0", "r1", "r0", "r1", "r2"]


def test_rows_that_run_again_start_from_what_is_cached() -> None:
    rig = LoopRig(cache=Rig())
    outcome = rig.submit(LONG, 8)
    rig.until_stage(outcome, Stage.DECODING)
    rig.turn()
    rig.batch.failures.add(rig.batch.num_steps + 1)
    rig.until()
    assert_as_solo(outcome)
    assert len(rig.batch.inserted[-1].prefix) >= len(LONG) - 2


@pytest.mark.parametrize("num_done", range(1, 8))
def test_a_step_may_fail_at_any_time(num_done: int) -> None:
    rig = LoopRig(cache=Rig())
    outcomes = [rig.submit(LONG, 3), rig.submit([4, 5], 2, [[solo([4, 5], 1, NUM_VOCAB)[0][0]]])]
    rig.batch.failures.add(num_done)
    rig.until()
    for outcome in outcomes:
        assert_as_solo(outcome)


def test_a_stop_sequence_may_begin_before_the_failure_and_end_after_it() -> None:
    new, _ = solo(LONG, 6, NUM_VOCAB)
    rig = LoopRig()
    outcome = rig.submit(LONG, 20, [new[1:4]])
    while len(outcome.tokens) < 3:
        rig.turn()
    rig.batch.failures.add(rig.batch.num_steps + 1)
    rig.until()
    assert rig.batch.num_resets == 1
    assert outcome.reason is FinishReason.STOP
    assert_as_solo(outcome)


def test_a_request_that_fails_twice_is_given_up_and_others_go_on() -> None:
    rig = LoopRig(max_active=1)
    bad, good = rig.submit(LONG), rig.submit(LONG)
    rig.batch.poison.add(bad.request.id)
    rig.until()
    assert bad.code is FailureCode.CRASH
    assert rig.batch.num_resets == 2
    assert_as_solo(good)


def test_a_request_that_loads_while_others_fail_is_loaded_again_and_announced() -> None:
    rig = LoopRig(cache=Rig())
    first = rig.submit(LONG[:3], 30)
    rig.until_stage(first, Stage.DECODING)
    second = rig.submit(LONG[:5])
    rig.batch.failures.add(rig.batch.num_steps + 1)
    rig.turn(has_io=False)
    assert rig.batch.num_resets == 1
    rig.until()
    for outcome in (first, second):
        assert_as_solo(outcome)
    assert second.kinds[0] == "Admitted"


def test_an_aborted_row_in_a_failing_engine_stays_aborted() -> None:
    rig = LoopRig()
    outcome = rig.submit(LONG, 9)
    rig.until_stage(outcome, Stage.DECODING)
    rig.batch.failures.add(rig.batch.num_steps + 1)
    rig.turn()
    rig.abort(outcome)
    rig.until()
    assert outcome.reason is FinishReason.ABORT


@pytest.mark.parametrize("stop", [False, True])
def test_a_finished_row_is_finished_even_if_it_can_not_be_kept(*, stop: bool) -> None:
    cache = Rig()
    rig = LoopRig(cache=cache)
    new, _ = solo(LONG, 3, NUM_VOCAB)
    other = rig.submit([1, 2, 3, 4], 12)
    outcome = rig.submit(LONG, 3, [new[-1:]] if stop else [])
    while len(outcome.tokens) < 2:
        rig.turn()
    cache.break_the_next_store()
    rig.until()
    assert rig.batch.num_resets == 1
    assert_as_solo(outcome)
    assert_as_solo(other)


def test_an_aborted_row_is_finished_even_if_it_can_not_be_kept() -> None:
    cache = Rig()
    rig = LoopRig(cache=cache)
    other = rig.submit([1, 2, 3, 4], 12)
    outcome = rig.submit(LONG, 9)
    rig.until_stage(outcome, Stage.DECODING)
    rig.turn()
    cache.break_the_next_store()
    rig.abort(outcome)
    rig.until()
    assert outcome.reason is FinishReason.ABORT
    assert_as_solo(other)


def test_a_fault_of_its_own_sampling_ends_one_request() -> None:
    rig = LoopRig()
    bad, good = rig.submit(LONG[:3], 9), rig.submit(LONG[:4], 9)
    rig.until_stage(bad, Stage.DECODING)
    rig.turn()
    rig.batch.faulty.add(bad.request.id)
    rig.until()
    assert bad.code is FailureCode.BAD_REQUEST
    assert "bad sampler" in bad.last.message
    assert_as_solo(good)


def test_stop_ends_well_even_if_a_row_can_not_be_kept() -> None:
    cache = Rig()
    rig = LoopRig(cache=cache)
    outcomes = [rig.submit(LONG, 50) for _ in range(5)]
    for _ in range(8):
        rig.turn()
    cache.break_the_next_store()
    rig.loop.stop()
    late = rig.submit(LONG, 1)
    rig.loop.run()
    assert [o.reason for o in outcomes] == [FinishReason.ABORT] * 5
    assert late.code is FailureCode.ENGINE
    assert cache.prefix.flush(0.0) is False, "what was kept before is there to be written"
