"""Who waits for whom: prompts that share a prefix, without a cache or a batch."""

from collections.abc import Sequence

import pytest

from omlx.cache.hashing import token_array
from omlx.engine.flights import Flight, Flights, Keeping

BLOCK = 4
HEAD = list(range(100, 130))


def always(count: int, take: int) -> bool:
    return True


def whole(count: int, take: int) -> bool:
    return take == count


def flights() -> Flights:
    return Flights(Keeping(BLOCK, 8, always))


class Play:
    """Prompts by name, their look-ups answered with what a test says."""

    def __init__(self, **prompts: Sequence[int]) -> None:
        self.flights = flights()
        self.prompts = prompts

    def ask(self, name: str) -> None:
        self.flights.look_up(name, self.prompts[name])

    def found(self, name: str, num_hit: int = 0) -> bool:
        return self.flights.found(name, token_array(self.prompts[name]), num_hit)

    def look_up(self, name: str, num_hit: int = 0) -> bool:
        self.ask(name)
        return self.found(name, num_hit)

    def woken(self) -> list[str]:
        assert self.flights.has_woken == bool(names := self.flights.take_woken())
        assert not self.flights.has_woken
        return names


@pytest.mark.parametrize(
    ("num_tokens", "shared", "usable", "kept_at"),
    [
        (30, 30, 29, 29),  # the tail goes up to the last token but one
        (30, 28, 28, 28),
        (30, 27, 27, 28),
        (30, 9, 9, 12),
        (30, 8, 8, 8),
        (30, 0, 0, 0),
        (9, 9, 8, 8),
        (2, 2, 1, 1),
        (1, 1, 0, 0),
    ],
)
def test_what_a_prompt_leaves(num_tokens: int, shared: int, usable: int, kept_at: int) -> None:
    keeping = Keeping(BLOCK, 8, always)
    flight = Flight(list(range(num_tokens)))
    assert keeping.usable(flight, 0, shared) == usable
    assert keeping.kept_at(flight, usable) == kept_at


@pytest.mark.parametrize(("shared", "usable"), [(30, 29), (29, 29), (28, 28), (27, 24), (3, 0)])
def test_blocks_that_can_not_be_cut(shared: int, usable: int) -> None:
    assert Keeping(BLOCK, 8, whole).usable(Flight(list(range(30))), 0, shared) == usable


@pytest.mark.parametrize(
    ("start", "head", "shared", "usable"),
    [
        (0, 0, 100, 99),
        (0, 0, 98, 96),  # every 20 tokens at least, where a chunk of 8 ends: 24, 48, 72, 96
        (0, 0, 95, 72),
        (0, 0, 24, 24),
        (0, 0, 23, 0),
        (0, 13, 23, 13),
        (0, 13, 39, 13),  # and from there on 40, 64, 88
        (0, 13, 40, 40),
        (5, 0, 31, 0),  # 8 and then 32: 25 tokens later is the first that counts
        (5, 0, 32, 32),
        (50, 13, 71, 0),  # the head is in the hit
        (96, 0, 99, 99),
    ],
)
def test_snapshots_of_recurrent_layers(start: int, head: int, shared: int, usable: int) -> None:
    keeping = Keeping(BLOCK, 8, always, snapshot_interval=20)
    assert keeping.usable(Flight(list(range(100)), (head,)), start, shared) == usable


def test_a_duplicate_waits_for_all_but_the_last_token() -> None:
    play = Play(a=HEAD, b=HEAD)
    assert play.look_up("a")
    assert not play.look_up("b")
    play.flights.kept("a", 28)
    assert play.woken() == []
    play.flights.kept("a", 29)
    assert play.woken() == ["b"]
    assert play.look_up("b", 29)


def test_it_waits_for_the_block_in_which_they_part_and_not_for_the_request() -> None:
    play = Play(a=[*HEAD, 1, 2, 3], b=[*HEAD[:10], 9, 9])
    assert play.look_up("a")
    assert not play.look_up("b")
    play.flights.kept("a", 11)  # two blocks are kept, and a part of the third is not
    assert play.woken() == []
    play.flights.kept("a", 13)
    assert play.woken() == ["b"]


def test_one_that_begins_where_another_goes_on() -> None:
    play = Play(a=HEAD[:11], b=HEAD)
    assert play.look_up("a")
    assert not play.look_up("b")
    play.flights.kept("a", 10)
    assert play.woken() == ["b"]
    assert play.look_up("b", 10)
    play = Play(a=HEAD, b=HEAD[:11])
    assert play.look_up("a")
    assert not play.look_up("b")
    play.flights.kept("a", 12)
    assert play.woken() == ["b"]


@pytest.mark.parametrize(("shared", "num_hit"), [(3, 0), (0, 0), (10, 7), (10, 10), (30, 27)])
def test_less_than_a_block_is_not_worth_waiting(shared: int, num_hit: int) -> None:
    play = Play(a=HEAD, b=[*HEAD[:shared], 1, 2, 3])
    assert play.look_up("a", min(num_hit, 8))
    assert play.look_up("b", num_hit)


def test_only_those_before_it_count() -> None:
    play = Play(a=HEAD, b=HEAD)
    play.ask("a")
    play.ask("b")
    assert not play.found("b"), "the other one is there, if it is looked up still"
    assert play.found("a")


def test_it_waits_for_whoever_leaves_most() -> None:
    play = Play(a=HEAD[:9], b=HEAD[:21], c=HEAD[:13], d=HEAD)
    assert play.look_up("a")
    for name in "bcd":
        assert not play.look_up(name)
    play.flights.kept("a", 8)
    assert play.woken() == ["b"]
    assert play.look_up("b", 8)
    play.flights.kept("b", 12)
    assert play.woken() == ["c"]
    play.flights.kept("b", 20)
    assert play.woken() == ["d"]


def test_nobody_waits_for_what_is_kept_already() -> None:
    play = Play(a=HEAD, b=HEAD)
    assert play.look_up("a")
    play.flights.kept("a", 29)
    assert play.look_up("b"), "its blocks were lost: it is computed again"


@pytest.mark.parametrize("is_over", [True, False])
def test_blocks_that_came_while_it_was_looked_up(is_over: bool) -> None:
    play = Play(a=HEAD, b=HEAD)
    assert play.look_up("a")
    play.ask("b")
    play.flights.kept("a", 29)
    if is_over:
        play.flights.over("a")
    assert not play.found("b")
    assert play.woken() == ["b"]
    assert play.look_up("b", 0), "once is enough"


def test_those_that_wait_for_one_that_is_gone_are_looked_up_again() -> None:
    play = Play(a=HEAD, b=HEAD, c=HEAD)
    assert play.look_up("a")
    assert not play.look_up("b")
    assert not play.look_up("c")
    play.flights.kept("a", 8)
    play.flights.over("a")
    assert play.woken() == ["b", "c"]
    assert play.look_up("b", 8)
    assert not play.look_up("c", 8), "the next one leads"
    play.flights.over("c")
    play.flights.kept("b", 29)
    assert play.woken() == []


def test_one_that_is_gone_is_not_woken() -> None:
    play = Play(a=HEAD, b=HEAD)
    assert play.look_up("a")
    assert not play.look_up("b")
    assert play.flights.is_held("b") and not play.flights.is_held("a")
    play.flights.over("a")
    assert play.flights.is_held("b")
    play.flights.over("b")
    play.flights.over("b")
    assert play.woken() == []
    assert not play.flights.is_held("b")


def test_one_that_stores_nothing_is_no_help() -> None:
    play = Play(a=HEAD, b=HEAD)
    play.flights.look_up("a", HEAD, is_shared=False)
    assert play.found("a")
    assert play.look_up("b")


def test_a_follower_may_store_nothing() -> None:
    play = Play(a=HEAD, b=HEAD)
    assert play.look_up("a")
    play.flights.look_up("b", HEAD, is_shared=False)
    assert not play.found("b")


def test_one_of_another_salt_is_no_help() -> None:
    """P22: waiting would tell that somebody else asks the same."""
    play = Play(a=HEAD, b=HEAD, c=HEAD)
    play.flights.look_up("a", HEAD, salt="one")
    assert play.found("a")
    play.flights.look_up("b", HEAD, salt="two")
    assert play.found("b")
    play.flights.look_up("c", HEAD, salt="one")
    assert not play.found("c")
    assert play.flights.leader_of("c") == "a"


def test_nobody_waits_where_nothing_is_kept() -> None:
    flights = Flights(None)
    for name in "ab":
        flights.look_up(name, HEAD)
        assert flights.found(name, token_array(HEAD), 0)
    flights.kept("a", 29)
    flights.over("a")
    assert not flights.has_woken
    assert flights.take_woken() == []
