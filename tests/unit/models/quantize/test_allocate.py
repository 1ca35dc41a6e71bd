"""The knapsack: within the budget, as good as trying all choices, the same every time.

Knows nothing about models.
"""

import itertools
import random

import pytest

from omlx.errors import ModelError
from omlx.models.quantize.allocate import Item, Option, allocate, hull, smallest_bytes
from omlx.models.quantize.formats import AFFINE, BY_LABEL, candidates
from omlx.models.quantize.plan import Goal, Matrix, Planner, role_of


def random_items(rng: random.Random, count: int, options: int) -> list[Item]:
    items: list[Item] = []
    for number in range(count):
        base = rng.randrange(50, 400)
        error = rng.random() * 10
        found = [
            Option(f"{n}", base * (n + 2), error * rng.uniform(0.5, 1.1) * 0.4**n)
            for n in range(options)
        ]
        items.append(Item(f"m{number}", tuple(found)))
    return items


def best_of_all(items: list[Item], budget: int) -> float:
    return min(
        sum(one.error for one in chosen)
        for chosen in itertools.product(*(item.options for item in items))
        if sum(one.nbytes for one in chosen) <= budget
    )


@pytest.mark.parametrize("seed", range(20))
def test_it_is_near_the_best_of_all_choices(seed: int) -> None:
    rng = random.Random(seed)
    items = random_items(rng, 8, 3)
    least = smallest_bytes(items)
    budget = int(least * rng.uniform(1.05, 2.0))
    found = allocate(items, budget)
    assert found is not None
    assert found.nbytes <= budget
    assert found.nbytes == sum(
        i.options[n].nbytes for i, n in zip(items, found.chosen, strict=True)
    )
    assert found.error <= 1.2 * best_of_all(items, budget)
    assert found == allocate(items, budget)


@pytest.mark.parametrize("seed", range(5))
def test_more_bytes_are_never_worse_by_much(seed: int) -> None:
    """A greedy step may lose a little to the best, but never a step of the budget."""
    items = random_items(random.Random(seed), 40, 6)
    least = smallest_bytes(items)
    errors = []
    for share in (1.0, 1.1, 1.3, 1.6, 2.0, 3.0):
        found = allocate(items, int(least * share))
        assert found is not None
        errors.append(found.error)
    assert errors == sorted(errors, reverse=True)


def test_what_fits_not_even_with_the_smallest_is_told() -> None:
    items = random_items(random.Random(1), 4, 3)
    assert allocate(items, smallest_bytes(items) - 1) is None
    found = allocate(items, smallest_bytes(items))
    assert found is not None and found.chosen == (0, 0, 0, 0)


def test_a_dominated_option_is_never_taken() -> None:
    item = Item("m", (Option("a", 10, 5.0), Option("b", 20, 6.0), Option("c", 30, 1.0)))
    assert hull(item) == [0, 2]
    found = allocate([item], 25)
    assert found is not None and found.chosen == (0,)


def test_sizes_of_formats_are_those_of_mlx() -> None:
    import mlx.core as mx

    weight = mx.random.normal((4, 256)).astype(mx.float16)
    for form in candidates(256):
        arrays = mx.quantize(weight, group_size=form.group, bits=form.bits, mode=form.mode)
        assert sum(a.nbytes for a in arrays) == form.nbytes(weight.size, "float16"), form


@pytest.mark.parametrize(
    ("columns", "groups"), [(576, {32, 64}), (1536, {32, 64, 128}), (96, {32}), (100, set())]
)
def test_a_format_must_divide_the_rows(columns: int, groups: set[int]) -> None:
    assert {form.group for form in candidates(columns) if form.mode == "affine"} == groups
    assert all(form in AFFINE or form.mode != "affine" for form in candidates(columns))


def matrix(name: str, role: str = "inner", size: int = 128 * 1024, weight: float = 1.0) -> Matrix:
    """Costs that fall by a factor of four for each bit, as those of a uniform step do."""
    costs = {
        one.label: (weight * 4.0**-one.bits * (1 + one.group / 256), 4.0 ** -(one.bits - 1))
        for one in BY_LABEL.values()
        if one.mode == "affine"
    }
    return Matrix(name, size, role, costs)


def planner(*matrices: Matrix, dtype: str = "float16") -> Planner:
    total = sum(one.num_values for one in matrices)
    return Planner(matrices, other_bytes=1000, num_values=total + 500, dtype=dtype)


@pytest.mark.parametrize("bits", [2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 8.0])
def test_a_plan_keeps_to_the_bits_and_spends_them(bits: float) -> None:
    matrices = [matrix(f"m{n}", weight=1.0 + n) for n in range(40)]
    plan = planner(*matrices).plan(Goal(bits=bits))
    assert bits * 0.99 < plan.bits <= bits
    assert plan.predicted_kl == pytest.approx(
        sum(dict(one.costs).get(plan.formats[one.name], (0, 0))[0] for one in matrices)
    )


def test_the_heavier_an_error_weighs_the_more_bits_it_gets() -> None:
    plan = planner(matrix("light"), matrix("heavy", weight=1000.0)).plan(Goal(bits=4.0))
    light, heavy = (BY_LABEL[plan.formats[name]].bits for name in ("light", "heavy"))
    assert light < heavy


def test_two_bits_are_refused_with_what_can_be_had() -> None:
    with pytest.raises(ModelError, match=r"--bits 2 is less than this model can take") as caught:
        planner(matrix("m")).plan(Goal(bits=2.0))
    assert "2.25 bits a weight" in caught.value.message or "2.3" in caught.value.message
    bits = float(caught.value.hint.split("--bits ")[1].split()[0])
    planner(matrix("m")).plan(Goal(bits=bits))
    with pytest.raises(ModelError) as caught:
        planner(matrix("m"), dtype="float32").plan(Goal(bits=2.3))
    assert "--dtype float16" in caught.value.hint


def test_rows_that_128_divides_go_down_to_two_and_a_quarter() -> None:
    """And others to 2.5, as groups of 64 do; mlx has nothing smaller."""
    costs = {one.label: (4.0**-one.bits, 0.01) for one in candidates(1536)}
    wide = Matrix("wide", 1536 * 576, "inner", costs)
    plan = Planner([wide], other_bytes=0, num_values=wide.num_values, dtype="float16").plan(
        Goal(bits=2.25)
    )
    assert (plan.formats["wide"], plan.bits) == ("2/128", 2.25)
    narrow = Matrix("narrow", 1536 * 576, "inner", {
        one.label: (4.0**-one.bits, 0.01) for one in candidates(576)
    })  # fmt: skip
    with pytest.raises(ModelError, match=r"make 2\.50 bits a weight"):
        Planner([narrow], other_bytes=0, num_values=narrow.num_values, dtype="float16").plan(
            Goal(bits=2.4)
        )


def test_floors_hold_and_give_way_only_where_they_must() -> None:
    edge, router = matrix("edge", "edge"), matrix("router", "router", 1024)
    inner = [matrix(f"m{n}") for n in range(4)]
    wide = planner(edge, router, *inner).plan(Goal(bits=3.0))
    assert BY_LABEL[wide.formats["edge"]].bits >= 3
    assert wide.notes == ()
    tight = planner(edge, router, *inner).plan(Goal(bits=2.32))
    assert BY_LABEL[tight.formats["edge"]].bits == 2
    assert "first and last block" in tight.notes[0]
    for plan in (wide, tight):
        label = plan.formats["router"]
        assert label == "kept" or BY_LABEL[label].bits >= 6


def test_a_matrix_without_costs_stays_as_it_is() -> None:
    odd = Matrix("odd", 1000, "inner", {})
    plan = planner(odd, matrix("m")).plan(Goal(bits=4.0))
    assert plan.formats["odd"] == "kept"


def test_a_size_is_a_limit_in_bytes() -> None:
    plan = planner(*(matrix(f"m{n}") for n in range(10))).plan(Goal(size_bytes=700_000))
    assert 690_000 < plan.nbytes <= 700_000


def test_a_quality_is_reached_with_little() -> None:
    made = planner(*(matrix(f"m{n}", weight=1 + n) for n in range(10)))
    plan = made.plan(Goal(kl=0.05))
    assert plan.predicted_kl <= 0.05
    assert made.within(int(plan.nbytes * 0.99), "x").predicted_kl > 0.05


@pytest.mark.parametrize(
    ("name", "layer", "role"),
    [
        ("model.embed_tokens", None, "embedding"),
        ("lm_head", None, "embedding"),
        ("model.layers.3.mlp.gate", 3, "router"),
        ("model.layers.0.mlp.gate", 0, "router"),
        ("model.layers.3.mlp.gate_proj", 3, "inner"),
        ("model.layers.0.self_attn.q_proj", 0, "edge"),
        ("model.layers.9.self_attn.q_proj", 9, "edge"),
    ],
)
def test_roles(name: str, layer: int | None, role: str) -> None:
    assert role_of(name, layer=layer, num_layers=10) == role
