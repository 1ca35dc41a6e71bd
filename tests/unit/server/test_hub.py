"""The hub holds an engine's reader up while the loop is far behind, and only then."""

import asyncio
import threading

from omlx.engine.request import Event, Token
from omlx.server.hub import Hub, Inbox

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


class TimedLoop(asyncio.SelectorEventLoop):
    """Counts the timers that are set."""

    num_timers = 0

    def call_at(self, when, callback, *args, context=None):
        self.num_timers += 1
        return super().call_at(when, callback, *args, context=context)


def test_a_wait_ends_at_its_limit_and_not_at_that_of_one_before() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        inbox = Inbox(loop)
        loop.call_soon(inbox.put, Token("a", 1))
        assert await inbox.wait(loop.time() + 0.02)
        assert inbox.take() == Token("a", 1)
        started = loop.time()
        assert not await inbox.wait(started + 0.06)  # the first timer comes, and is set anew
        assert loop.time() - started >= 0.05
        started = loop.time()
        assert not await inbox.wait(started + 0.01)
        assert not await inbox.wait(started)
        assert loop.time() - started < 0.05
        inbox.close()

    asyncio.run(run())


def test_waits_that_are_short_share_a_timer() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, TimedLoop)
        inbox = Inbox(loop)
        for number in range(100):
            loop.call_soon(inbox.put, Token("a", number))
            assert await inbox.wait(loop.time() + 60)
            assert inbox.take() == Token("a", number)
        assert loop.num_timers == 1
        inbox.close()

    with asyncio.Runner(loop_factory=TimedLoop) as runner:
        runner.run(run())


def test_a_wait_that_is_cancelled_can_be_followed_by_another() -> None:
    async def run() -> None:
        inbox = Inbox(asyncio.get_running_loop())
        waiting = asyncio.create_task(inbox.get())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        inbox.put(Token("a", 1))
        assert await inbox.get() == Token("a", 1)

    asyncio.run(run())


def test_engines_on_several_threads_lose_nothing() -> None:
    async def run() -> None:
        hub = Hub(asyncio.get_running_loop(), max_backlog=10 * BATCHES)
        inboxes = [hub.open(name, lambda: None) for name in "abc"]

        def read(name: str) -> None:
            listen = listeners[name]
            for number in range(BATCHES):
                listen([Token(name, number)])

        listeners = {name: hub.listener(name) for name in "abc"}
        threads = [threading.Thread(target=read, args=name) for name in "abc"]
        for thread in threads:
            thread.start()
        for name, inbox in zip("abc", inboxes, strict=True):
            got = [await inbox.get() for _ in range(BATCHES)]
            assert got == [Token(name, number) for number in range(BATCHES)]
        for thread in threads:
            thread.join()

    asyncio.run(run())
