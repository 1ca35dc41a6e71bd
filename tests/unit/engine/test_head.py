"""The end of the head, system and tools: a model with recurrent layers keeps a snapshot there."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from omlx.cache.policy import StorePolicy
from tests.fakes.harness import Answer, Harness
from tests.unit.engine.test_exact_kinds import B, prompt, start

HEAD = 3 * B + 11  # within a block and within a chunk of two
REPLY = 4
STATES = ["mamba2", "falcon_h1", "qwen3_next"]


def same(warm: Answer, cold: Answer) -> bool:
    """Whether two runs computed the same, to the last bit."""
    return warm.tokens == cold.tokens and all(
        np.array_equal(a, b) for a, b in zip(warm.logits, cold.logits, strict=True)
    )


def conversation(seed: int, length: int = 2 * B + 5) -> list[int]:
    """A prompt that begins with the head."""
    return [*prompt(HEAD), *prompt(length, seed=seed)]


@pytest.fixture
def engines() -> Iterator[list[Harness]]:
    """Engines that end with the test, however it goes."""
    running: list[Harness] = []
    yield running
    for harness in running:
        harness.stop()


@pytest.fixture(params=STATES)
def harness(request: pytest.FixtureRequest, tmp_path: Path, engines: list[Harness]) -> Harness:
    engines.append(start(request.param, tmp_path))
    return engines[0]


def test_another_conversation_hits_exactly_the_head(
    harness: Harness, engines: list[Harness], tmp_path: Path
) -> None:
    harness.ask(conversation(2), REPLY, head=HEAD)
    warm = harness.ask(conversation(3), REPLY, head=HEAD)
    assert (warm.cached, warm.stats.cached_disk) == (HEAD, 0)
    harness.restart()
    warm_from_disk = harness.ask(conversation(4), REPLY, head=HEAD)
    assert (warm_from_disk.cached, warm_from_disk.stats.cached_memory) == (HEAD, 0)
    for answer, seed in ((warm, 3), (warm_from_disk, 4)):
        engines.append(fresh_like(harness, tmp_path / f"{seed}"))
        cold = engines[-1].ask(conversation(seed), REPLY, head=HEAD)
        assert (cold.cached, same(answer, cold)) == (0, True)


def fresh_like(harness: Harness, cache_dir: Path) -> Harness:
    """An engine with the same model and nothing stored."""
    names = ("block_size", "prefill_chunk", "snapshot_interval", "write_delay_s")
    config = {name: getattr(harness.config, name) for name in names}
    return Harness(harness.model._model, cache_dir, **config)


def test_without_a_head_another_conversation_finds_nothing(harness: Harness) -> None:
    harness.ask(conversation(2), REPLY)
    assert harness.ask(conversation(3), REPLY).cached == 0


def test_a_head_of_a_few_tokens_is_not_worth_a_snapshot(harness: Harness) -> None:
    turn = prompt(4 * B)
    harness.ask(turn, 1, head=20)
    assert harness.ask([*turn[:20], *prompt(9, seed=5)], 1, head=20).cached == 0


@pytest.mark.parametrize("head", [2 * B, 4 * B, 6 * B + 3, 6 * B + 4, 9 * B])
def test_a_head_may_end_anywhere(engines: list[Harness], tmp_path: Path, head: int) -> None:
    """At a block's end, at a chunk's, before the last token, at the last, and beyond all."""
    engines.append(h := start("falcon_h1", tmp_path))
    turn = prompt(6 * B + 5)
    cold = h.ask(turn, REPLY, head=head)
    assert cold.failed is None
    warm = h.ask(turn, REPLY, head=head)
    assert warm.cached == len(turn) - 1
    assert same(warm, cold)
    if head < len(turn) - 1:
        assert h.ask([*turn[:head], *prompt(9, seed=7)], 1, head=head).cached == head


def test_the_head_outlives_the_conversation(engines: list[Harness], tmp_path: Path) -> None:
    """Of each conversation only some snapshots stay; that of the head is among them."""
    engines.append(h := start("mamba2", tmp_path, interval=B))
    tokens = conversation(2)
    for turn in range(4):
        answer = h.ask(tokens, REPLY, head=HEAD)
        tokens = [*tokens, *answer.tokens, *prompt(B, seed=20 + turn)]
    h.restart()
    assert h.ask(conversation(3), 1, head=HEAD).cached == HEAD


def test_the_trail_says_what_is_stored_beyond_the_snapshot(harness: Harness) -> None:
    """A model without attention keeps snapshots only, so nothing is known beyond."""
    turn = conversation(2)
    cold = harness.ask(turn, REPLY, head=HEAD)
    first = cold.admitted.trail
    assert (first.shared, first.nearest, first.needs_snapshot) == (0, None, True)
    shared = HEAD + B + 7
    forked = [*turn[:shared], *prompt(B, seed=9)]
    for is_restarted in (False, True):
        if is_restarted:
            harness.restart()
        warm = harness.ask([*forked, 5 + is_restarted], 1, head=HEAD, store=StorePolicy.OFF)
        trail = warm.admitted.trail
        assert warm.cached == HEAD
        has_blocks = harness.engine._assembly.prefix._tiers.codec.has_blocks
        assert trail.shared == (shared if has_blocks else HEAD)
        assert (trail.nearest is not None) == has_blocks
        assert trail.needs_snapshot
