"""Models whose layer caches can't be merged: one request at a time, with mlx-lm's own tokens."""

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.generate import generate_step
from mlx_lm.models.cache import (
    CacheList,
    ChunkedKVCache,
    ConcatenateKVCache,
    KVCache,
    QuantizedKVCache,
)

from omlx.engine.batch import Batch, RowInput, RowProgress, RowToken, why_not_merged
from omlx.engine.request import FailureCode, FinishReason, SamplingParams
from omlx.engine.sampling import make_sampling
from omlx.engine.solo import SoloBatch
from omlx.models.load import probe_caches
from tests.fakes import tiny
from tests.fakes.harness import Harness

CHUNK = 32
LLAMA: dict[str, Any] = {**tiny.CONFIGS["llama"], "num_hidden_layers": 2}
LLAMA4: dict[str, Any] = {
    "model_type": "llama4",
    "text_config": {
        "model_type": "llama4_text",
        "attention_bias": False,
        "attention_chunk_size": 48,
        "head_dim": 32,
        "hidden_size": 64,
        "interleave_moe_layer_step": 2,
        "intermediate_size": 64,
        "intermediate_size_mlp": 128,
        "max_position_embeddings": 4096,
        "num_attention_heads": 4,
        "num_experts_per_tok": 1,
        "num_hidden_layers": 4,
        "num_key_value_heads": 2,
        "num_local_experts": 4,
        "rms_norm_eps": 1e-5,
        "rope_scaling": None,
        "rope_theta": 10000.0,
        "use_qk_norm": True,
        "vocab_size": tiny.NUM_VOCAB,
    },
}


def quantized() -> Any:
    """A model that keeps its keys and values in eight bits."""
    model = tiny.build_config(LLAMA)
    model.make_cache = lambda: [QuantizedKVCache(group_size=64, bits=8) for _ in model.layers]
    return model


KINDS: dict[str, Callable[[], Any]] = {
    "llama4": lambda: tiny.build_config(LLAMA4),
    "quantized": quantized,
}


def prompt(length: int, seed: int = 1) -> list[int]:
    return np.random.default_rng(seed).integers(3, tiny.NUM_VOCAB, length).tolist()


def distinct(generate: Callable[[list[int]], list[int]]) -> tuple[list[int], list[int]]:
    """A prompt whose next tokens all differ, and those."""
    for seed in range(50):
        new = generate(prompt(20, seed))
        if len(set(new)) == len(new):
            return prompt(20, seed), new
    raise AssertionError("every text repeats itself")


@pytest.fixture(scope="module", params=list(KINDS))
def harness(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Harness]:
    path: Path = tmp_path_factory.mktemp(request.param)
    h = Harness(KINDS[request.param](), path, prefill_chunk=CHUNK, max_active=8)
    yield h
    assert h.stop() == 0
    assert list(path.rglob("*.safetensors")) == [], "an uncached model stores nothing"


def reference(harness: Harness, tokens: Sequence[int], count: int) -> list[int]:
    """The first tokens that mlx-lm generates by itself."""
    model = harness.model._model
    steps = generate_step(mx.array(tokens), model, max_tokens=count, prefill_step_size=CHUNK)
    return [int(token) for token, _ in steps]


@pytest.mark.parametrize("length", [1, 2, 32, 33, 34, 100, 200])
def test_greedy_tokens_are_those_of_the_library(harness: Harness, length: int) -> None:
    tokens = prompt(length, length)
    answer = harness.ask(tokens, 12)
    assert answer.tokens == reference(harness, tokens, 12)
    assert answer.reason is FinishReason.LENGTH
    assert answer.cached == 0


@pytest.mark.parametrize("count", [1, 2, 7])
def test_max_tokens(harness: Harness, count: int) -> None:
    answer = harness.ask(prompt(20), count)
    assert answer.tokens == reference(harness, prompt(20), count)
    assert answer.stats is not None and answer.stats.generated_tokens == count


def test_a_stop_sequence(harness: Harness) -> None:
    text, new = distinct(lambda tokens: reference(harness, tokens, 5))
    answer = harness.ask(text, 30, stop=((1, 2, 3), tuple(new[2:4])))
    assert answer.reason is FinishReason.STOP
    assert answer.tokens == new[:3], "the last token of a stop sequence is not delivered"


def test_an_abort_in_the_middle_leaves_the_next_request_alone(harness: Harness) -> None:
    long = harness.submit(prompt(60), 100_000)
    waiting = harness.submit(prompt(9), 6)
    aborted = harness.submit(prompt(9), 6)
    while not any(type(e).__name__ == "Token" for e in harness.events.get(timeout=60)):
        pass
    harness.engine.abort(aborted)
    harness.engine.abort(long)
    answers = harness.collect(long, waiting, aborted)
    assert answers[long].reason is FinishReason.ABORT
    assert answers[aborted].reason is FinishReason.ABORT
    assert answers[aborted].tokens == []
    assert answers[waiting].tokens == reference(harness, prompt(9), 6)


def test_an_abort_within_a_prefill(harness: Harness) -> None:
    long = harness.submit(prompt(4000), 5)
    while not any(type(e).__name__ == "Prefilled" for e in harness.events.get(timeout=60)):
        pass
    harness.engine.abort(long)
    assert harness.collect(long)[long].tokens == []
    assert harness.ask(prompt(9), 6).tokens == reference(harness, prompt(9), 6)


def test_requests_run_in_turn(harness: Harness) -> None:
    texts = [prompt(40, 5), prompt(70, 6), prompt(3, 7)]
    ids = [harness.submit(text, 8) for text in texts]
    order: list[str] = []
    answers: dict[str, list[int]] = {}
    left = set(ids)
    while left:
        for event in harness.events.get(timeout=60):
            if order[-1:] != [event.request_id]:
                order.append(event.request_id)
            if type(event).__name__ == "Token":
                answers.setdefault(event.request_id, []).append(event.token)
            elif type(event).__name__ in ("Finished", "Failed"):
                left.discard(event.request_id)
    assert order == ids, "no event of one lies between those of another"
    assert [answers[i] for i in ids] == [reference(harness, text, 8) for text in texts]


def test_one_that_finds_the_queue_full_is_refused(tmp_path: Path) -> None:
    h = Harness(quantized(), tmp_path, prefill_chunk=CHUNK, max_active=8, max_waiting=2)
    try:
        ids = [h.submit(prompt(9), 6) for _ in range(4)]
        answers = h.collect(*ids)
    finally:
        h.stop()
    failed = [answers[i].failed for i in ids]
    assert failed[:3] == [None] * 3
    assert failed[3] is not None and failed[3].code is FailureCode.OVERLOADED


def test_it_says_so_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "omlx.engine"):
        h = Harness(quantized(), tmp_path)
        h.ask(prompt(5), 2)
        h.ask(prompt(5), 2)
    snapshot = h.engine.snapshot()
    h.stop()
    said = "one request at a time"
    why = "QuantizedKVCache (layer 0) can't be merged into a batch"
    assert snapshot is not None
    assert snapshot.cache_note == f"off, {said}: {why}"
    (warning,) = [r.getMessage() for r in caplog.records if said in r.getMessage()]
    assert why in warning


@pytest.mark.parametrize("name", list(tiny.CONFIGS))
def test_every_other_kind_of_model_is_batched(name: str) -> None:
    caches = probe_caches(tiny.build(name))
    before = [repr(mx_shapes(cache.state)) for cache in caches]
    assert why_not_merged(caches) is None
    assert [repr(mx_shapes(cache.state)) for cache in caches] == before


def mx_shapes(state: Any) -> Any:
    """A state with the shape of every array in its place."""
    if isinstance(state, list | tuple):
        return [mx_shapes(part) for part in state]
    return state.shape if isinstance(state, mx.array) else state


def filled(cache: Any) -> Any:
    keys = mx.zeros((1, 2, 1, 64))
    cache.update_and_fetch(keys, keys)
    return cache


@pytest.mark.parametrize(
    ("caches", "layer"),
    [
        (lambda: [filled(KVCache()), filled(QuantizedKVCache())], "QuantizedKVCache (layer 1)"),
        (lambda: [filled(ChunkedKVCache(64))], "ChunkedKVCache (layer 0)"),
        (lambda: [filled(ConcatenateKVCache())], "ConcatenateKVCache (layer 0)"),
        (
            lambda: [CacheList(filled(KVCache()), filled(ChunkedKVCache(64)))],
            "CacheList (layer 0)",
        ),
    ],
)
def test_what_cannot_be_merged_is_named(caches: Callable[[], list[Any]], layer: str) -> None:
    assert why_not_merged(caches()) == f"{layer} can't be merged into a batch"


# Beside a Batch, on a model that both can run.

Steps = list[tuple[list[RowProgress], list[RowToken]]]


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny.build_config(LLAMA)


def run(batch: Any, row: RowInput) -> Steps:
    """Every step of one row, without the layer caches, which are compared apart."""
    batch.insert(row)
    steps: Steps = []
    while len(batch):
        steps.append(batch.step())
    return steps


def row(
    tokens: Sequence[int], params: SamplingParams, *, name: str = "a", **fields: Any
) -> RowInput:
    num_cached = len(fields.pop("prefix", ()))
    rest = tokens[num_cached:]
    segments = [s for s in (rest[:-1], rest[-1:]) if s]
    sampling = make_sampling(params, seed=3, position=0, num_vocab=tiny.NUM_VOCAB)
    asked = {"caches": None, "max_tokens": 7, "stop": (), **fields}
    return RowInput(name, tokens[:num_cached], segments, sampling=sampling, **asked)


@pytest.mark.parametrize("length", [1, 2, 33, 80])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=1.0, top_p=0.9, seed=4),
        SamplingParams(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.2),
    ],
    ids=["greedy", "seeded", "penalties"],
)
def test_it_steps_as_a_batch_of_one(model: Any, length: int, params: SamplingParams) -> None:
    runs: list[Steps] = []
    for batch in (
        Batch(model, max_rows=1, prefill_chunk=CHUNK),
        SoloBatch(model, prefill_chunk=CHUNK),
    ):
        runs.append(run(batch, row(prompt(length), params)))
        batch.close()
    plain = [
        [(p, [(t.token, t.finish, t.num_cached) for t in tokens]) for p, tokens in steps]
        for steps in runs
    ]
    assert plain[0] == plain[1]
    finals = [steps[-1][1][0].final for steps in runs]
    for one, other in zip(*finals, strict=True):
        assert one.offset == other.offset == length + 7
        for a, b in ((one.keys, other.keys), (one.values, other.values)):
            np.testing.assert_allclose(
                np.array(a[:, :, : length + 7]), np.array(b[:, :, : length + 7]), atol=1e-5
            )


@pytest.fixture
def solo(model: Any) -> Iterator[SoloBatch]:
    batch = SoloBatch(model, prefill_chunk=CHUNK)
    yield batch
    batch.close()


def ids(steps: Steps) -> list[int]:
    return [t.token for _, tokens in steps for t in tokens]


def test_the_oldest_row_runs_first(solo: SoloBatch) -> None:
    solo.insert(row(prompt(50), SamplingParams()))
    steps = run(solo, row(prompt(5), SamplingParams(), name="b"))
    order = [p.row_id for progress, _ in steps for p in progress]
    assert order == [*"aaa", *"bb"]
    assert [t.row_id for _, tokens in steps for t in tokens] == [*"a" * 7, *"b" * 7]


def test_a_row_goes_on_from_given_caches(solo: SoloBatch) -> None:
    text = prompt(50)
    params = SamplingParams(repetition_penalty=1.5)
    cold = run(solo, row(text, params))
    solo.insert(row(text[:38], params))
    while solo.num_cached("a") < 37:
        solo.step()
    caches = solo.caches("a")
    solo.remove("a")
    warm = run(solo, row(text, params, prefix=text[:37], caches=caches))
    assert ids(warm) == ids(cold)
    assert warm[-1][1][0].num_cached == cold[-1][1][0].num_cached == 57


def test_a_row_that_runs_again_knows_what_it_emitted(solo: SoloBatch) -> None:
    text, new = distinct(lambda tokens: ids(run(solo, row(tokens, SamplingParams(), max_tokens=5))))
    again = row([*text, *new[:3]], SamplingParams(), emitted=new[:3], stop=[new[1:5]])
    steps = run(solo, again)
    assert ids(steps) == new[3:5]
    assert steps[-1][1][0].finish == "stop"


def test_num_cached_is_what_the_caches_hold(solo: SoloBatch) -> None:
    solo.insert(row(prompt(40), SamplingParams()))
    assert solo.num_cached("a") == 0
    held: list[int] = []
    for _ in range(9):
        solo.step()
        held.append(solo.num_cached("a"))
        if held[-1] >= 40:
            assert {cache.offset for cache in solo.caches("a")} == {held[-1]}
    assert held[-1] > 42


def test_reset_leaves_an_empty_batch_that_works(solo: SoloBatch) -> None:
    expected = ids(run(solo, row(prompt(20), SamplingParams())))
    solo.insert(row(prompt(20), SamplingParams()))
    solo.step()
    solo.reset()
    assert len(solo) == 0
    solo.remove("a")
    assert ids(run(solo, row(prompt(20), SamplingParams()))) == expected
