"""Limits of keys: requests and tokens a minute, requests at the same time."""

import pytest

from omlx.server.errors import ApiError
from omlx.server.quota import Quotas
from omlx.settings.keys import Limits


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def quotas(clock: Clock) -> Quotas:
    return Quotas(clock)


def retry_after(quotas: Quotas, limits: Limits, name: str = "a") -> int | None:
    """After how many seconds to come again; None where the request is let in and ends at once."""
    try:
        with quotas.visit(name, limits):
            return None
    except ApiError as error:
        assert error.status == 429
        return int(error.headers["retry-after"])


def test_requests_a_minute(quotas: Quotas, clock: Clock) -> None:
    limits = Limits(requests_per_minute=6)
    assert [retry_after(quotas, limits) for _ in range(7)] == [None] * 6 + [10]
    clock.now += 9.5
    assert retry_after(quotas, limits) == 1
    clock.now += 0.5
    assert [retry_after(quotas, limits) for _ in range(2)] == [None, 10]
    clock.now += 10**6
    assert [retry_after(quotas, limits) for _ in range(7)] == [None] * 6 + [10]


def test_keys_do_not_share(quotas: Quotas) -> None:
    limits = Limits(requests_per_minute=1)
    assert [retry_after(quotas, limits, name) for name in "aabb"] == [None, 60, None, 60]


def test_no_limits(quotas: Quotas) -> None:
    assert {retry_after(quotas, Limits()) for _ in range(1000)} == {None}


def test_tokens_a_minute_are_charged_once_they_are_used(quotas: Quotas, clock: Clock) -> None:
    limits = Limits(tokens_per_minute=60)
    with quotas.visit("a", limits) as visit:
        visit.charge(50, then=lambda: 40)
        assert retry_after(quotas, limits) is None, "10 are left"
    # 30 more than there were are made up at one a second.
    assert retry_after(quotas, limits) == 31
    clock.now += 30
    assert retry_after(quotas, limits) == 1
    clock.now += 0.01
    assert retry_after(quotas, limits) is None


def test_what_was_generated_counts_where_a_request_fails(quotas: Quotas) -> None:
    limits = Limits(tokens_per_minute=60)
    with pytest.raises(ZeroDivisionError), quotas.visit("a", limits) as visit:
        visit.charge(1, then=lambda: 100)
        raise ZeroDivisionError
    assert retry_after(quotas, limits) == 42


def test_requests_at_the_same_time(quotas: Quotas) -> None:
    limits = Limits(concurrent=2)
    with quotas.visit("a", limits):
        with quotas.visit("a", limits):
            assert retry_after(quotas, limits) == 1
            assert retry_after(quotas, limits, "b") is None
        assert retry_after(quotas, limits) is None
        with pytest.raises(KeyError), quotas.visit("a", limits):
            raise KeyError
        assert retry_after(quotas, limits) is None


def test_a_refused_request_counts_for_nothing(quotas: Quotas, clock: Clock) -> None:
    limits = Limits(requests_per_minute=2, concurrent=1)
    with quotas.visit("a", limits):
        assert {retry_after(quotas, limits) for _ in range(10)} == {1}
    assert retry_after(quotas, limits) is None
    assert retry_after(quotas, limits) == 30


def test_a_limit_that_is_changed_holds_at_once(quotas: Quotas) -> None:
    assert retry_after(quotas, Limits(requests_per_minute=100)) is None
    many = Limits(requests_per_minute=2)
    assert [retry_after(quotas, many) for _ in range(3)] == [None, None, 30]
