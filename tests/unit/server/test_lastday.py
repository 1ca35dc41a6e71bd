"""The figures of the last day: by client, of the disk, and what TTFT was made of."""

import pytest

from omlx.engine.request import RequestStats
from omlx.server.lastday import LastDayFigures
from omlx.server.machinememory import machine_memory
from omlx.server.session import Caller, Course

DAY_S = 86400.0


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def course(client="a", prompt=100, cached=0, **fields):
    return Course(
        "r", "m", 0.0, prompt, Caller("chat", client), cached_memory=cached, admitted=1.0, **fields
    )


def test_turns_by_client(clock):
    day = LastDayFigures(clock)
    day.admitted(course("a", 100, 40))
    day.admitted(course("a", 100, 100))
    day.admitted(course("", 10, 0))
    assert day.last_day()["clients"] == [
        {
            "client": "a",
            "turns": 2,
            "prompt_tokens": 200,
            "cached_tokens": 140,
            "uncached_mean": 30.0,
        },
        {
            "client": "",
            "turns": 1,
            "prompt_tokens": 10,
            "cached_tokens": 0,
            "uncached_mean": 10.0,
        },
    ]
    clock.now += 2 * DAY_S
    assert day.last_day()["clients"] == []


def test_bytes_of_the_day(clock):
    day = LastDayFigures(clock)
    day.moved(5, 0)
    clock.now += 3600
    day.moved(7, 3)
    told = day.last_day()
    assert (told["written_bytes"], told["evicted_bytes"], told["covered_s"]) == (12, 3, 3600)
    clock.now += DAY_S - 1800
    told = day.last_day()
    assert (told["written_bytes"], told["evicted_bytes"], told["covered_s"]) == (7, 3, DAY_S)


def test_clients_are_bounded_over_the_whole_day(clock):
    day = LastDayFigures(clock)
    for number in range(500):
        day.admitted(course(f"client-{number}", 10))
        clock.now += 60
    day.admitted(course("client-499", 10))
    clients = day.last_day()["clients"]
    assert len(clients) == 65
    assert clients[0]["client"] == "client-499"
    assert sum(one["turns"] for one in clients) == 501
    assert clients[-1] == {
        "client": "other",
        "turns": 436,
        "prompt_tokens": 4360,
        "cached_tokens": 0,
        "uncached_mean": 10.0,
    }


def test_the_parts_of_ttft_are_means_that_sum_to_its_mean(clock):
    day = LastDayFigures(clock)
    assert day.ttft_parts_s() == {}
    day.closed(course())  # never got so far
    totals = []
    for prefill_s in (1.0, 3.0):
        stats = RequestStats(100, 0, 0, 1, 0.25, 0.5, prefill_s, 0.0, prefill_s + 1.0)
        one = course(submitted=0.5, first_token=prefill_s + 2.0, stats=stats)
        day.closed(one)
        totals.append(one.first_token - one.arrived)
    parts = day.ttft_parts_s()
    assert parts["prefill"] == 2.0
    assert (parts["queue"], parts["load"]) == (0.25, 0.5)
    assert sum(parts.values()) == pytest.approx(sum(totals) / 2)


def test_the_memory_of_the_machine():
    found = machine_memory()
    assert found is not None
    assert 0 < found["available_bytes"] <= found["total_bytes"]
