"""Cases M6 and M14 on a real engine: allocations that fail, and a limit that requests wait for."""

from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from omlx.engine.request import FailureCode, FinishReason
from tests.fakes import tiny
from tests.fakes.harness import Harness

CHUNK = 128


class Failing:
    """A model whose steps of more than `most` tokens find no memory; `times` is how often."""

    def __init__(self, most: int, times: int = 10**9) -> None:
        self._model = tiny.build()
        self.most = most
        self.times = times
        self.num_failures = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        if inputs.shape[1] > self.most and self.num_failures < self.times:
            self.num_failures += 1
            raise RuntimeError("[malloc] Unable to allocate 1000000 bytes.")
        return self._model(inputs, cache=cache)


def prompt(length: int, seed: int = 1) -> list[int]:
    return np.random.default_rng(seed).integers(3, tiny.NUM_VOCAB, length).tolist()


@pytest.mark.parametrize("most", [16, 32, 64])
def test_m14_a_prefill_goes_on_in_smaller_steps(most: int, tmp_path: Path) -> None:
    calm = Harness(tiny.build(), tmp_path / "a", block_size=64, prefill_chunk=CHUNK)
    expected = calm.ask(prompt(700), 8)
    calm.stop()
    model = Failing(most)
    harness = Harness(model, tmp_path / "b", block_size=64, prefill_chunk=CHUNK)
    answer = harness.ask(prompt(700), 8)
    assert answer.failed is None
    assert answer.tokens == expected.tokens
    assert 0 < model.num_failures <= 4
    assert harness.stop() == 0


def test_m14_one_request_ends_and_the_next_is_served(tmp_path: Path) -> None:
    model = Failing(1)
    harness = Harness(model, tmp_path, block_size=64, prefill_chunk=CHUNK)
    answer = harness.ask(prompt(300), 8)
    assert answer.failed is not None
    assert answer.failed.code is FailureCode.ENGINE
    assert "memory" in answer.failed.message
    model.times = 0
    for _ in range(3):
        assert harness.ask(prompt(300), 8).reason is FinishReason.LENGTH
    assert harness.stop() == 0


def test_m14_a_limit_of_one_at_a_time(tmp_path: Path) -> None:
    """A row needs 3 MB, and as much while it joins; requests wait, and the largest is refused."""
    options = {"block_size": 64, "prefill_chunk": CHUNK, "memory_bytes": 1_000_000}
    harness = Harness(tiny.build(), tmp_path, memory_limit=8_000_000, **options)
    names = [harness.submit(prompt(300, seed), 8) for seed in range(4)]
    answers = harness.collect(*names)
    assert [answers[name].reason for name in names] == [FinishReason.LENGTH] * 4
    refused = harness.ask(prompt(4000), 8)
    assert refused.failed is not None and refused.failed.code is FailureCode.BAD_REQUEST
    assert "`engine.memory_limit`" in refused.failed.message
    assert harness.stop() == 0


@pytest.mark.timeout(300)  # fifty requests, on a machine that may be busy
def test_m6_after_a_big_request_the_same_one_fifty_times(tmp_path: Path) -> None:
    options = {"block_size": 64, "prefill_chunk": CHUNK, "memory_limit": 24_000_000}
    harness = Harness(tiny.build(), tmp_path, cache_enabled=False, **options)
    assert harness.ask(prompt(700), 2).reason is FinishReason.LENGTH
    for _ in range(50):
        assert harness.ask(prompt(700), 1).reason is FinishReason.LENGTH
    assert harness.stop() == 0
