"""K20: what others do at the same time changes nobody's answer."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from mlx_lm.models.cache import RotatingKVCache

from omlx.engine.request import Finished, FinishReason, Prefilled, Token
from tests.fakes import tiny
from tests.fakes.harness import Answer, Harness

B = 64
CLOSE = 1e-3  # top-2 logit gap below which batch numerics may choose the other token


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny.build_config({**tiny.CONFIGS["llama"], "num_hidden_layers": 2})


@pytest.fixture(scope="module")
def reference(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """An engine without a cache that runs one request at a time."""
    path = tmp_path_factory.mktemp("reference")
    h = Harness(model, path, block_size=B, prefill_chunk=2 * B, cache_enabled=False)
    yield h
    h.stop()


@pytest.fixture
def harness(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    path = tmp_path_factory.mktemp("concurrent")
    h = Harness(model, path, block_size=B, prefill_chunk=2 * B, max_active=4)
    yield h
    h.stop()


def prompt(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, tiny.NUM_VOCAB, length).tolist()


def assert_same(got: Sequence[int], solo: Answer) -> None:
    """Equal, or different from a token on at which the two best logits are closer than CLOSE."""
    for i, (a, b) in enumerate(zip(got, solo.tokens, strict=True)):
        if a != b:
            best = np.sort(solo.logits[i])[-2:]
            assert best[1] - best[0] < CLOSE, f"token {i} differs"
            return


LENGTHS = [(3, 9), (150, 7), (40, 14), (B, 6), (300, 9), (1, 12), (2 * B + 1, 3), (90, 8)]


def test_eight_staggered_requests_equal_their_solo_runs(
    harness: Harness, reference: Harness
) -> None:
    """Four places; a request joins whenever another has got three more events."""
    prompts = [prompt(n, seed) for seed, (n, _) in enumerate(LENGTHS)]
    solos = [reference.ask(p, m) for p, (_, m) in zip(prompts, LENGTHS, strict=True)]
    answers: dict[str, list[int]] = {}
    order: list[str] = []
    num_left = num_events = 0
    while len(order) < len(prompts) or num_left:
        if len(order) < len(prompts) and (num_events >= 3 * len(order) or not num_left):
            request_id = harness.submit(prompts[len(order)], LENGTHS[len(order)][1])
            order.append(request_id)
            answers[request_id] = []
            num_left += 1
            continue
        for event in harness.events.get(timeout=60):
            num_events += 1
            if isinstance(event, Token):
                answers[event.request_id].append(event.token)
            elif isinstance(event, Finished):
                assert event.reason is FinishReason.LENGTH
                num_left -= 1
    for request_id, solo in zip(order, solos, strict=True):
        assert_same(answers[request_id], solo)


def test_turns_of_several_conversations_at_once(harness: Harness, reference: Harness) -> None:
    """P8: every second turn starts from cached state, next to strangers and to forks."""
    shared = prompt(B + 9, 1)
    texts = [[*shared, *prompt(5, 10 + i)] for i in range(3)] + [prompt(2 * B + 3, 2)]
    for turn in range(2):
        solos = [reference.ask(t, 6) for t in texts]
        names = [harness.submit(t, 6) for t in texts]
        answers = harness.collect(*names)
        for name, solo in zip(names, solos, strict=True):
            assert_same(answers[name].tokens, solo)
            assert turn == 0 or answers[name].cached >= B
        texts = [[*t, *s.tokens, 5, 6, 7] for t, s in zip(texts, solos, strict=True)]


def test_stop_sequences_belong_to_one_request(harness: Harness, reference: Harness) -> None:
    text = prompt(30, 3)
    whole = reference.ask(text, 12).tokens
    one, two = (whole[4],), tuple(whole[6:9])
    stops = [(), (one,), (two,), ((511, 511, 511), one, two)]
    names = [harness.submit(text, 12, stop=stop) for stop in stops]
    answers = harness.collect(*names)
    for name, stop in zip(names, stops, strict=True):
        ends = [i for i in range(12) if any(tuple(whole[: i + 1][-len(s) :]) == s for s in stop)]
        assert answers[name].tokens == (whole[: ends[0]] if ends else whole)
        assert answers[name].reason is (FinishReason.STOP if ends else FinishReason.LENGTH)


@pytest.mark.parametrize("when", [Prefilled, Token])
def test_an_abort_leaves_the_others_unchanged(
    harness: Harness, reference: Harness, when: type
) -> None:
    texts = [prompt(20, 4), prompt(150, 5), prompt(33, 6)]
    solos = [reference.ask(t, 12) for t in texts]
    names = [harness.submit(t, m) for t, m in zip(texts, [12, 5000, 12], strict=True)]
    victim = names[1]
    answers = {name: Answer() for name in names}
    left = set(names)
    is_aborted = False
    while left:
        for event in harness.events.get(timeout=60):
            if event.request_id == victim and isinstance(event, when) and not is_aborted:
                harness.engine.abort(victim)
                is_aborted = True
            if isinstance(event, Token):
                answers[event.request_id].tokens.append(event.token)
            elif isinstance(event, Finished):
                answers[event.request_id].reason = event.reason
                left.discard(event.request_id)
    assert answers[victim].reason is FinishReason.ABORT
    assert len(answers[victim].tokens) < 5000
    for name, solo in ((names[0], solos[0]), (names[2], solos[2])):
        assert answers[name].reason is FinishReason.LENGTH
        assert_same(answers[name].tokens, solo)
    again = harness.ask(texts[1], 12)
    assert again.cached > 0, "what the aborted one had computed is kept"
    assert_same(again.tokens, solos[1])


def test_a_step_that_fails_runs_its_rows_again(harness: Harness, reference: Harness) -> None:
    texts = [prompt(70, 7), prompt(30, 8)]
    solos = [reference.ask(t, 12) for t in texts]
    steps = harness.model.steps
    steps.clear()

    class FailsOnce:
        """A model whose tenth decode step fails."""

        def __init__(self, inner: Any) -> None:
            self.inner, self.has_failed = inner, False

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

        def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
            if len(steps) == 10 and not self.has_failed:
                self.has_failed = True
                raise RuntimeError("the device is gone")
            return self.inner(inputs, cache=cache)

    failing = harness.model._model = FailsOnce(harness.model._model)
    names = [harness.submit(t, 12) for t in texts]
    answers = harness.collect(*names)
    assert failing.has_failed
    for name, solo in zip(names, solos, strict=True):
        assert answers[name].reason is FinishReason.LENGTH
        assert_same(answers[name].tokens, solo)


class Sliding:
    """A model that keeps the last tokens only."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, inputs: mx.array, cache: Any = None) -> mx.array:
        return self._model(inputs, cache=cache)

    def make_cache(self) -> list[RotatingKVCache]:
        return [RotatingKVCache(B, keep=4) for _ in self._model.layers]


def test_a_model_without_a_block_form_is_served_without_a_cache(
    model: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("sliding")
    harness = Harness(Sliding(model), path, prefill_chunk=2 * B)
    try:
        first = harness.ask(prompt(200, 9), 6)
        again = harness.ask(prompt(200, 9), 6)
        assert first.tokens == again.tokens
        assert len(first.tokens) == 6
        assert again.cached == 0
        snapshot = harness.engine.snapshot()
        assert snapshot is not None
        assert "RotatingKVCache" in snapshot.cache_note
    finally:
        harness.stop()


def test_a_directory_that_can_not_be_used_leaves_the_memory_tier(
    model: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("blocked") / "file"
    path.write_text("in the way")
    harness = Harness(model, path, block_size=B, prefill_chunk=2 * B)
    try:
        first = harness.ask(prompt(100, 9))
        again = harness.ask(prompt(100, 9))
        assert again.tokens == first.tokens
        assert again.cached == 99
        snapshot = harness.engine.snapshot()
        assert snapshot is not None
        assert snapshot.cache_note.startswith("disk tier off")
        assert snapshot.disk == replace(snapshot.disk, blocks=0, bytes=0, budget_bytes=0)
    finally:
        harness.stop()
