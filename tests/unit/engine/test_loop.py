"""The engine loop over a fake batch: every request ends once, with the tokens of a solo run."""

from collections.abc import Callable

import pytest

from omlx.engine.request import (
    EngineRequest,
    FailureCode,
    Finished,
    FinishReason,
    Prefilled,
    SamplingParams,
)
from omlx.engine.turns import Stage
from tests.fakes.batch import solo
from tests.fakes.cache import BLOCK_BYTES, Rig
from tests.fakes.fs import MemoryFileSystem
from tests.fakes.loop import NUM_VOCAB, LoopRig, Outcome, assert_as_solo

LONG = [*range(1, 31)]  # several chunks of eight


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 16, 17, 30])
@pytest.mark.parametrize("has_cache", [True, False])
def test_one_request(length: int, *, has_cache: bool) -> None:
    rig = LoopRig(cache=Rig() if has_cache else None)
    outcome = rig.submit(LONG[:length], 5)
    rig.until()
    assert_as_solo(outcome)
    assert outcome.kinds[0] == "Admitted"
    progress = [(e.done, e.total) for e in outcome.events if isinstance(e, Prefilled)]
    assert progress[-1] == (length, length)
    assert [done for done, _ in progress[:-1]] == [
        *range(8, length - 1, 8),
        *[length - 1][: length > 1],
    ]


def test_a_stop_sequence_ends_and_its_last_token_is_not_delivered() -> None:
    new, _ = solo(LONG, 10, NUM_VOCAB)
    rig = LoopRig()
    outcomes = [rig.submit(LONG, 10, [new[i : i + 1]]) for i in (0, 3)]
    outcomes.append(rig.submit(LONG, 10, [[49, 48, 47], new[2:5]]))
    rig.until()
    for outcome in outcomes:
        assert outcome.reason is FinishReason.STOP
        assert_as_solo(outcome)


def test_a_second_run_takes_the_prompt_from_the_cache() -> None:
    rig = LoopRig(cache=Rig())
    first = rig.submit(LONG, 6)
    rig.until()
    second = rig.submit([*LONG, *first.tokens, 7], 6)
    rig.until()
    assert_as_solo(second)
    assert isinstance(second.last, Finished)
    assert second.last.stats.cached_memory == len(LONG) + 6
    assert rig.batch.inserted[-1].prefix == (*LONG, *first.tokens)


def test_prefill_goes_on_along_the_grid_of_chunks() -> None:
    rig = LoopRig(cache=Rig())
    rig.submit(LONG[:13], 1)
    rig.until()
    rig.submit(LONG, 1)
    rig.until()
    assert [len(s) for s in rig.batch.inserted[-1].segments] == [3, 13, 1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": ()}, "empty"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -3}, "max_tokens"),
        ({"tokens": (1, NUM_VOCAB)}, "vocabulary"),
        ({"tokens": (-1, 1)}, "vocabulary"),
        ({"sampling": SamplingParams(temperature=-1.0)}, "temperature"),
        ({"sampling": SamplingParams(temperature=float("nan"))}, "temperature"),
        ({"sampling": SamplingParams(temperature=float("inf"))}, "temperature"),
        ({"sampling": SamplingParams(top_p=1.5)}, "top_p"),
        ({"sampling": SamplingParams(top_p=-0.1)}, "top_p"),
        ({"sampling": SamplingParams(top_k=-1)}, "top_k"),
        ({"sampling": SamplingParams(min_p=2.0)}, "min_p"),
        ({"sampling": SamplingParams(repetition_penalty=0.0)}, "repetition_penalty"),
        ({"sampling": SamplingParams(repetition_penalty=-1.0)}, "repetition_penalty"),
        ({"sampling": SamplingParams(presence_penalty=float("nan"))}, "presence_penalty"),
        ({"sampling": SamplingParams(frequency_penalty=float("inf"))}, "frequency_penalty"),
    ],
)
def test_a_bad_request_fails_alone_and_at_once(change: dict[str, object], message: str) -> None:
    rig = LoopRig()
    good = rig.submit(LONG)
    fields = {"id": "bad", "tokens": (1, 2), "max_tokens": 1, **change}
    request = EngineRequest(**fields)
    bad = rig.outcomes["bad"] = Outcome(request)
    rig.loop.submit(request)
    rig.turn()
    assert bad.code is FailureCode.BAD_REQUEST
    assert message in bad.last.message
    rig.until()
    assert_as_solo(good)


def test_too_many_requests_are_refused_and_the_others_served_in_order() -> None:
    rig = LoopRig(max_active=2, max_waiting=2)
    outcomes = [rig.submit([i + 1], 2) for i in range(6)]
    rig.turn()
    assert [o.code for o in outcomes] == [None] * 4 + [FailureCode.OVERLOADED] * 2
    rig.until()
    for outcome in outcomes[:4]:
        assert_as_solo(outcome)
    assert [r.row_id for r in rig.batch.inserted] == ["r0", "r1", "r2", "r3"]
    assert rig.batch.most_rows == 2


def test_the_events_of_one_step_come_in_one_call() -> None:
    rig = LoopRig(max_active=4)
    for i in range(3):
        rig.submit([i + 1, i + 2], 4)
    rig.until()
    decoding = [c for c in rig.calls if any(type(e).__name__ == "Token" for e in c)]
    assert len(decoding) == 4
    assert [(type(e).__name__, e.request_id) for e in decoding[0]] == [
        (kind, f"r{i}") for i in range(3) for kind in ("Started", "Token")
    ]
    for call in decoding[1:-1]:
        assert [(type(e).__name__, e.request_id) for e in call] == [
            ("Token", "r0"),
            ("Token", "r1"),
            ("Token", "r2"),
        ]
    assert len(decoding[-1]) == 6


def abort_waiting(rig: LoopRig) -> Outcome:
    for _ in range(3):
        rig.submit(LONG, 9)
    outcome = rig.submit(LONG, 9)
    rig.turn()
    assert rig.stage(outcome) is Stage.WAITING
    return outcome


def abort_loading(rig: LoopRig) -> Outcome:
    outcome = rig.submit(LONG, 9)
    rig.turn(has_io=False)
    assert rig.stage(outcome) is Stage.LOADING
    return outcome


def abort_ready(rig: LoopRig) -> Outcome:
    rig.submit(LONG, 9)
    outcome = rig.submit([*range(30, 49), *LONG], 9)
    rig.until_stage(outcome, Stage.READY)
    return outcome


def abort_prefilling(rig: LoopRig) -> Outcome:
    outcome = rig.submit(LONG, 9)
    rig.until_stage(outcome, Stage.PREFILLING)
    return outcome


def abort_decoding(rig: LoopRig) -> Outcome:
    outcome = rig.submit(LONG, 9)
    rig.until_stage(outcome, Stage.DECODING)
    rig.turn()
    return outcome


@pytest.mark.parametrize(
    "reach", [abort_waiting, abort_loading, abort_ready, abort_prefilling, abort_decoding]
)
def test_abort_in_every_stage(reach: Callable[[LoopRig], Outcome]) -> None:
    rig = LoopRig(cache=Rig())
    aborted = reach(rig)
    tokens = list(aborted.tokens)
    rig.abort(aborted)
    rig.turn()
    assert aborted.reason is FinishReason.ABORT
    assert aborted.tokens == tokens, "nothing more after the abort"
    assert rig.stage(aborted) is None
    again = rig.submit(LONG, 9)
    rig.until()
    for outcome in rig.outcomes.values():
        if outcome is not aborted:
            assert_as_solo(outcome)
    assert again.reason is FinishReason.LENGTH


def test_abort_before_admission_and_of_the_unknown() -> None:
    rig = LoopRig()
    outcome = rig.submit(LONG)
    rig.abort(outcome)
    rig.loop.abort("never heard of")
    rig.turn()
    assert outcome.kinds == ["Finished"]
    assert outcome.reason is FinishReason.ABORT
    rig.abort(outcome)
    rig.turn()
    assert rig.batch.inserted == []


@pytest.mark.parametrize("stage", [Stage.PREFILLING, Stage.DECODING])
def test_an_aborted_row_leaves_what_it_computed_on_disk(stage: Stage) -> None:
    cache = Rig(delay_s=1e9)
    rig = LoopRig(cache=cache)
    outcome = rig.submit(LONG, 9)
    rig.until_stage(outcome, stage)
    rig.turn()
    rig.abort(outcome)
    rig.turn()
    rig.turn()
    cache.start()
    found = cache.look_up([*LONG, *solo(LONG, 9, NUM_VOCAB)[0]]).from_disk
    assert found == {Stage.PREFILLING: 16, Stage.DECODING: len(LONG) + 1}[stage]


def test_stop_aborts_what_is_there() -> None:
    rig = LoopRig(max_active=2)
    outcomes = [rig.submit(LONG, 50) for _ in range(3)]
    rig.turn()
    rig.loop.stop()
    rig.loop.run()
    assert [o.reason for o in outcomes] == [FinishReason.ABORT] * 3


def test_times_follow_the_clock() -> None:
    rig = LoopRig(max_active=1)
    rig.submit([1], 5)
    outcome = rig.submit(LONG[:20], 4)
    rig.until()
    assert isinstance(outcome.last, Finished)
    stats = outcome.last.stats
    assert stats.queue_s == 7.0, "prefill in turn 1, decode in 2 to 6, so admitted in turn 7"
    assert stats.prefill_s == 4.0, (
        "chunks of 8, 8 and 3, the last token, and then the first new one"
    )
    assert stats.decode_s == 3.0
    parts = (stats.queue_s, stats.load_s, stats.restore_s, stats.prefill_s, stats.bookkeeping_s)
    assert stats.ttft_s == sum(parts)


def test_figures_are_published() -> None:
    rig = LoopRig(max_active=2)
    for i in range(4):
        rig.submit([i + 1], 3)
    rig.turn()
    first = rig.snapshots[-1]
    assert (first.waiting, first.prefilling + first.decoding) == (2, 2)
    rig.until()
    rig.turn()
    last = rig.snapshots[-1]
    assert (last.finished_requests, last.failed_requests, last.generated_tokens) == (4, 0, 12)
    assert (last.waiting, last.loading, last.prefilling, last.decoding) == (0, 0, 0, 0)


def test_a_prompt_larger_than_memory_and_disk_together() -> None:
    cache = Rig(memory_bytes=2 * BLOCK_BYTES, max_disk_bytes=0)
    rig = LoopRig(cache=cache)
    for _ in range(2):
        outcome = rig.submit(LONG, 6)
        rig.until()
        assert_as_solo(outcome)
    assert isinstance(outcome.last, Finished)
    assert outcome.last.stats.cached_memory == 8
    assert isinstance(cache.fs, MemoryFileSystem)
    assert cache.block_files() == []
