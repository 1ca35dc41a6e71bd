"""Costs of formats: against the definition, for linear matrices, lookups, heads and experts.

Knows nothing about layers.
"""

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx_lm.models.mla import MultiLinear
from mlx_lm.models.switch_layers import SwitchLinear

from omlx.errors import ModelError
from omlx.models.quantize.errors import costs
from omlx.models.quantize.final import Moments
from omlx.models.quantize.formats import BY_LABEL, candidates
from omlx.models.quantize.rounding import values
from omlx.models.quantize.taps import Heard, Tapped, matrices, output, with_weight

LABELS = ("2/64", "4/64", "8/32", "mxfp4")


def normal(*shape: int, seed: int = 0) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


def by_hand(matrix: object, call: Heard, label: str, importance: mx.array | None) -> float:
    """Half the sum of squared gradients times squared errors, of all outputs."""
    weight = matrix.weight  # type: ignore[attr-defined]
    off = values(weight, BY_LABEL[label], dtype="float16", importance=importance) - weight
    error = output(with_weight(matrix, off), call)
    assert call.gradient is not None
    return float(mx.sum(mx.square(call.gradient) * mx.square(error)).item()) / 2


def test_a_linear_matrix_of_few_rows_is_measured_whole() -> None:
    matrix = nn.Linear(128, 96)
    x = normal(2, 20, 128, seed=1)
    call = Heard(x, (), {}, normal(2, 20, 96, seed=2))
    found = costs(matrix, [call], num_tokens=40, dtype="float16", seed=0)
    h = mx.mean(mx.square(x.reshape(-1, 128)), axis=0)
    for label in LABELS:
        assert found[label].kl == pytest.approx(by_hand(matrix, call, label, h) / 40, rel=1e-4)
    assert set(found) == {form.label for form in candidates(128)}
    assert found["2/64"].relative > found["4/64"].relative > found["8/32"].relative > 0
    twice = costs(matrix, [call, call], num_tokens=40, dtype="float16", seed=0)
    assert twice["4/64"].kl == pytest.approx(2 * found["4/64"].kl, rel=1e-5)


def test_of_many_rows_some_stand_for_all() -> None:
    """Gradients differ a hundredfold between rows: drawing by them keeps the estimate near."""
    matrix = nn.Linear(64, 4000)
    scale = mx.exp(2 * normal(4000, seed=3))
    call = Heard(normal(1, 30, 64, seed=1), (), {}, normal(1, 30, 4000, seed=2) * scale)
    h = mx.mean(mx.square(call.x.reshape(-1, 64)), axis=0)
    whole = by_hand(matrix, call, "3/64", h) / 30
    found = [
        costs(matrix, [call], num_tokens=30, dtype="float16", seed=seed)["3/64"].kl
        for seed in range(4)
    ]
    assert all(abs(one / whole - 1) < 0.25 for one in found)
    assert abs(np.mean(found) / whole - 1) < 0.12
    again = costs(matrix, [call], num_tokens=30, dtype="float16", seed=0)
    assert again["3/64"].kl == found[0]


def test_a_lookup_counts_the_rows_that_are_looked_up() -> None:
    matrix = nn.Embedding(50, 64)
    ids = mx.array([[3, 7, 3, 3, 9]])
    call = Heard(ids, (), {}, normal(1, 5, 64, seed=2))
    found = costs(matrix, [call], num_tokens=5, dtype="float16", seed=0)
    assert call.gradient is not None
    seen = matrix.weight[mx.array([3, 7, 9])]
    h = mx.mean(mx.square(call.gradient.reshape(-1, 64)), axis=0)
    off = values(seen, BY_LABEL["4/64"], dtype="float16", importance=h) - seen
    error = mx.square(off[mx.array([0, 1, 0, 0, 2])])
    wanted = float(mx.sum(mx.square(call.gradient[0]) * error).item()) / 2 / 5
    assert found["4/64"].kl == pytest.approx(wanted, rel=1e-4)
    head = Heard(normal(1, 5, 64, seed=4), (), {}, normal(1, 5, 50, seed=5), is_head=True)
    both = costs(matrix, [call, head], num_tokens=5, dtype="float16", seed=0)
    assert both["4/64"].kl > found["4/64"].kl


def test_an_expert_counts_as_often_as_tokens_come_to_it() -> None:
    matrix = SwitchLinear(64, 32, 4, bias=False)
    # Expert 3 is never asked: what it loses costs nothing.
    matrix.weight = mx.concatenate([matrix.weight[:3], 1000 * matrix.weight[3:]])
    indices = mx.array([[[0, 1], [0, 2], [0, 1]]])
    call = Heard(normal(1, 3, 1, 1, 64), (indices,), {}, normal(1, 3, 2, 1, 32, seed=2))
    found = costs(matrix, [call], num_tokens=3, dtype="float16", seed=0)
    wanted = by_hand(matrix, call, "4/64", None) / 3
    assert found["4/64"].kl == pytest.approx(wanted, rel=1e-3)
    never = mx.array([[[3, 3], [3, 3], [3, 3]]])
    asked = Heard(call.x, (never,), {}, call.gradient)
    more = costs(matrix, [asked], num_tokens=3, dtype="float16", seed=0)
    assert more["4/64"].kl > 1000 * found["4/64"].kl


def test_matrices_by_head_are_measured_both_ways() -> None:
    matrix = MultiLinear(64, 32, 2)
    call = Heard(normal(1, 2, 5, 64), (), {}, normal(1, 2, 5, 32, seed=2))
    back = Heard(normal(1, 2, 5, 32), (False,), {}, normal(1, 2, 5, 64, seed=2))
    for one in (call, back):
        found = costs(matrix, [one], num_tokens=5, dtype="float16", seed=0)
        wanted = by_hand(matrix, one, "4/64", None) / 5
        assert found["4/64"].kl == pytest.approx(wanted, rel=1e-3)


class Two(nn.Module):
    """Two matrices, the second of which is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16, bias=False)
        self.second = nn.Linear(16, 16)

    def __call__(self, x: mx.array) -> mx.array:
        return self.second(mx.tanh(self.second(self.first(x))))


def test_taps_hear_inputs_and_gradients_of_every_call() -> None:
    module = Two()
    x, cotangent = normal(1, 3, 16), normal(1, 3, 16, seed=1)
    plain = module(x)
    found = matrices(module)
    assert list(found) == ["first", "second"]
    with Tapped(module, found) as tapped:
        out, heard = tapped.listen(lambda: module(x))
        gradient, by_name = tapped.gradients(module, x, cotangent)
    assert mx.array_equal(out, plain).item()
    assert [len(heard[name]) for name in ("first", "second")] == [1, 2]
    assert mx.array_equal(heard["first"][0].x, x).item()
    assert mx.array_equal(by_name["second"][1], cotangent).item()
    _, (wanted,) = mx.vjp(lambda x: [module(x)], [x], [cotangent])
    assert mx.allclose(gradient, wanted, atol=1e-5).item()
    back = (cotangent @ module.second.weight) * (1 - mx.square(heard["second"][1].x))
    assert mx.allclose(by_name["second"][0], back, atol=1e-5).item()
    assert type(module.first) is nn.Linear


class Block(nn.Module):
    """Three matrices of one input, one of what they give, and one that is never called."""

    def __init__(self) -> None:
        super().__init__()
        for name in ("v", "q", "k", "out", "spare"):
            self[name] = nn.Linear(16, 16, bias=False)

    def __call__(self, x: mx.array) -> mx.array:
        return x + self.out(self.q(x) * self.k(x) + self.v(x))


def test_stages_go_by_what_matrices_hear_in_the_order_of_calls() -> None:
    module = Block()
    found = matrices(module)
    x = normal(1, 3, 16)
    with Tapped(module, found) as tapped:
        assert tapped.stages(lambda: module(x)) == [["q", "k", "v"], ["out"], ["spare"]]
        first = tapped.inputs(lambda: module(x), ["q", "v"])
        found["q"].weight = mx.zeros((16, 16))
        then = tapped.inputs(lambda: module(x), ["out"])
    assert [*first] == ["q", "v"]
    assert mx.array_equal(first["q"][0].x, x).item()
    assert mx.allclose(then["out"][0].x, x @ module.v.weight.T, atol=1e-5).item()


def test_moments_of_a_tied_table_sum_both_uses() -> None:
    table = nn.Embedding(50, 16)
    found = Moments(table)
    x, energy = normal(5, 16), mx.arange(1.0, 6.0)
    found.add(Heard(x, (), {}, is_head=True), energy)
    columns = mx.arange(16.0)
    found.add(Heard(mx.array([[3, 7]]), (), {}), columns)
    wanted = np.array((x * energy[:, None]).T @ x) + np.diag(np.array(columns))
    assert found.whole is not None
    assert np.allclose(found.whole, wanted, atol=1e-4)
    assert found.num_tokens == 5


def test_moments_of_experts_are_each_expert_s_own() -> None:
    matrix = SwitchLinear(16, 8, 3, bias=False)
    found = Moments(matrix)
    x = normal(1, 2, 1, 1, 16)
    indices = mx.array([[[0, 1], [0, 0]]])
    found.add(Heard(x, (indices,), {}), mx.array([1.0, 2.0, 3.0, 4.0]))
    first, second = mx.square(x[0, 0, 0, 0]), mx.square(x[0, 1, 0, 0])
    importance = found.importance()
    assert importance is not None
    assert mx.allclose(importance[0, 0], first + 7 * second, atol=1e-5).item()
    assert mx.allclose(importance[1, 0], 2 * first, atol=1e-5).item()
    assert not mx.any(importance[2]).item()


class Stuck(nn.Module):
    """A module that mlx can't differentiate."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)

    def __call__(self, x: mx.array) -> mx.array:
        return mx.linalg.qr(self.first(x)[0], stream=mx.cpu)[0]


def test_what_has_no_gradient_is_refused_with_the_reason() -> None:
    """Q1: no rule by position takes the place of a measurement."""
    module = Stuck()
    with Tapped(module, matrices(module)) as tapped, pytest.raises(ModelError, match="no gradient"):
        tapped.gradients(module, normal(1, 20, 16), normal(20, 16))
