"""What a server says of itself, and what is made of servers that say nothing, or nonsense."""

from omlx.bench.client import Target
from omlx.bench.insight import Course, Insight
from tests.fakes.http import JsonServer

MODEL = {
    "id": "m",
    "counters": {"bytes_written": 70},
    "writes": {"queued_bytes": 0, "dirty_bytes": 0},
}
RECENT = {"id": "abc", "cached_memory": 5, "cached_disk": 7, "uncached": 3, "part": "tool 1"}
STATUS = {"uptime_s": 12.5, "models": [MODEL, MODEL], "recent": [{"id": ""}, RECENT]}
ANSWERS = {
    "/health": {"status": "ready"},
    "/v1/models": {"data": [{"id": "other", "context_window": 1}, {"id": "m", "max_model_len": 9}]},
    "/admin/api/status": STATUS,
    "/admin/api/settings": {"settings": {"cache.block_size": {"value": 256}}},
}


class Clock:
    """Moves by what is waited."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds


def insight(url: str, clock: Clock | None = None) -> Insight:
    clock = clock or Clock()
    return Insight(Target(url, "m"), clock=clock, pause=clock.pause)


def test_all_that_omlx_says() -> None:
    with JsonServer(ANSWERS) as server:
        found = insight(server.address + "/v1")
        assert found.is_omlx and found.is_ready()
        assert found.uptime_s() == 12.5
        assert found.setting("cache.block_size") == 256
        assert found.setting("cache.none") is None
        assert found.window() == 9
        assert found.bytes_written() == 140
        assert found.wait_written(1.0) is True
        assert found.course("chatcmpl-abc") == Course(5, 7, 3, "tool 1")


def test_a_request_that_is_not_noted_is_waited_for_in_vain() -> None:
    clock = Clock()
    with JsonServer(ANSWERS) as server:
        assert insight(server.address, clock).course("chatcmpl-other") is None
        assert clock.now >= 5
        assert insight(server.address, clock).course("") is None


def test_blocks_that_are_still_to_be_written() -> None:
    clock = Clock()
    busy = {**MODEL, "writes": {"queued_bytes": 0, "dirty_bytes": 4}}
    with JsonServer({"/admin/api/status": {"models": [MODEL, busy]}}) as server:
        found = insight(server.address, clock)
        assert found.is_written() is False
        assert found.wait_written(3.0) is False
    assert clock.now >= 3


def test_others_say_little() -> None:
    with JsonServer({"/v1/models": {"data": [{"id": "m"}]}}) as server:
        found = insight(server.address)
        assert not found.is_omlx
        assert found.is_ready()
        for value in (
            found.uptime_s(),
            found.setting("cache.load"),
            found.window(),
            found.bytes_written(),
            found.wait_written(1.0),
            found.course("chatcmpl-abc"),
        ):
            assert value is None


def test_nonsense_is_nothing() -> None:
    odd = {
        "/health": {"status": 3},
        "/v1/models": {"data": [None, {"id": "m", "context_window": "big"}]},
        "/admin/api/status": {"models": [{"counters": 3}], "recent": [7, {"id": "abc", "part": 5}]},
        "/admin/api/settings": {"settings": {"cache.load": 3}},
    }
    with JsonServer(odd) as server:
        found = insight(server.address)
        assert found.is_ready()
        assert found.window() is None
        assert found.bytes_written() == 0
        assert found.setting("cache.load") is None
        assert found.course("abc") == Course(0, 0, 0, "")


def test_nobody_there() -> None:
    with JsonServer({}) as server:
        url = server.address
    assert not insight(url).is_ready() and not insight(url).is_omlx
