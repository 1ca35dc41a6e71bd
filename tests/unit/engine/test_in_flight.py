"""Real layers of every kind: what requests share that come together is computed once."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from omlx.engine.request import FinishReason, Prefilled
from tests.fakes import tiny
from tests.fakes.harness import Answer, Harness
from tests.unit.engine.test_concurrent import assert_same

B = 32
INTERVAL = 4 * B
SIZE = 7 * B + 9


def prompt(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, tiny.NUM_VOCAB, length).tolist()


@pytest.fixture(scope="module", params=["llama", "gemma3_text", "qwen3_next", "mamba2"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def model(kind: str) -> Any:
    return tiny.build(kind)


@pytest.fixture(scope="module")
def reference(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    """An engine without a cache."""
    path = tmp_path_factory.mktemp("reference")
    h = Harness(model, path, block_size=B, prefill_chunk=2 * B, cache_enabled=False)
    yield h
    h.stop()


@pytest.fixture
def harness(model: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    path = tmp_path_factory.mktemp("in_flight")
    h = Harness(
        model, path, block_size=B, prefill_chunk=2 * B, snapshot_interval=INTERVAL, max_active=4
    )
    yield h
    h.stop()


def check(harness: Harness, reference: Harness, prompts: list[list[int]]) -> list[int]:
    """Send prompts together, compare each answer with its solo run; the tokens each computed."""
    solos = [reference.ask(p) for p in prompts]
    names = [harness.submit(p) for p in prompts]
    answers = harness.collect(*names)
    for name, solo in zip(names, solos, strict=True):
        assert answers[name].reason is FinishReason.LENGTH
        assert_same(answers[name].tokens, solo)
    return [len(p) - answers[n].cached for p, n in zip(prompts, names, strict=True)]


def test_duplicates(harness: Harness, reference: Harness) -> None:
    assert check(harness, reference, [prompt(SIZE, 1)] * 3) == [SIZE, 1, 1]


def test_a_shared_prefix_and_another_end(harness: Harness, reference: Harness, kind: str) -> None:
    """A model with recurrent layers goes on from the last snapshot that they share."""
    num_shared = INTERVAL + B + 5
    head = prompt(num_shared, 2)
    ends = [prompt(50 + i, 10 + i) for i in range(3)]
    has_states = kind in ("qwen3_next", "mamba2")
    num_found = INTERVAL if has_states else num_shared
    assert check(harness, reference, [[*head, *end] for end in ends]) == [
        num_shared + 50,
        *(num_shared + 50 + i - num_found for i in (1, 2)),
    ]


def test_nobody_waits_for_a_snapshot_that_will_not_be(
    harness: Harness, reference: Harness, kind: str
) -> None:
    """Where they part before the first one, the second can start before the first has ended."""
    head = prompt(INTERVAL - B, 3)
    prompts = [[*head, *prompt(3 * B, 20)], [*head, *prompt(3 * B, 21)]]
    num_computed = check(harness, reference, prompts)
    if kind in ("qwen3_next", "mamba2"):
        assert num_computed == [len(prompts[0]), len(prompts[1])]
    else:
        assert num_computed == [len(prompts[0]), 3 * B]


def test_the_head_that_conversations_share(harness: Harness, reference: Harness, kind: str) -> None:
    """Its end gets a snapshot, and those that come together wait for it."""
    num_head = 2 * B + 11
    head = prompt(num_head, 4)
    prompts = [[*head, *prompt(B, 30 + i)] for i in range(3)]
    names = [harness.submit(p, head=num_head) for p in prompts]
    answers = harness.collect(*names)
    for name, tokens in zip(names, prompts, strict=True):
        assert_same(answers[name].tokens, reference.ask(tokens))
    assert [answers[name].cached for name in names] == [0, num_head, num_head]


def test_the_first_gives_up(harness: Harness, reference: Harness) -> None:
    tokens = prompt(SIZE, 5)
    solo = reference.ask(tokens)
    names = [harness.submit(tokens) for _ in range(2)]
    answers = {name: Answer() for name in names}
    done = 0
    while not done:
        for event in harness.events.get(timeout=60):
            if isinstance(event, Prefilled) and not done:
                assert event.request_id == names[0]
                done = event.done
                harness.engine.abort(names[0])
    answers = harness.collect(*names)
    assert answers[names[0]].reason is FinishReason.ABORT
    assert_same(answers[names[1]].tokens, solo)
    assert SIZE > answers[names[1]].cached >= done
