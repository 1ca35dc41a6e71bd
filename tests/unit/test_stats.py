"""Running statistics: sums over the last day."""

from collections import Counter

from omlx.stats import LastDay

QUARTER_S = 900.0


def test_sums_by_name() -> None:
    day = LastDay(0.0)
    day.add(1.0, "a", turns=1, tokens=10)
    day.add(QUARTER_S * 3, "a", turns=1, tokens=5)
    day.add(QUARTER_S * 3, "b", turns=1)
    assert day.sums(QUARTER_S * 3) == {"a": Counter(turns=2, tokens=15), "b": Counter(turns=1)}


def test_what_is_older_than_a_day_is_forgotten() -> None:
    day = LastDay(0.0)
    day.add(10.0, "a", turns=1)
    day.add(5 * QUARTER_S, "a", turns=1)
    assert day.sums(LastDay.DAY_S - 1)["a"]["turns"] == 2
    assert day.sums(LastDay.DAY_S + QUARTER_S)["a"]["turns"] == 1
    assert day.sums(2 * LastDay.DAY_S) == {}


def test_how_much_of_the_day_it_knows() -> None:
    day = LastDay(100.0)
    assert day.covered_s(100.0) == 0
    assert day.covered_s(160.0) == 60
    assert day.covered_s(10 * LastDay.DAY_S) == LastDay.DAY_S


def test_names_are_bounded_and_nothing_is_lost() -> None:
    day = LastDay(0.0, max_names=3)
    for number in range(1000):
        day.add(1.0, f"n{number}", turns=1)
    day.add(2.0, "n0", turns=1)
    sums = day.sums(2.0)
    assert set(sums) == {"n0", "n1", "n2", LastDay.OTHER}
    assert sums["n0"]["turns"] == 2
    assert sum(one["turns"] for one in sums.values()) == 1001
