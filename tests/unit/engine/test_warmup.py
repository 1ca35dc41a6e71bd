"""The steps before an engine is ready: every shape, no trace, an end in time, an error that says
what is wrong."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from omlx.engine.admission import Admission, Sizes
from omlx.engine.batch import Batch
from omlx.engine.memory import PeakMeter
from omlx.engine.pacer import Pacer, grains_of
from omlx.engine.request import EngineState, SamplingParams
from omlx.engine.sampling import NOT_FINITE, Sampling, make_sampling
from omlx.engine.solo import SoloBatch
from omlx.engine.warmup import Served, WarmUp, WarmUpFigures, batch_sizes
from omlx.errors import ModelError
from tests.fakes import tiny
from tests.fakes.harness import Harness
from tests.unit.engine.test_solo import quantized

CHUNK = 64
SERVED = Served(4, grains_of(CHUNK), None, tiny.NUM_VOCAB)


class Watched:
    """A model that notes the shapes that it is asked for, and may fail at the n-th call."""

    def __init__(self, model: Any, *, fail_at: int | None = None, error: Exception | None = None):
        self._model = model
        self.shapes: list[tuple[int, int]] = []
        self.fail_at = fail_at
        self.error = error or RuntimeError("[conv] Invalid input array")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        self.shapes.append((inputs.shape[0], inputs.shape[1]))
        if self.fail_at is not None and len(self.shapes) >= self.fail_at:
            raise self.error
        return self._model(inputs, cache=cache)


class Bench:
    """A warm-up and what it tells others."""

    def __init__(self, model: Any, served: Served = SERVED, *, is_solo: bool = False) -> None:
        self.model = Watched(model)
        self.served = served
        self.pacer = Pacer(CHUNK, 0.25)
        self.admission = Admission(Sizes(1000, 10, 0), 10**9)
        self.prefilled: list[tuple[int, float]] = []
        self.now = 0.0
        self.step_s = 0.0
        self.batch: Any = (
            SoloBatch(self.model, prefill_chunk=CHUNK)
            if is_solo
            else Batch(self.model, max_rows=served.max_rows, prefill_chunk=CHUNK)
        )

    def clock(self) -> float:
        self.now += self.step_s
        return self.now

    def run(self, **changed: Any) -> WarmUpFigures:
        def sampling(params: SamplingParams) -> Sampling:
            return make_sampling(params, seed=0, position=0, num_vocab=self.served.num_vocab)

        parts: dict[str, Any] = {
            "make_sampling": sampling,
            "pacer": self.pacer,
            "admission": self.admission,
            "meter": PeakMeter(),
            "prefilled": lambda tokens, seconds: self.prefilled.append((tokens, seconds)),
            "clock": time.monotonic,
            "limit_s": 120.0,
        }
        return WarmUp(self.batch, self.served, **{**parts, **changed}).run()


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny.build()


def test_every_shape_is_run(model: Any) -> None:
    bench = Bench(model)
    figures = bench.run()
    assert figures.is_whole and figures.seconds > 0 and figures.num_steps > 20
    shapes = set(bench.model.shapes)
    assert {(1, 64), (1, 32), (1, 16)} <= shapes, "pieces of every size"
    assert {(1, 1), (2, 1), (4, 1)} <= shapes, "decode steps of every batch size"
    assert bench.model.shapes.count((1, 64)) == 2, "the first one compiles, the second is measured"
    assert len(bench.batch) == 0


def test_it_makes_way_for_a_request_between_steps(model: Any) -> None:
    bench = Bench(model)
    assert bench.run(is_awaited=lambda: True).num_steps == 0, "that one was there first"
    whole = bench.run().num_steps
    waiting = iter([False] * 6)
    figures = bench.run(is_awaited=lambda: next(waiting, True))
    assert not figures.is_whole and 0 < figures.num_steps <= 6 < whole
    assert len(bench.batch) == 0


def test_solo_batch_is_warmed_one_row_at_a_time() -> None:
    bench = Bench(quantized(), replace(SERVED, max_rows=1), is_solo=True)
    assert bench.run().is_whole
    shapes = set(bench.model.shapes)
    assert {(1, 64), (1, 32), (1, 16), (1, 1)} <= shapes
    assert {rows for rows, _ in shapes} == {1}
    assert len(bench.batch) == 0


def test_what_was_measured_is_told(model: Any) -> None:
    bench = Bench(model)
    assert bench.pacer.room(1) == 16, "a quarter of a chunk, before anything is known"
    bench.step_s = 0.001
    bench.run(clock=bench.clock)
    assert [tokens for tokens, _ in bench.prefilled] == [64], "of the second run only"
    assert bench.pacer.room(1) == CHUNK, "so quick a model computes whole chunks"
    before = bench.admission.room([10], CHUNK)
    tight = Admission(Sizes(0, 0, 0), 1)
    bench.admission = tight
    bench.run()
    assert before == CHUNK and tight.room([10], CHUNK) == 16, "the peak of a piece is known"


def test_only_greedy_steps_of_one_row_are_what_a_decode_step_costs(model: Any) -> None:
    told: list[tuple[int, int]] = []

    class Told(Pacer):
        def stepped(self, seconds: float, num_prefilled: int, num_decoded: int) -> None:
            told.append((num_prefilled, num_decoded))

    bench = Bench(model)
    bench.pacer = Told(CHUNK, 0.25)
    bench.run()
    assert told == [(0, 1)] * 3 + [(64, 0)], "four tokens, the first of which is not measured"


def test_no_step_is_begun_after_the_limit(model: Any) -> None:
    bench = Bench(model)
    bench.step_s = 1.0  # each look at the clock takes a second
    figures = bench.run(clock=bench.clock, limit_s=10.0)
    assert not figures.is_whole
    assert 0 < figures.num_steps < 10
    assert len(bench.batch) == 0
    assert Bench(model).run(limit_s=0.0).num_steps == 0


def test_a_step_that_would_take_too_long_is_not_begun(model: Any) -> None:
    bench = Bench(model)

    def slow(tokens: mx.array, cache: Any = None) -> mx.array:
        bench.now += 0.05 * tokens.size  # 20 tokens a second
        return model(tokens, cache=cache)

    bench.model._model = slow
    slow.layers = model.layers  # pyright: ignore
    figures = bench.run(clock=bench.clock, limit_s=5.0)
    assert not figures.is_whole
    assert 2.0 < figures.seconds < 5.5, "what is known of smaller pieces tells of larger ones"
    assert (1, 32) in bench.model.shapes and (1, 64) not in bench.model.shapes
    many = Bench(model, replace(SERVED, max_rows=64))
    many.model._model = slow
    many.run(clock=bench.clock, limit_s=5.0)
    assert max(rows for rows, _ in many.model.shapes) < 64


def test_window_and_memory_bound_the_shapes(model: Any) -> None:
    bench = Bench(model, replace(SERVED, most_tokens=20))
    bench.run()
    assert max(tokens for _, tokens in bench.model.shapes) <= 20
    tight = Bench(model)
    tight.admission = Admission(Sizes(1000, 10, 0), 1000 + 10 * 600)  # one row, and not two
    assert not tight.run().is_whole
    assert max(rows for rows, _ in tight.model.shapes) == 1
    none = Bench(model)
    none.admission = Admission(Sizes(1000, 10, 0), 1000)
    figures = none.run()
    assert (figures.num_steps, figures.is_whole) == (0, False)
    assert none.model.shapes == []


@pytest.mark.parametrize("fail_at", [1, 5, 12, 40])
def test_a_model_that_fails_is_a_load_error(model: Any, fail_at: int) -> None:
    bench = Bench(model)
    bench.model.fail_at = fail_at
    with pytest.raises(ModelError, match=r"can't compute: RuntimeError: \[conv\]") as caught:
        bench.run()
    assert caught.value.hint
    assert len(bench.batch) == 0


def test_memory_that_is_short_ends_it_without_an_error(
    model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(model)
    bench.model.fail_at, bench.model.error = 30, RuntimeError("[malloc] Unable to allocate 9 bytes")
    assert not bench.run().is_whole
    assert "memory is short" in caplog.text
    assert len(bench.batch) == 0


def test_logits_that_are_not_finite_are_said_once(
    model: Any, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(lambda tokens, cache: model(tokens, cache=cache) * mx.nan)
    bench.model._model.layers = model.layers
    assert bench.run().is_whole
    assert caplog.text.count("not finite") == 1
    assert NOT_FINITE == -1


def test_memory_is_given_back(model: Any) -> None:
    Bench(model).run()
    mx.synchronize()
    before = mx.get_active_memory()
    bench = Bench(model)
    bench.run()
    mx.synchronize()
    assert mx.get_active_memory() - before < 100_000


@pytest.mark.parametrize(
    ("most", "sizes"),
    [(1, []), (2, [2]), (3, [2, 3]), (8, [2, 4, 8]), (9, [2, 4, 8, 9])],
)
def test_batch_sizes(most: int, sizes: list[int]) -> None:
    assert batch_sizes(most) == sizes


Start = Callable[..., Harness]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Harness] = []

    def make(name: str, model: Any, **config: Any) -> Harness:
        base = {"prefill_chunk": CHUNK, "block_size": 32}
        started.append(Harness(model, tmp_path / name, **{**base, **config}))
        return started[-1]

    yield make
    for harness in started:
        harness.stop()


def wait_ready(harness: Harness) -> None:
    while harness.engine.state() in (EngineState.STARTING, EngineState.LOADING):
        time.sleep(0.01)


@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "mamba2", "quantized"])
def test_answers_are_the_same_as_without(kind: str, start: Start, tmp_path: Path) -> None:
    model = quantized() if kind == "quantized" else tiny.build(kind)
    prompt = np.random.default_rng(7).integers(3, tiny.NUM_VOCAB, 150).tolist()
    sampled = SamplingParams(temperature=0.9, top_k=40, seed=11)
    mx.random.seed(3)
    state = [np.array(a) for a in mx.random.state]  # pyright: ignore
    seen: list[Any] = []
    for name, warm_up in (("cold", False), ("warm", True)):
        harness = start(name, model, warm_up=warm_up)
        wait_ready(harness)
        assert list((tmp_path / name).rglob("*.safetensors")) == [], "nothing is stored"
        first, again = harness.ask(prompt, 12), harness.ask(prompt, 12)
        drawn = harness.ask(prompt[:90], 12, sampling=sampled)
        seen.append((first, again, drawn))
        snapshot = harness.engine.snapshot()
        assert snapshot is not None
        assert (snapshot.start.warm_up_s > 0) is warm_up
        assert snapshot.finished_requests == 3
        assert snapshot.generated_tokens == 36, "what the warm-up decoded is no request's"
        assert harness.stop() == 0
    for cold, warm in zip(*seen, strict=True):
        assert warm.tokens == cold.tokens
        assert warm.cached == cold.cached
        assert all(np.array_equal(a, b) for a, b in zip(cold.logits, warm.logits, strict=True))
    after = [np.array(a) for a in mx.random.state]  # pyright: ignore
    assert all(np.array_equal(a, b) for a, b in zip(state, after, strict=True))


def test_an_engine_whose_model_fails_says_why_and_ends(start: Start) -> None:
    model = Watched(tiny.build())
    model.fail_at = 4  # harness and codec look at it first
    harness = start("broken", model, warm_up=True)
    wait_ready(harness)
    while harness.engine.state() is not EngineState.FAILED:
        time.sleep(0.01)
    assert "can't compute" in (harness.engine.error() or "")
