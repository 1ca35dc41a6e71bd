"""Logits that are not finite end their own request, and what fed it leaves the cache."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from omlx.engine.batch import Batch, RowInput, RowToken
from omlx.engine.request import FailureCode, Finished, FinishReason, SamplingParams
from omlx.engine.sampling import NOT_FINITE, make_sampling
from omlx.engine.shaping import ShapedModel
from omlx.engine.solo import SoloBatch
from tests.fakes import tiny
from tests.fakes.cache import Rig
from tests.fakes.harness import Answer, Harness
from tests.fakes.loop import LoopRig, assert_as_solo

CHUNK = 32
POISON = 7  # its embedding is NaN in a poisoned model
CONFIG: dict[str, Any] = {
    **tiny.CONFIGS["llama"],
    "num_hidden_layers": 2,
    "tie_word_embeddings": False,  # the poison must not be in the logits of every row
}
GREEDY = SamplingParams()
PENALTIES = SamplingParams(repetition_penalty=1.2)
DRAWN = SamplingParams(temperature=1.0, seed=3)


def poison(model: Any, token: int) -> None:
    weight = model.model.embed_tokens.weight
    weight[token] = math.nan
    mx.eval(weight)


@pytest.fixture(scope="module")
def model() -> Any:
    poisoned = tiny.build_config(CONFIG)
    poison(poisoned, POISON)
    return poisoned


def prompt(length: int, seed: int = 1) -> list[int]:
    return np.random.default_rng(seed).integers(8, tiny.NUM_VOCAB, length).tolist()


def with_poison(length: int, place: int, seed: int = 1) -> list[int]:
    tokens = prompt(length, seed)
    tokens[place] = POISON
    return tokens


def row(
    name: str, tokens: Sequence[int], params: SamplingParams = GREEDY, max_tokens: int = 8
) -> RowInput:
    sampling = make_sampling(params, seed=1, position=0, num_vocab=tiny.NUM_VOCAB)
    segments = [s for s in (tokens[:-1], tokens[-1:]) if s]
    return RowInput(name, (), segments, None, max_tokens, sampling, ())


def run(batch: Any, *rows: RowInput) -> dict[str, list[RowToken]]:
    for one in rows:
        batch.insert(one)
    tokens: dict[str, list[RowToken]] = {}
    while len(batch):
        for token in batch.step()[1]:
            tokens.setdefault(token.row_id, []).append(token)
    return tokens


@pytest.fixture(params=["batch", "solo"])
def batch(request: pytest.FixtureRequest, model: Any) -> Iterator[Any]:
    b: Any
    if request.param == "batch":
        b = Batch(model, max_rows=8, prefill_chunk=CHUNK)
    else:
        b = SoloBatch(model, prefill_chunk=CHUNK)
    yield b
    b.close()


@pytest.mark.parametrize("params", [GREEDY, PENALTIES, DRAWN], ids=["greedy", "penalties", "drawn"])
@pytest.mark.parametrize("place", [0, 20, 39])
def test_a_poisoned_prompt_ends_at_its_first_token(
    batch: Any, place: int, params: SamplingParams
) -> None:
    asked = row("a", with_poison(40, place), params)
    (token,) = run(batch, asked)["a"]
    assert (token.finish, token.token, token.final) == ("fault", NOT_FINITE, None)
    assert asked.sampling.fault.message is None, "the model's fault, not the request's"
    assert len(batch) == 0
    assert len(run(batch, row("b", prompt(40)))["b"]) == 8, "the next one is served"


@pytest.mark.parametrize("which", [0, 2, 7])
def test_a_poisoned_token_ends_the_row_that_says_it(batch: Any, which: int) -> None:
    """What was decoded before it, and the token itself, are right; nothing comes after it."""
    model = tiny.build_config(CONFIG)
    for seed in range(50):
        text = prompt(30, seed)
        new = [
            t.token for t in run(Batch(model, max_rows=1, prefill_chunk=CHUNK), row("a", text))["a"]
        ]
        if len(set(new)) == 8 and not set(new) & set(text):
            break
    else:
        raise AssertionError("every text repeats itself")
    poison(model, new[which])
    batch._model = model
    if isinstance(batch, Batch):
        batch._shaped = ShapedModel(model)
        batch.reset()
    tokens = run(batch, row("a", text, max_tokens=9))["a"]
    assert [t.token for t in tokens] == [*new[: which + 1], NOT_FINITE]
    assert [t.finish for t in tokens] == [None] * (which + 1) + ["fault"]


def test_the_last_token_that_is_asked_for_may_be_the_one(batch: Any) -> None:
    (token,) = run(batch, row("a", with_poison(40, 9), max_tokens=1))["a"]
    assert (token.finish, token.final) == ("fault", None)


def test_seven_neighbours_go_on_unharmed(model: Any) -> None:
    batch = Batch(model, max_rows=8, prefill_chunk=64)
    params = [GREEDY, DRAWN, GREEDY, PENALTIES, GREEDY, GREEDY, DRAWN, GREEDY]
    rows = [(str(i), prompt(10 + 7 * i, i), params[i]) for i in range(8)]
    alone = {name: run(batch, row(name, *rest, 16))[name] for name, *rest in rows}
    rows[4] = ("4", with_poison(38, 20, 4), GREEDY)
    together = run(batch, *(row(name, *rest, 16) for name, *rest in rows))
    batch.close()
    assert [t.finish for t in together.pop("4")] == ["fault"]
    del alone["4"]
    assert {name: [t.token for t in tokens] for name, tokens in together.items()} == {
        name: [t.token for t in tokens] for name, tokens in alone.items()
    }


def test_penalties_that_overflow_are_the_requests_fault() -> None:
    """A client must not be able to empty the cache with a parameter."""
    model = tiny.build_config(CONFIG, dtype=mx.float16)
    batch = Batch(model, max_rows=2, prefill_chunk=CHUNK)
    over = row("a", prompt(40), SamplingParams(presence_penalty=-1e6))
    tokens = run(batch, over, row("b", prompt(40, 2)))
    batch.close()
    assert [t.finish for t in tokens["a"]] == ["fault"]
    assert over.sampling.fault.message is not None
    assert len(tokens["b"]) == 8


# The loop, over a fake batch.

LONG = [*range(1, 31)]


def test_the_request_fails_and_its_neighbours_do_not() -> None:
    rig = LoopRig(cache=Rig())
    good, bad, other = (rig.submit([*LONG[:20], i], 6) for i in (33, 34, 35))
    rig.batch.broken.add(bad.request.id)
    rig.until()
    assert bad.code is FailureCode.ENGINE
    assert bad.last is not None and not isinstance(bad.last, Finished)
    assert "not finite" in bad.last.message and "dropped" in bad.last.message
    assert bad.tokens == [] and "Started" not in bad.kinds
    for outcome in (good, other):
        assert_as_solo(outcome)


@pytest.mark.parametrize("is_written", [True, False])
def test_what_fed_it_is_prefilled_again(*, is_written: bool) -> None:
    cache = Rig()
    rig = LoopRig(cache=cache)
    rig.until(rig.submit(LONG, 6))
    if is_written:
        for _ in range(5):
            rig.turn()
        assert cache.on_disk()
    bad = rig.submit([*LONG, 31, 32], 6)
    rig.batch.broken.add(bad.request.id)
    rig.until(bad)
    assert bad.code is FailureCode.ENGINE
    again = rig.submit([*LONG, 31, 32], 6)
    rig.until()
    assert_as_solo(again)
    assert isinstance(again.last, Finished)
    assert (again.last.stats.cached_memory, again.last.stats.cached_disk) == (0, 0)
    warm = rig.submit([*LONG, 31, 32, *again.tokens, 1], 6)
    rig.until()
    assert isinstance(warm.last, Finished)
    assert warm.last.stats.cached_memory == len(LONG) + 2 + 6


def test_a_reply_that_led_there_is_dropped_with_its_prompt() -> None:
    """An earlier run has stored more of it than the one that fails."""
    cache = Rig()
    rig = LoopRig(cache=cache)
    rig.until(rig.submit(LONG[:10], 6))
    assert [len(tokens) for tokens in cache.in_memory()] == [4] * 4
    bad = rig.submit(LONG[:10], 6)
    while len(bad.tokens) < 3:
        rig.turn()
    rig.batch.broken.add(bad.request.id)
    rig.until()
    assert bad.code is FailureCode.ENGINE
    assert len(bad.tokens) == 3
    assert cache.in_memory() == []


def test_without_a_cache_nothing_is_said_of_it() -> None:
    rig = LoopRig()
    bad = rig.submit(LONG, 6)
    rig.batch.broken.add(bad.request.id)
    rig.until()
    assert bad.last is not None and not isinstance(bad.last, Finished)
    assert bad.last.message == "the model's logits are not finite"


# The whole engine.


def assert_failed(answer: Answer) -> None:
    assert answer.failed is not None
    assert answer.failed.code is FailureCode.ENGINE
    assert "not finite" in answer.failed.message


def test_a_prefix_that_a_poisoned_request_shared_is_cold_and_then_right(
    model: Any, tmp_path: Path
) -> None:
    h = Harness(model, tmp_path, block_size=16, prefill_chunk=CHUNK, write_delay_s=0.0)
    try:
        head = prompt(70)
        cold = h.ask([*head, 11], 6)
        assert h.ask([*head, 11], 6).cached == 70
        assert_failed(h.ask([*head, POISON, 12], 6))
        again = h.ask([*head, 11], 6)
        assert (again.cached, again.tokens, again.reason) == (0, cold.tokens, FinishReason.LENGTH)
        assert h.ask([*head, 11], 6).cached == 70
        h.restart()
        warm = h.ask([*head, 11], 6)
        assert (warm.cached, warm.tokens) == (70, cold.tokens)
    finally:
        assert h.stop() == 0


@pytest.mark.parametrize("is_restarted", [False, True], ids=["memory", "disk"])
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "qwen3_next"])
def test_a_stored_block_that_is_not_finite_fails_one_request_only(
    name: str, tmp_path: Path, *, is_restarted: bool
) -> None:
    """Its file is sound: the checksum was taken of what was computed."""
    model = tiny.build(name)
    h = Harness(model, tmp_path, block_size=16, prefill_chunk=CHUNK, write_delay_s=3600.0)
    try:
        text = prompt(90)
        cold = h.ask(text, 6)
        assembly = h.engine._assembly
        assert assembly is not None and assembly.prefix is not None
        tiers = assembly.prefix._tiers
        entries = [*tiers.memory._entries.values(), *tiers.snapshots._entries.values()]
        broken = [e for e in entries if e.key.count < 16 or name == "qwen3_next"] or entries[-1:]
        for entry in broken:
            for array in entry.payload.arrays:
                array[:] = math.nan
                mx.eval(array)
        if is_restarted:
            h.restart()
        bad = h.ask([*text, 5], 6)
        assert_failed(bad)
        again = h.ask([*text, 5], 6)
        assert again.failed is None
        assert again.cached == 0
        other = Harness(model, tmp_path / "other", prefill_chunk=CHUNK)
        expected = other.ask([*text, 5], 6)
        other.stop()
        assert again.tokens == expected.tokens
        assert h.ask(text, 6).tokens == cold.tokens
    finally:
        assert h.stop() == 0
