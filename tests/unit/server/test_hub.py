"""The hub holds an engine's reader up while the loop is far behind, and only then."""

import asyncio
import threading

from omlx.engine.request import Event, Token
from omlx.server.hub import Hub

BATCHES = 1000


def test_a_reader_waits_for_a_loop_that_is_behind_and_nothing_is_lost() -> None:
    async def run() -> None:
        hub = Hub(asyncio.get_running_loop(), max_backlog=10 * BATCHES)
        inbox = hub.open("a", lambda: None)
        listen = hub.listener("m")
        sent: list[int] = []

        def read() -> None:
            for number in range(BATCHES):
                listen([Token("a", number)])
                sent.append(number)

        reader = threading.Thread(target=read)
        reader.start()
        reader.join(0.3)  # the loop stands still meanwhile
        assert reader.is_alive() and 0 < len(sent) <= 256
        got: list[object] = [await inbox.get() for _ in range(BATCHES)]
        assert got == [Token("a", number) for number in range(BATCHES)]
        await asyncio.to_thread(reader.join)

    asyncio.run(run())


def test_the_loop_itself_never_waits() -> None:
    async def run() -> None:
        hub = Hub(asyncio.get_running_loop(), max_backlog=10 * BATCHES)
        inbox = hub.open("a", lambda: None)
        listen = hub.listener("m")
        for number in range(BATCHES):
            listen([Token("a", number)])
        got: list[Event | object] = [await inbox.get() for _ in range(BATCHES)]
        assert len(got) == BATCHES

    asyncio.run(run())


def test_a_reader_ends_its_wait_when_the_loop_is_closed() -> None:
    loop = asyncio.new_event_loop()
    listen: list[object] = []

    async def make() -> None:
        listen.append(Hub(loop, max_backlog=10).listener("m"))

    loop.run_until_complete(make())

    def read() -> None:
        for number in range(BATCHES):
            listen[0]([Token("a", number)])

    reader = threading.Thread(target=read)
    reader.start()
    reader.join(0.2)
    assert reader.is_alive()
    loop.close()
    reader.join(10)
    assert not reader.is_alive()
