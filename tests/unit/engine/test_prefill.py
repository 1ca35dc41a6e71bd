"""Pieces of a prompt: every length comes to its end, on the grid of the grain."""

from typing import Any

import mlx.core as mx
import pytest

from omlx.engine.prefill import Prefill


class Counted:
    """A model and its only layer cache: it counts tokens, call by call."""

    def __init__(self) -> None:
        self.state = mx.zeros((1,))
        self.sizes: list[int] = []

    def __call__(self, tokens: mx.array, cache: Any) -> None:
        assert cache == [self] and tokens.shape[1] > 0
        self.sizes.append(tokens.shape[1])
        self.state = self.state + tokens.shape[1]


def sizes(start: int, num_tokens: int, grain: int) -> list[int]:
    model = Counted()
    prefill = Prefill(model, [1] * start, [[2] * num_tokens], [model])
    done = 0
    for _ in range(num_tokens + 2):
        if prefill.next_size:
            prefill.launch(grain)
        done += prefill.wait()
    assert prefill.is_finished and not prefill.next_size
    assert done == sum(model.sizes) == num_tokens == prefill.num_done
    return model.sizes


@pytest.mark.parametrize("grain", [4, 16])
def test_every_length_from_every_start_ends(grain: int) -> None:
    for start in range(2 * grain):
        for num_tokens in range(1, 4 * grain):
            found = sizes(start, num_tokens, grain)
            place = start
            for size in found[:-1]:
                place += size
                assert place % grain == 0, "only the last piece ends off the grid"
            assert max(found) < grain + grain // 2


def test_what_is_nearly_on_the_grid_goes_on_to_the_next_line() -> None:
    assert sizes(25, 38, 16) == [23, 15]
    assert sizes(24, 39, 16) == [8, 16, 15]
    assert sizes(31, 17, 16) == [17]
    assert sizes(0, 16, 16) == [16]
