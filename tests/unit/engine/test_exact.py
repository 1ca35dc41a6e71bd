"""Hits are exact to the token, and restored state gives the logits of an unbroken run."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.fakes import tiny
from tests.fakes.harness import Answer, Harness

B = 64  # block size; the prefill chunk is two of them


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[Harness]:
    h = Harness(tiny.build(), tmp_path / "cache", block_size=B, prefill_chunk=2 * B)
    yield h
    h.stop()


def prompt(length: int, seed: int = 1) -> list[int]:
    return np.random.default_rng(seed).integers(3, tiny.NUM_VOCAB, length).tolist()


def assert_same(warm: Answer, cold: Answer) -> None:
    assert warm.tokens == cold.tokens
    assert len(warm.logits) == len(cold.logits)
    for a, b in zip(warm.logits, cold.logits, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("length", [2, B - 1, B, B + 1, 2 * B - 1, 2 * B, 2 * B + 1, 5 * B + 7])
@pytest.mark.parametrize("tier", ["memory", "disk"])
def test_a_repeat_needs_one_token(harness: Harness, length: int, tier: str) -> None:
    cold = harness.ask(prompt(length))
    assert cold.cached == 0
    if tier == "disk":
        harness.restart()
    warm = harness.ask(prompt(length))
    assert warm.stats is not None
    assert warm.cached == length - 1
    assert (warm.stats.cached_disk if tier == "disk" else warm.stats.cached_memory) == length - 1
    assert_same(warm, cold)


@pytest.mark.parametrize("fork", [1, B - 1, B, B + 1, 3 * B - 1, 3 * B, 3 * B + 20])
@pytest.mark.parametrize("tier", ["memory", "disk"])
def test_a_fork_shares_exactly_the_common_prefix(harness: Harness, fork: int, tier: str) -> None:
    first = prompt(4 * B + 10)
    second = [*first[:fork], *(t + 1 if t + 1 < tiny.NUM_VOCAB else 3 for t in first[fork:])]
    harness.ask(first)
    if tier == "disk":
        harness.restart()
    assert harness.ask(second).cached == fork


def test_a_conversation_reuses_the_reply(harness: Harness) -> None:
    turn = prompt(2 * B + 5)
    first = harness.ask(turn, 20)
    turn2 = [*turn, *first.tokens, *prompt(9, seed=2)]
    second = harness.ask(turn2, 20)
    assert second.cached == len(turn) + len(first.tokens)
    harness.restart()
    third = [*turn2, *second.tokens, 7, 8]
    assert harness.ask(third).cached == len(turn2) + len(second.tokens)


def test_the_unaligned_rest_after_a_hit_gives_the_logits_of_the_same_chunks(
    harness: Harness, tmp_path: Path
) -> None:
    """A hit of 2B+9 tokens, then the rest: the same as an unbroken run cut there."""
    shared, full = prompt(2 * B + 9), prompt(2 * B + 9) + prompt(3 * B, seed=3)
    harness.ask(shared, 1)
    warm = harness.ask(full)
    # One generated token followed the shared part, so its tail is one longer than the prompt.
    assert warm.cached == len(shared)
    reference = unbroken(harness, full, cuts=[2 * B, 2 * B + 8, 2 * B + 9])
    np.testing.assert_array_equal(warm.logits[0], reference)


def unbroken(harness: Harness, tokens: list[int], cuts: list[int]) -> np.ndarray:
    """The logits after `tokens` from one live cache that was fed in the engine's chunks."""
    import mlx.core as mx
    from mlx_lm.models.cache import BatchKVCache

    model = harness.model
    caches = [BatchKVCache([0]) for _ in model.layers]
    last = len(tokens) - 1
    grid = [c for c in range(0, last, 2 * B) if c > cuts[-1]]
    edges = [0, *cuts, *grid, last, last + 1]
    logits = None
    for a, b in zip(edges, edges[1:], strict=False):
        logits = model(mx.array([tokens[a:b]]), cache=caches)
        mx.eval(logits, [c.state for c in caches])
    assert logits is not None
    return np.array(logits)[0, -1]


@pytest.mark.parametrize("spoil", ["swap", "element", "drop"])
def test_the_comparison_would_notice_a_wrong_block(harness: Harness, spoil: str) -> None:
    """Negative control: corrupt what is in memory and see the logits differ."""
    import mlx.core as mx

    cold = harness.ask(prompt(4 * B))
    assembly = harness.engine._assembly
    assert assembly is not None and assembly.prefix is not None
    entries = list(assembly.prefix._memory._entries.values())
    first, second = [e for e in entries if e.key.count == B][:2]
    if spoil == "swap":
        first.payload, second.payload = second.payload, first.payload
    elif spoil == "element":
        arrays = [mx.array(a) for a in first.payload.arrays]
        arrays[0][0, 0, 0, 0] += 0.01
        mx.eval(arrays)
        first.payload = type(first.payload)(B, tuple(arrays))
    else:
        zero = tuple(mx.zeros_like(a) for a in first.payload.arrays)
        mx.eval(zero)
        first.payload = type(first.payload)(B, zero)
    warm = harness.ask(prompt(4 * B))
    assert warm.cached == 4 * B - 1
    assert not np.array_equal(warm.logits[0], cold.logits[0])
