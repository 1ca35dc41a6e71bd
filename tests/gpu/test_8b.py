"""On a GPU: an 8B-shaped random model in bf16; cold and restored logits are the same bits."""

from collections.abc import Iterator

import numpy as np
import pytest

from tests.fakes.harness import Harness
from tests.fakes.shapes import random_8b

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    h = Harness(random_8b().model, tmp_path_factory.mktemp("cache"), write_delay_s=0.2)
    yield h
    h.stop()


def prompt(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 150000, length).tolist()


@pytest.mark.parametrize("tier", ["memory", "disk"])
@pytest.mark.parametrize("length", [257, 2048, 4097, 5000])
def test_restored_logits_equal_cold_ones(harness: Harness, length: int, tier: str) -> None:
    tokens = prompt(length, seed=length + len(tier))
    cold = harness.ask(tokens, 8)
    if tier == "disk":
        harness.restart()
    warm = harness.ask(tokens, 8)
    assert warm.cached == length - 1
    assert warm.tokens == cold.tokens
    for a, b in zip(warm.logits, cold.logits, strict=True):
        np.testing.assert_array_equal(a, b)
    assert cold.stats and warm.stats
    print(
        f"\n{tier} {length}: ttft cold {cold.stats.ttft_s:.3f} s, warm {warm.stats.ttft_s:.3f} s"
        f" (load {warm.stats.load_s:.3f}, prefill {warm.stats.prefill_s:.3f})"
    )
