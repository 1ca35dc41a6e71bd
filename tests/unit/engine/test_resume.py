"""A request that another engine has begun: it goes on as if nothing had happened."""

import pytest

from omlx.engine.gauge import Gauge, no_cache
from omlx.engine.pulse import Pulse
from omlx.engine.request import FailureCode, FinishReason, SamplingParams
from omlx.engine.sampling import make_sampling
from tests.fakes.batch import solo
from tests.fakes.cache import Rig
from tests.fakes.loop import NUM_VOCAB, LoopRig

LONG = [*range(1, 31)]
ALL, _ = solo(LONG, 12, NUM_VOCAB)


@pytest.mark.parametrize("has_cache", [False, True])
@pytest.mark.parametrize("num_done", range(12))
def test_the_rest_of_the_tokens_comes(num_done: int, *, has_cache: bool) -> None:
    rig = LoopRig(cache=Rig() if has_cache else None)
    outcome = rig.submit(LONG, 12, emitted=tuple(ALL[:num_done]))
    rig.until()
    assert outcome.tokens == ALL[num_done:]
    assert outcome.reason is FinishReason.LENGTH
    assert outcome.last.stats.generated_tokens == 12
    assert outcome.last.stats.prompt_tokens == len(LONG)


def test_a_stop_sequence_may_begin_before_the_death() -> None:
    rig = LoopRig()
    outcome = rig.submit(LONG, 12, [ALL[3:6]], emitted=tuple(ALL[:5]))
    rig.until()
    assert outcome.reason is FinishReason.STOP and outcome.tokens == []


def test_it_starts_from_what_the_first_engine_has_stored() -> None:
    cache = Rig()
    first = LoopRig(cache=cache)
    first.submit(LONG, 8)
    first.until()
    again = first.submit(LONG, 12, emitted=tuple(ALL[:8]))
    first.until()
    assert again.tokens == ALL[8:]
    assert len(first.batch.inserted[-1].prefix) >= len(LONG)


def test_penalties_and_draws_go_on_at_their_place() -> None:
    rig = LoopRig()
    positions: list[int] = []

    def sampling(row):
        positions.append(len(row.emitted))
        return make_sampling(
            SamplingParams(temperature=1.0, seed=1), seed=1, position=0, num_vocab=NUM_VOCAB
        )

    rig.loop._intake._make_sampling = sampling
    rig.submit(LONG, 12, emitted=tuple(ALL[:7]))
    rig.until()
    assert positions == [7]
    assert list(rig.batch.inserted[0].emitted) == ALL[:7]
    assert rig.batch.inserted[0].max_tokens == 5


@pytest.mark.parametrize(
    ("emitted", "message"),
    [(tuple(ALL), "all of its max_tokens"), ((1, NUM_VOCAB), "outside the vocabulary")],
)
def test_what_can_not_go_on_is_refused(emitted: tuple[int, ...], message: str) -> None:
    rig = LoopRig()
    outcome = rig.submit(LONG, 12, emitted=emitted)
    rig.until()
    assert outcome.code is FailureCode.BAD_REQUEST and message in outcome.last.message


def test_the_pulse_says_what_is_taken_up_and_when_a_turn_was() -> None:
    now = [0.0]
    taken: list[str] = []
    pulse = Pulse(taken.append, clock=lambda: now[0])
    rig = LoopRig(max_active=1)
    gauge = Gauge(
        rig.snapshots.append,
        cache_figures=no_cache,
        cache_note="",
        clock=rig._clock,
        pulse=pulse,
    )
    rig.loop._gauge = rig.loop._intake._gauge = gauge
    first, _ = rig.submit(LONG, 3), rig.submit(LONG, 3)
    now[0] = 5.0
    assert pulse.age_s == 5.0
    rig.turn()
    assert taken == [first.request.id] and (pulse.num_turns, pulse.age_s) == (1, 0.0)
    rig.until()
    assert len(taken) == 2
