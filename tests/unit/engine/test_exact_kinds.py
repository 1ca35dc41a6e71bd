"""Every kind of layer cache: what was restored goes on as what was never stored.

The reference of a conversation is one live cache that took the same pieces as the engine; repeats
are compared with the cold run. All in fp32, and bit for bit.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import make_prompt_cache

from tests.fakes import tiny
from tests.fakes.harness import Answer, Harness

B = 32  # block size; the prefill chunk is two of them
STATES = ["qwen3_next", "mamba2", "falcon_h1", "lfm2"]
CUTTABLE = ["llama", "qwen3", "qwen3_moe", "gemma3_text", "gpt_oss", "deepseek_v3"]
REPLY = 5


def start(name: str, path: Path, *, interval: int = 4096, **config: Any) -> Harness:
    model = tiny.build_config({**tiny.CONFIGS[name], **config})
    return Harness(
        model,
        path / "cache",
        block_size=B,
        prefill_chunk=2 * B,
        snapshot_interval=interval,
        write_delay_s=0.0,
    )


@pytest.fixture(params=[*CUTTABLE, *STATES])
def harness(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Harness]:
    h = start(request.param, tmp_path)
    yield h
    h.stop()


def prompt(length: int, seed: int = 1) -> list[int]:
    return np.random.default_rng(seed).integers(3, tiny.NUM_VOCAB, length).tolist()


def assert_same(warm: Answer, cold: Answer) -> None:
    assert warm.failed is None and cold.failed is None
    assert warm.tokens == cold.tokens
    assert len(warm.logits) == len(cold.logits)
    for a, b in zip(warm.logits, cold.logits, strict=True):
        np.testing.assert_array_equal(a, b)


def merged(cache: Any) -> Any:
    return type(cache).merge([cache])


class Unbroken:
    """One live cache, prefilled alone and decoded in a batch of one, as the engine does."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.caches = make_prompt_cache(model)
        self.done = 0

    def prefill(self, tokens: Sequence[int]) -> None:
        """All but the last of `tokens`, on the grid of chunks."""
        last = len(tokens) - 1
        while self.done < last:
            end = min(last, (self.done // (2 * B) + 1) * 2 * B)
            self.step(self.caches, tokens[self.done : end])
            self.done = end

    def step(self, caches: list[Any], tokens: Sequence[int]) -> np.ndarray:
        logits = self.model(mx.array([list(tokens)]), cache=caches)
        mx.eval(logits, [c.state for c in caches])
        return np.array(logits)[0, -1]

    def decode(self, tokens: Sequence[int]) -> list[np.ndarray]:
        """The logits of each of `tokens`, after what was prefilled."""
        batch = [merged(cache) for cache in self.caches]
        logits = [self.step(batch, [token]) for token in tokens]
        self.caches = [cache.extract(0) for cache in batch]
        self.done += len(tokens)
        return logits


@pytest.mark.parametrize("length", [2, B, 3 * B + 7])
def test_a_repeat_needs_one_token(harness: Harness, length: int) -> None:
    cold = harness.ask(prompt(length), REPLY)
    assert cold.failed is None
    assert cold.cached == 0
    warm = harness.ask(prompt(length), REPLY)
    assert (warm.cached, warm.stats and warm.stats.cached_disk) == (length - 1, 0)
    assert_same(warm, cold)
    harness.restart()
    warm = harness.ask(prompt(length), REPLY)
    assert (warm.cached, warm.stats and warm.stats.cached_memory) == (length - 1, 0)
    assert_same(warm, cold)


@pytest.mark.parametrize("length", [B - 3, 3 * B + 5])
def test_a_conversation_goes_on_from_the_reply(harness: Harness, length: int) -> None:
    turn = prompt(length)
    first = harness.ask(turn, REPLY)
    turn2 = [*turn, *first.tokens, *prompt(B + 9, seed=2)]
    harness.restart()
    second = harness.ask(turn2, REPLY)
    assert second.cached == len(turn) + len(first.tokens)
    model = harness.model._model
    live = Unbroken(model)
    live.prefill(turn)
    for a, b in zip(first.logits, live.decode([turn[-1], *first.tokens]), strict=True):
        np.testing.assert_array_equal(a, b)
    live.prefill(turn2)
    for a, b in zip(second.logits, live.decode([turn2[-1], *second.tokens]), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", CUTTABLE)
def test_a_fork_shares_the_common_prefix(name: str, tmp_path: Path) -> None:
    h = start(name, tmp_path)
    first, other = prompt(4 * B + 10), prompt(2 * B, seed=2)
    h.ask(first, REPLY)
    h.restart()
    forked = [*first[: 3 * B + 7], *other]
    warm = h.ask(forked, REPLY)
    assert warm.cached == 3 * B + 7
    live = Unbroken(h.model._model)
    live.prefill(forked)
    for a, b in zip(warm.logits, live.decode([forked[-1], *warm.tokens]), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3)
    for fork in (2 * B, B - 1):
        assert h.ask([*first[:fork], *prompt(9, seed=fork)], 1).cached == fork
    h.stop()


@pytest.mark.parametrize("name", STATES)
def test_a_fork_of_a_recurrent_model_goes_back_to_a_snapshot(name: str, tmp_path: Path) -> None:
    h = start(name, tmp_path)
    turn = prompt(2 * B + 10)
    first = h.ask(turn, REPLY)
    after_prompt = h.ask([*turn[:-1], *prompt(9, seed=2)], REPLY)
    assert after_prompt.cached == len(turn) - 1
    h.restart()
    after_reply = h.ask([*turn, *first.tokens, *prompt(9, seed=3)], REPLY)
    assert after_reply.cached == len(turn) + REPLY
    before = h.ask([*turn[: 2 * B], *prompt(9, seed=4)], REPLY)
    assert before.cached == 0, "no snapshot lies before"
    h.stop()


@pytest.mark.parametrize("name", ["gemma3_text", "gpt_oss"])
def test_a_block_longer_than_the_window_is_taken_whole(name: str, tmp_path: Path) -> None:
    """Its first tokens are not stored: a hit inside of it ends at the boundary before."""
    h = start(name, tmp_path, sliding_window=B // 2)
    turn = prompt(3 * B + 20)
    cold = h.ask(turn, REPLY)
    warm = h.ask(turn, REPLY)
    # The reply's tail has replaced the prompt's, whose file may still be there for a while.
    assert warm.cached in (3 * B, len(turn) - 1)
    for a, b in zip(warm.logits, cold.logits, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-3)
    h.restart()
    assert h.ask([*turn[: 2 * B + 9], 5, 6], REPLY).cached == 2 * B
    turn2 = [*turn, *cold.tokens, *prompt(9, seed=2)]
    second = h.ask(turn2, REPLY)
    assert second.cached == len(turn) + REPLY
    live = Unbroken(h.model._model)
    live.prefill(turn)
    live.decode([turn[-1], *cold.tokens])
    live.prefill(turn2)
    for a, b in zip(second.logits, live.decode([turn2[-1], *second.tokens]), strict=True):
        np.testing.assert_array_equal(a, b)
    h.stop()


def test_rows_side_by_side_leave_what_a_lone_row_leaves(harness: Harness) -> None:
    turns = [prompt(2 * B + 20, seed=1), prompt(B + 3, seed=2)]
    ids = [harness.submit(turn, 14) for turn in turns]
    answers = harness.collect(*ids)
    harness.restart()
    for row_id, turn in zip(ids, turns, strict=True):
        reply = answers[row_id].tokens
        turn2 = [*turn, *reply, 7, 8, 9]
        warm = harness.ask(turn2, 2)
        assert warm.cached == len(turn) + len(reply)
        live = Unbroken(harness.model._model)
        live.prefill(turn2)
        for a, b in zip(warm.logits, live.decode([turn2[-1], *warm.tokens]), strict=True):
            np.testing.assert_allclose(a, b, atol=2e-3)


@pytest.mark.parametrize("name", STATES)
@pytest.mark.parametrize("spoil", ["swap", "element"])
def test_the_comparison_would_notice_a_wrong_snapshot(
    name: str, spoil: str, tmp_path: Path
) -> None:
    h = start(name, tmp_path)
    turn = prompt(2 * B + 10)
    cold = h.ask(turn, REPLY)
    assembly = h.engine._assembly
    assert assembly is not None and assembly.prefix is not None
    after_prompt, after_reply = assembly.prefix._tiers.snapshots._entries.values()
    good = after_prompt.payload
    if spoil == "swap":
        arrays = list(after_reply.payload.arrays)
    else:
        arrays = [mx.array(a) for a in good.arrays]
        arrays[-1][(0,) * arrays[-1].ndim] += 1
    mx.eval(arrays)
    after_prompt.payload = type(good)(good.count, tuple(arrays))
    warm = h.ask(turn, REPLY)
    assert warm.cached == len(turn) - 1
    assert not np.array_equal(warm.logits[0], cold.logits[0])
    h.stop()


@pytest.mark.parametrize("name", STATES)
def test_a_bad_snapshot_file_is_a_miss(name: str, tmp_path: Path) -> None:
    h = start(name, tmp_path)
    turn = prompt(2 * B + 10)
    first = h.ask(turn, REPLY)
    assert h.stop() == 0
    files = list(tmp_path.rglob("*.state.safetensors"))
    blocks = [p for p in tmp_path.rglob("*.safetensors") if ".state." not in p.name]
    assert len(files) == 2
    assert bool(blocks) == (name != "mamba2"), "a model without attention stores no blocks"
    deepest = max(files, key=lambda path: int(path.name.split(".")[2]))
    data = bytearray(deepest.read_bytes())
    data[-1] ^= 1
    deepest.write_bytes(data)
    h.engine = h._start()
    warm = h.ask([*turn, *first.tokens, 5, 6], 2)
    assert warm.cached == len(turn) - 1, "the next shallower one"
    assert not deepest.exists() or deepest.read_bytes() != bytes(data)
    h.stop()


@pytest.mark.parametrize("name", STATES)
def test_a_long_prefill_leaves_snapshots_and_only_some_stay(name: str, tmp_path: Path) -> None:
    h = start(name, tmp_path, interval=2 * B)
    turn = prompt(8 * B + 10)
    cold = h.ask(turn, REPLY)
    h.restart()
    files = list(tmp_path.rglob("*.state.safetensors"))
    assert len(files) == 3, "the first one, and those of the prompt and of the reply"
    assert h.ask([*turn[: 3 * B], 5, 6], 1).cached == 2 * B
    warm = h.ask(turn, REPLY)
    assert warm.cached == len(turn) - 1
    assert_same(warm, cold)
    assert "snapshots every 64 tokens" in h.engine.snapshot().cache_note
    h.stop()
