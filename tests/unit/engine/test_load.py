"""Load or compute: whatever is decided, the answer is the same."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from omlx.cache.cost import LoadCost
from tests.fakes import tiny
from tests.fakes.harness import Harness

PROMPT = np.random.default_rng(3).integers(3, tiny.NUM_VOCAB, 100).tolist()


def cost_of(harness: Harness) -> LoadCost:
    harness.ask([1, 2])  # the model is loaded by then
    assembly = harness.engine._assembly
    assert assembly is not None and assembly.prefix is not None
    return assembly.prefix._tiers.cost


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    model = tiny.build_config(tiny.CONFIGS["llama"])
    harness = Harness(
        model, tmp_path / "cache", block_size=32, prefill_chunk=64, write_delay_s=0.0, load="auto"
    )
    yield harness
    harness.stop()


def test_the_engine_measures_what_it_prefills_and_loads(harness: Harness) -> None:
    cost = cost_of(harness)
    assert (cost.read_bytes_per_s, cost.prefill_tokens_per_s) == (0, 0)
    harness.ask(PROMPT)
    assert cost.prefill_tokens_per_s > 0
    harness.restart()
    cost = cost_of(harness)
    assert harness.ask(PROMPT).cached == len(PROMPT) - 1
    assert cost.read_bytes_per_s > 0


def test_a_slow_disk_beside_a_fast_device_computes_the_same_answer(harness: Harness) -> None:
    first = harness.ask(PROMPT)
    harness.restart()
    loaded = harness.ask(PROMPT)
    assert loaded.cached == len(PROMPT) - 1
    harness.restart()
    cost = cost_of(harness)
    for _ in range(50):
        cost.read(1, 1.0)
        cost.prefilled(10**6, 1.0)
    computed = harness.ask(PROMPT)
    assert computed.cached == 0 and cost.num_skipped == 1
    assert computed.tokens == loaded.tokens == first.tokens
    for a, b in zip(computed.logits, loaded.logits, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)


def test_never_computes_after_a_restart(tmp_path: Path) -> None:
    model = tiny.build_config(tiny.CONFIGS["llama"])
    harness = Harness(model, tmp_path / "cache", block_size=32, write_delay_s=0.0, load="never")
    harness.ask(PROMPT)
    harness.restart()
    assert list((tmp_path / "cache").rglob("*.safetensors"))
    assert harness.ask(PROMPT).cached == 0
    assert harness.ask(PROMPT).cached == len(PROMPT) - 1
    assert harness.stop() == 0
