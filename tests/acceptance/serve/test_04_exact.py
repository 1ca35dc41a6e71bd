"""Point 4: prompt lengths around the block size, and a fork inside a block: cached tokens are the
longest common prefix, exactly. On the real model, blocks of 256."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from omlx.models.load import load
from tests.acceptance.conftest import Figure
from tests.fakes.harness import Harness

B = 256


@pytest.fixture(scope="module")
def harness(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    h = Harness(load(demo).model, tmp_path_factory.mktemp("cache"), block_size=B)
    yield h
    h.stop()


def tokens(length: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 49000, length).tolist()


@pytest.mark.parametrize("length", [B - 1, B, B + 1, 2 * B - 1, 2 * B, 2 * B + 1])
def test_lengths(harness: Harness, length: int, figure: Figure) -> None:
    prompt = tokens(length, length)
    assert harness.ask(prompt, 2).cached == 0
    again = harness.ask(prompt, 2).cached
    harness.restart()
    restarted = harness.ask(prompt, 2).cached
    assert again == restarted == length - 1
    figure(f"{length} tokens: {again} from memory, {restarted} from disk")


@pytest.mark.parametrize("fork", [B // 2, B + 100, 2 * B - 1, 2 * B])
def test_forks(harness: Harness, fork: int, figure: Figure) -> None:
    first = tokens(2 * B + 40, 1000 + fork)
    second = [*first[:fork], *((t + 1) % 49000 for t in first[fork:])]
    third = [*first[:fork], *((t + 2) % 49000 for t in first[fork:])]
    harness.ask(first, 2)
    in_memory = harness.ask(second, 2).cached
    harness.restart()
    from_disk = harness.ask(third, 2).cached
    assert in_memory == from_disk == fork
    figure(f"fork at {fork}: {in_memory} from memory, {from_disk} from disk")
