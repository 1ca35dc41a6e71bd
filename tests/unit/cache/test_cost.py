"""Load or compute: by measured rates, with patience, and never one way for ever."""

from collections.abc import Sequence

import pytest

from omlx.cache.cost import LoadCost, LoadMode
from omlx.cache.hashing import token_array
from omlx.cache.lookup import Hit
from tests.fakes.blocks import Clock
from tests.fakes.cache import Rig

MB = 10**6


def measured(
    *, bytes_per_s: float, tokens_per_s: float, mode: LoadMode = LoadMode.AUTO
) -> tuple[LoadCost, Clock]:
    clock = Clock()
    cost = LoadCost(mode, clock=clock)
    cost.read(int(bytes_per_s), 1.0)
    cost.prefilled(int(tokens_per_s), 1.0)
    return cost, clock


@pytest.mark.parametrize(
    ("mode", "fast", "slow"),
    [(LoadMode.AUTO, True, False), (LoadMode.ALWAYS, True, True), (LoadMode.NEVER, False, False)],
)
def test_the_three_modes(mode: LoadMode, *, fast: bool, slow: bool) -> None:
    cost, _ = measured(bytes_per_s=1000 * MB, tokens_per_s=1000, mode=mode)
    assert cost.may_load is (mode is not LoadMode.NEVER)
    assert cost.is_worth_loading(100 * MB, 1000) is fast  # 0.1 s against 1 s
    assert cost.is_worth_loading(2000 * MB, 1000) is slow  # 2 s against 1 s


def test_until_both_rates_are_known_it_loads() -> None:
    cost = LoadCost(clock=Clock())
    assert cost.is_worth_loading(1 << 40, 1)
    cost.read(1, 1.0)
    assert cost.is_worth_loading(1 << 40, 1)
    cost.prefilled(31, 0.001)
    assert cost.is_worth_loading(1 << 40, 1), "a few tokens are no measurement"
    cost.prefilled(32, 0.001)
    assert not cost.is_worth_loading(1 << 40, 1)


def test_it_does_not_flap_at_the_threshold() -> None:
    """Computing a token takes 1 ms, and loading it so many times as long."""
    cost, _ = measured(bytes_per_s=1000 * MB, tokens_per_s=1000)

    def times(factor: float) -> bool:
        return cost.is_worth_loading(int(factor * 1000 * MB) - 5 * MB, 1000)

    assert times(1.0) and times(1.09) and times(1.24), "when in doubt it loads"
    assert not times(1.26)
    assert not times(1.24) and not times(1.11)
    assert times(1.09) and times(1.24)
    assert cost.num_skipped == 3


def test_rates_follow_what_is_measured() -> None:
    cost, _ = measured(bytes_per_s=100 * MB, tokens_per_s=100)
    for _ in range(20):
        cost.read(300 * MB, 1.0)
        cost.prefilled(500, 1.0)
    assert cost.read_bytes_per_s == pytest.approx(300 * MB, rel=0.01)
    assert cost.prefill_tokens_per_s == pytest.approx(500, rel=0.01)
    cost.read(1 * MB, 0.1)
    assert cost.read_bytes_per_s > 280 * MB, "a small read says less than large ones"
    before = cost.read_bytes_per_s
    cost.read(0, 1.0)
    assert cost.read_bytes_per_s == before


def test_a_slow_disk_is_tried_again_after_a_while_that_grows_with_the_loss() -> None:
    cost, clock = measured(bytes_per_s=100 * MB, tokens_per_s=1000)
    assert not cost.is_worth_loading(300 * MB, 1000)  # 3 s against 1 s
    clock.now += 60
    assert not cost.is_worth_loading(300 * MB, 1000)
    assert cost.is_worth_loading(120 * MB, 200), "a smaller trial"
    clock.now += 60
    assert cost.is_worth_loading(300 * MB, 1000)
    cost.read(300 * MB, 0.1)  # it has become fast
    assert cost.is_worth_loading(300 * MB, 1000)
    for _ in range(9):
        cost.read(300 * MB, 3.0)
    assert not cost.is_worth_loading(300 * MB, 1000), "and the next trial waits again"


LONG: Sequence[int] = range(1, 23)


def rig_with(cost: LoadCost) -> Rig:
    rig = Rig(cost=cost)
    rig.compute(LONG)
    rig.restart()
    return rig


def bytes_read(rig: Rig) -> int:
    assert rig.disk is not None
    return rig.disk.counters().bytes_read


def test_what_is_slower_to_load_is_computed_and_stored_once() -> None:
    cost, _ = measured(bytes_per_s=1, tokens_per_s=1000)
    rig = rig_with(cost)
    assert rig.compute([*LONG, 99]).num_tokens == 0
    assert bytes_read(rig) == 0
    assert cost.num_skipped == 1
    assert rig.look_up([*LONG, 99, 100]).from_memory == len(LONG) + 1
    rig.pass_delay()
    assert rig.on_disk() == [2, 3, 4, 4, 4, 4, 4], "one more tail; the blocks were there"


def test_what_is_in_memory_is_used_where_the_rest_is_too_slow_to_load() -> None:
    cost, _ = measured(bytes_per_s=1, tokens_per_s=1000)
    rig = rig_with(cost)
    rig.compute(LONG[:9])
    hit = rig.look_up([*LONG, 99])
    assert (hit.from_memory, hit.from_disk) == (9, 0)


def test_never_asks_the_disk_for_nothing_and_writes_all_the_same() -> None:
    rig = rig_with(LoadCost(LoadMode.NEVER))
    assert rig.on_disk() == [2, 4, 4, 4, 4, 4]
    hits: list[Hit] = []
    rig.prefix.look_up(token_array([*LONG, 99]), hits.append)
    assert [hit.num_tokens for hit in hits] == [0], "it answers at once"
    rig.compute([*LONG, 99])
    assert rig.look_up([*LONG, 99, 100]).from_memory == len(LONG) + 1
