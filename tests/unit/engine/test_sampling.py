"""Sampling: seeded draws that no neighbour changes, known filters, faults that stay at home."""

import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from omlx.engine.request import FailureCode, FinishReason, SamplingParams
from omlx.engine.row import Row
from omlx.engine.sampling import NOT_FINITE, Fault, Sampling, _guard_sampler, greedy, make_sampling
from tests.fakes import tiny
from tests.fakes.harness import Harness

PROBABILITIES = [0.05, 0.4, 0.1, 0.25, 0.02, 0.15, 0.02, 0.01]
LOGPROBS = mx.log(mx.array([PROBABILITIES]))
NUM_VOCAB = len(PROBABILITIES)


def sampling(*, seed: int = 1, position: int = 0, **params: float) -> Sampling:
    asked = SamplingParams(**{"temperature": 1.0, **params})
    return make_sampling(asked, seed=seed, position=position, num_vocab=NUM_VOCAB)


def draws(count: int, logprobs: mx.array = LOGPROBS, **params: float) -> list[int]:
    chosen = sampling(**params)
    result = [int(chosen.sampler(logprobs).item()) for _ in range(count)]
    assert chosen.fault.message is None
    return result


def many(count: int, **params: float) -> list[int]:
    """So many independent draws, all in one call."""
    chosen = sampling(**params)
    result = chosen.sampler(mx.repeat(LOGPROBS, count, axis=0)).tolist()
    assert chosen.fault.message is None
    return result


def test_draws_follow_the_distribution() -> None:
    at_once, in_turn = Counter(many(4000)), Counter(draws(400))
    for token, p in enumerate(PROBABILITIES):
        assert abs(at_once[token] / 4000 - p) < 0.03
        assert abs(in_turn[token] / 400 - p) < 0.08


def test_temperature_sharpens_and_flattens() -> None:
    weights = np.array(PROBABILITIES)
    for temperature in (0.5, 2.0):
        expected = weights ** (1 / temperature) / (weights ** (1 / temperature)).sum()
        share = Counter(many(4000, temperature=temperature))[1] / 4000
        assert abs(share - expected[1]) < 0.03


@pytest.mark.parametrize(
    ("params", "allowed"),
    [
        ({"top_k": 1}, {1}),
        ({"top_k": 3}, {1, 3, 5}),
        ({"top_k": 8}, set(range(8))),
        ({"top_k": 1000}, set(range(8))),
        ({"top_p": 0.3}, {1}),
        ({"top_p": 0.5}, {1, 3}),
        ({"top_p": 0.79}, {1, 3, 5}),
        ({"top_p": 0.0}, {1}),
        ({"min_p": 0.3}, {1, 3, 5}),
        ({"min_p": 0.9}, {1}),
        ({"top_k": 3, "top_p": 0.6}, {1, 3}),
        ({"top_p": 0.99, "min_p": 0.2}, {1, 2, 3, 5}),
    ],
)
def test_filters_leave_what_they_should(params: dict[str, float], allowed: set[int]) -> None:
    assert set(many(2000, **params)) == allowed


@pytest.mark.parametrize("temperature", [1e-300, 1e-8, 1e-4, 0.01])
@pytest.mark.parametrize("params", [{}, {"top_p": 0.9}, {"min_p": 0.1}, {"top_k": 4}])
def test_very_low_temperatures_take_the_best(temperature: float, params: dict[str, float]) -> None:
    """Nothing may underflow, also where no token is probable."""
    flat = mx.log(mx.array([[0.2, 0.3] + [0.5 / 510] * 510]))
    asked = SamplingParams(temperature=temperature, **params)
    chosen = make_sampling(asked, seed=3, position=0, num_vocab=512)
    assert [int(chosen.sampler(flat).item()) for _ in range(2)] == [1, 1]


def test_the_same_seed_gives_the_same_draws() -> None:
    assert draws(30, seed=7) == draws(30, seed=7)
    assert draws(30, seed=7) != draws(30, seed=8)
    assert make_draws(SamplingParams(temperature=1.0, seed=5), seed=1) == make_draws(
        SamplingParams(temperature=1.0, seed=5), seed=2
    ), "the request's seed goes before the row's"


def make_draws(params: SamplingParams, seed: int) -> list[int]:
    chosen = make_sampling(params, seed=seed, position=0, num_vocab=NUM_VOCAB)
    return [int(chosen.sampler(LOGPROBS).item()) for _ in range(30)]


@pytest.mark.parametrize("seed", [0, -1, 2**31, 2**63 - 1, 2**64, 10**30])
def test_any_whole_number_is_a_seed(seed: int) -> None:
    assert len(set(make_draws(SamplingParams(temperature=1.0, seed=seed), 0))) > 1


@pytest.mark.parametrize("position", [1, 7, 20])
def test_a_row_that_runs_again_draws_as_if_it_had_not_stopped(position: int) -> None:
    assert draws(30 - position, seed=7, position=position) == draws(30, seed=7)[position:]


def test_a_last_bit_of_the_logits_does_not_change_a_draw() -> None:
    """A row that goes on in another process or beside other rows has logits that differ so."""
    mx.random.seed(0)
    logits = mx.random.normal((1, 16384))
    noise = mx.where(mx.arange(16384) < 8192, 4e-5, 0.0)
    params = SamplingParams(temperature=1.0, seed=5)
    plain, moved = (make_sampling(params, seed=1, position=0, num_vocab=16384) for _ in range(2))
    first, second = [], []
    for _ in range(200):
        first.append(plain.sampler(logits))
        second.append(moved.sampler(logits + noise))
    assert mx.array_equal(mx.concatenate(first), mx.concatenate(second))


def test_draws_of_one_seed_do_not_repeat_those_of_the_next() -> None:
    """Position and seed are mixed, not added."""
    assert draws(20, seed=7)[1:] != draws(19, seed=8)
    assert draws(20, seed=7)[2:] != draws(18, seed=8)


def test_greedy_rows_share_one_sampler_so_that_a_batch_of_them_is_one_call() -> None:
    first, second = sampling(temperature=0.0, seed=1), sampling(temperature=0.0, seed=2)
    assert first.sampler is second.sampler is greedy
    assert first.processors == ()


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"repetition_penalty": 2.0}, [2.0, 1.0, -4.0, 2.0]),
        ({"presence_penalty": 0.5}, [2.0, 1.5, -2.5, 2.0]),
        ({"frequency_penalty": 0.5}, [2.0, 1.0, -2.5, 2.0]),
        ({"repetition_penalty": 2.0, "presence_penalty": 0.5}, [2.0, 0.5, -4.5, 2.0]),
        ({"repetition_penalty": 1.0}, [2.0, 2.0, -2.0, 2.0]),
    ],
)
def test_penalties_reach_the_tokens_seen_so_far(
    params: dict[str, float], expected: list[float]
) -> None:
    logits = mx.array([[2.0, 2.0, -2.0, 2.0]])
    for processor in sampling(**params).processors:
        logits = processor(mx.array([1, 2, 1]), logits)
    assert logits.tolist() == [expected]


NAN, INF = math.nan, math.inf
SAMPLERS = [
    {"temperature": 0.0},
    {},
    {"top_k": 2},
    {"top_p": 0.5},
    {"min_p": 0.1},
    {"temperature": 1e-6},
]


def sampled(logits: list[list[float]], params: dict[str, float]) -> mx.array:
    rows = mx.array(logits)
    return sampling(**params).sampler(rows - mx.logsumexp(rows, axis=-1, keepdims=True))


@pytest.mark.parametrize("params", SAMPLERS)
def test_logits_that_are_not_finite_give_no_token(params: dict[str, float]) -> None:
    good, mask = [0.0, 80.0, 0.0], [-INF, 0.0, -INF]
    bad = [[NAN, 1.0, 2.0], [1.0, 2.0, NAN], [NAN] * 3, [1.0, INF, 2.0], [INF] * 3, [-INF] * 3]
    tokens = sampled([good, *bad, mask], params)
    assert tokens.tolist() == [1, *[NOT_FINITE] * len(bad), 1]


@pytest.mark.parametrize("params", SAMPLERS)
def test_every_sampler_gives_the_type_of_the_sentinel(params: dict[str, float]) -> None:
    """Rows with different samplers are joined in one array, whose type must not change."""
    assert sampled([[1.0, 2.0, 3.0]], params).dtype == mx.int32


def run_step(chosen: Sampling, logits: mx.array) -> mx.array:
    for processor in chosen.processors:
        logits = processor(mx.array([1, 2, 1]), logits)
    return chosen.sampler(logits - mx.logsumexp(logits, axis=-1, keepdims=True))


@pytest.mark.parametrize("is_models_fault", [True, False])
def test_penalties_that_overflow_are_told_from_a_broken_model(*, is_models_fault: bool) -> None:
    """The step after the one that is judged has been launched, and must not be looked at."""
    chosen = sampling(temperature=0.0, repetition_penalty=1e5)
    good, broken = [2.0, 2.0, -2.0, 2.0], [2.0, 2.0, NAN, 2.0]
    overflowing = [-INF, -2.0, -2.0, -INF]  # the penalty multiplies what is below 0
    judged, later = (broken, good) if is_models_fault else (overflowing, broken)
    assert run_step(chosen, mx.array([good], dtype=mx.float16)).tolist() == [0]
    assert run_step(chosen, mx.array([judged], dtype=mx.float16)).tolist() == [NOT_FINITE]
    run_step(chosen, mx.array([later], dtype=mx.float16))
    chosen.blame()
    assert (chosen.fault.message is None) == is_models_fault
    if not is_models_fault:
        assert chosen.fault.message is not None and "penalties" in chosen.fault.message


def test_a_row_without_processors_is_never_blamed() -> None:
    chosen = sampling(temperature=0.0)
    run_step(chosen, mx.full((1, 4), NAN))
    chosen.blame()
    assert chosen.fault.message is None


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    path: Path = tmp_path_factory.mktemp("sampling")
    model = tiny.build_config({**tiny.CONFIGS["llama"], "num_hidden_layers": 2})
    h = Harness(model, path, block_size=64, prefill_chunk=128, max_active=8)
    yield h
    h.stop()


PROMPT = list(range(10, 40))


def test_a_seeded_request_is_not_changed_by_its_neighbours(harness: Harness) -> None:
    params = SamplingParams(temperature=1.0, seed=42, top_p=0.9)
    alone = harness.ask(PROMPT, 20, sampling=params)
    beside = [
        harness.submit([*PROMPT, i], 30, sampling=SamplingParams(temperature=t, seed=i))
        for i, t in enumerate([0.0, 1.0, 1.3, 0.0])
    ]
    again = harness.submit(PROMPT, 20, sampling=params)
    answers = harness.collect(*beside, again)
    assert answers[again].tokens == alone.tokens
    assert answers[beside[1]].tokens != alone.tokens


def test_without_a_seed_two_runs_differ(harness: Harness) -> None:
    params = SamplingParams(temperature=1.0)
    first = harness.ask(PROMPT, 20, sampling=params)
    assert harness.ask(PROMPT, 20, sampling=params).tokens != first.tokens


def test_a_presence_penalty_keeps_greedy_text_from_repeating(harness: Harness) -> None:
    params = SamplingParams(presence_penalty=1000.0)
    tokens = harness.ask(PROMPT, 40, sampling=params).tokens
    assert len({*PROMPT, *tokens}) == len(PROMPT) + 40


@pytest.mark.parametrize("part", ["sampler", "processor"])
def test_what_raises_ends_its_own_request_only(harness: Harness, part: str) -> None:
    """It raises at its third token, in the middle of a batch."""
    params = SamplingParams(temperature=1.0, seed=1)
    alone = harness.ask(PROMPT, 12, sampling=params)
    assembly = harness.engine._assembly
    assert assembly is not None
    original = assembly.loop._intake._make_sampling

    def make(row: Row) -> Sampling:
        if row.request.max_tokens != 11:
            return original(row)
        calls: list[int] = []

        def raises(tokens: mx.array, logits: mx.array) -> mx.array:
            calls.append(1)
            if len(calls) == 3:
                raise ValueError("no such logit")
            return logits if part == "processor" else mx.argmax(logits, axis=-1)

        if part == "processor":
            return make_sampling(
                row.request.sampling, seed=1, position=0, num_vocab=512, extra=[raises]
            )
        fault = Fault()
        return Sampling(
            _guard_sampler(lambda logprobs: raises(logprobs, logprobs), fault), (), fault
        )

    assembly.loop._intake._make_sampling = make
    try:
        bad = harness.submit([*PROMPT, 5], 11, sampling=params)
        good = harness.submit(PROMPT, 12, sampling=params)
        answers = harness.collect(bad, good)
    finally:
        assembly.loop._intake._make_sampling = original
    failed = answers[bad].failed
    assert failed is not None and failed.code is FailureCode.BAD_REQUEST
    assert "no such logit" in failed.message
    assert len(answers[bad].tokens) <= 2
    assert answers[good].tokens == alone.tokens
    assert answers[good].reason is FinishReason.LENGTH
