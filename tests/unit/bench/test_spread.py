"""Statistics hold for any samples."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.bench.spread import interval, paired_ratio, percentile, spread, student

VALUES = st.lists(st.floats(1e-6, 1e9), min_size=1, max_size=60)
SHARES = st.floats(0, 1)


@given(VALUES, SHARES)
def test_a_percentile_is_a_sample_that_the_share_does_not_exceed(
    values: list[float], share: float
) -> None:
    found = percentile(values, share)
    assert found in values
    below = sum(value <= found for value in values)
    assert below >= share * len(values) - 1e-6


@given(VALUES, SHARES, SHARES)
def test_percentiles_grow_with_the_share(values: list[float], a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert percentile(values, low) <= percentile(values, high)


def test_nearest_ranks() -> None:
    values = [float(n) for n in range(1, 21)]
    assert percentile(values, 0.95) == 19  # 0.95 × 20 is a little more than 19 in floats
    assert percentile(values, 0.5) == 10
    assert percentile(values, 0.0) == 1
    assert percentile(values, 1.0) == 20


@given(VALUES)
def test_a_spread_is_in_order_and_order_does_not_matter(values: list[float]) -> None:
    found = spread(values)
    assert found.least <= found.p50 <= found.p95 <= found.p99 <= found.most
    assert found.least <= found.median <= found.most
    assert found.least <= found.mean <= found.most
    assert found.count == len(values)
    again = spread(values[::-1])
    assert math.isclose(again.mean, found.mean)
    assert (again.median, again.p95) == (found.median, found.p95)


@pytest.mark.parametrize("samples", [[], [math.nan], [1.0, math.inf]])
def test_no_spread_of_nothing_or_of_no_number(samples: list[float]) -> None:
    with pytest.raises(ValueError, match="samples"):
        spread(samples)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=40))
def test_the_interval_holds_its_ratio(ratios: list[float]) -> None:
    found = interval(ratios)
    assert found.low95 <= found.ratio * (1 + 1e-9)
    assert found.high95 is None or found.high95 >= found.ratio * (1 - 1e-9)
    assert (found.high95 is None) == (len(ratios) == 1)
    assert min(ratios) * (1 - 1e-9) <= found.ratio <= max(ratios) * (1 + 1e-9)


@given(st.lists(st.tuples(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3)), min_size=2, max_size=20))
def test_turning_a_ratio_round_turns_its_interval_round(pairs: list[tuple[float, float]]) -> None:
    a, b = [x for x, _ in pairs], [y for _, y in pairs]
    there, back = paired_ratio(a, b), paired_ratio(b, a)
    assert there.high95 is not None and back.high95 is not None
    assert math.isclose(there.ratio, 1 / back.ratio, rel_tol=1e-9)
    assert math.isclose(there.low95, 1 / back.high95, rel_tol=1e-6)


def test_a_side_against_itself_is_one() -> None:
    found = paired_ratio([3.0, 5.0, 7.0], [3.0, 5.0, 7.0])
    assert (found.ratio, found.low95, found.high95, found.pairs) == (1.0, 1.0, 1.0, 3)
    assert not found.is_decided


def test_pairing_takes_what_rounds_have_in_common_out() -> None:
    rounds = [1.0, 10.0, 100.0]  # a machine that differs a hundredfold from round to round
    found = paired_ratio([2 * r for r in rounds], rounds)
    assert found.ratio == pytest.approx(2)
    assert found.low95 == pytest.approx(2)
    assert found.is_decided


def test_a_known_interval() -> None:
    # Logs 0, 1, 2: mean 1, deviation 1; t for two degrees of freedom is 4.303.
    found = interval([1.0, math.e, math.e**2])
    half = 4.303 / math.sqrt(3)
    assert found.ratio == pytest.approx(math.e)
    assert found.low95 == pytest.approx(math.exp(1 - half))
    assert found.high95 == pytest.approx(math.exp(1 + half))


def test_one_pair_decides_nothing() -> None:
    found = paired_ratio([10.0], [1.0])
    assert (found.ratio, found.low95, found.high95) == (10.0, 0.0, None)
    assert not found.is_decided


@pytest.mark.parametrize(
    ("a", "b"), [([1.0], [1.0, 2.0]), ([0.0], [1.0]), ([1.0], [-1.0]), ([], [])]
)
def test_what_is_no_pair_is_an_error(a: list[float], b: list[float]) -> None:
    with pytest.raises(ValueError, match=r"paired|positive|no ratios"):
        paired_ratio(a, b)


@pytest.mark.parametrize(("freedom", "point"), [(1, 12.706), (10, 2.228), (40, 2.021), (120, 1.98)])
def test_points_of_student(freedom: int, point: float) -> None:
    assert student(freedom) == pytest.approx(point, abs=5e-4)


def test_points_of_student_fall_to_the_normal_one() -> None:
    points = [student(freedom) for freedom in range(1, 400)]
    assert points == sorted(points, reverse=True)
    assert points[-1] > 1.95996
    with pytest.raises(ValueError, match="at least one"):
        student(0)
