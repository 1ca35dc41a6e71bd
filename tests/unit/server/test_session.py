"""A session and its hub, without HTTP."""

import asyncio

import pytest

from omlx.engine.request import (
    Admitted,
    Failed,
    FailureCode,
    Finished,
    FinishReason,
    Prefilled,
    Token,
)
from omlx.server.errors import ApiError
from omlx.server.generation import Began, Ended, Generation, Progress, Usage
from omlx.server.hub import Hub
from omlx.server.ledger import Said
from omlx.server.parse.said import Text
from omlx.server.prompt import Prepared, SamplingParams
from omlx.server.session import Caller, Course, Session, Watchers
from tests.fakes.engine import ScriptedEngine, silent, stats
from tests.fakes.text import FakeText


class Setup:
    """A session with an engine that says what the test says."""

    def __init__(self, *, stop=(), max_backlog=10_000):
        self.hub = Hub(asyncio.get_running_loop(), max_backlog=max_backlog)
        self.engine = ScriptedEngine(script=silent)
        self.engine.start(self.hub.listener("fake"))
        self.now = 0.0
        self.told: list[tuple[str, Course]] = []
        self.said: list[tuple[Said, str]] = []
        self.gaps: list[float] = []
        prepared = Prepared(
            Generation("fake", [], stop=tuple(stop)),
            "fake",
            FakeText(),
            tokens=(1, 2, 3, 4),
            max_tokens=50,
            sampling=SamplingParams(seed=7),
        )
        self.session = Session(
            prepared,
            Course("r", "fake", arrived=0.0, prompt_tokens=4, caller=Caller(salt="s")),
            engine=self.engine,
            hub=self.hub,
            clock=lambda: self.now,
            watchers=Watchers(
                lambda course: self.told.append(("open", course)),
                lambda course: self.told.append(("admit", course)),
                lambda course: self.told.append(("close", course)),
                lambda prepared, said, salt: self.said.append((said, salt)),
                lambda course, seconds: self.gaps.append(seconds),
            ),
        )

    def say(self, text):
        data = text.encode() if isinstance(text, str) else text
        self.engine.emit(*(Token("r", byte) for byte in data))

    def admit(self, memory=0, disk=0):
        self.engine.emit(Admitted("r", memory, disk))

    def finish(self, reason=FinishReason.STOP):
        self.engine.emit(Finished("r", reason, stats(self.engine.submitted[0])))

    async def rest(self):
        """All pieces up to the end."""
        pieces = []
        while not (pieces and isinstance(pieces[-1], Ended)):
            pieces += await self.session.next(5)
        return pieces


def plain(pieces):
    """The pieces without the places of their texts."""
    return [Text(piece.text) if isinstance(piece, Text) else piece for piece in pieces]


def run(test):
    asyncio.run(test())


def test_the_engine_gets_the_request():
    async def test():
        setup = Setup()
        with setup.session:
            (request,) = setup.engine.submitted
            assert (request.id, request.tokens, request.max_tokens) == ("r", (1, 2, 3, 4), 50)
            assert request.sampling.seed == 7
            assert request.stop == ((256,),)

    run(test)


def test_tokens_become_text_in_one_piece_a_step():
    async def test():
        setup = Setup()
        with setup.session as session:
            setup.admit(2, 1)
            setup.engine.emit(Prefilled("r", 1, 1))
            setup.say("hello")
            setup.finish()
            assert plain(await setup.rest()) == [
                Began(),
                Progress(1, 1),
                Text("hello"),
                Ended(FinishReason.STOP),
            ]
            assert session.course.usage == Usage(4, 3, 5)
        assert setup.engine.aborted == []

    run(test)


def test_characters_are_whole_however_the_tokens_cut_them():
    """UTF-8 across tokens."""

    async def test():
        setup = Setup()
        with setup.session as session:
            setup.admit()
            await session.next(5)
            setup.say("é😀"[:1].encode() + "😀".encode()[:3])
            assert plain(await session.next(5)) == [Text("é")]
            setup.say("😀".encode()[3:])
            assert plain(await session.next(5)) == [Text("😀")]
            setup.say("ü".encode()[:1])
            setup.finish()
            assert plain(await setup.rest()) == [Text("�"), Ended(FinishReason.STOP)]

    run(test)


def test_a_stop_string_across_tokens_ends_the_answer_and_the_engine():
    """K15"""

    async def test():
        setup = Setup(stop=["END"])
        with setup.session as session:
            setup.admit()
            setup.say("so E")
            assert plain(await session.next(5)) == [Began(), Text("so ")]
            setup.say("ND and more")
            assert plain(await session.next(5)) == [Ended(FinishReason.STOP, "END")]
            assert session.course.generated == 6  # "so END": what comes after does not count
        assert setup.engine.aborted == ["r"]

    run(test)


def test_text_held_back_for_a_stop_string_comes_when_the_answer_ends():
    async def test():
        setup = Setup(stop=["END"])
        with setup.session:
            setup.admit()
            setup.say("so EN")
            setup.finish(FinishReason.LENGTH)
            assert plain(await setup.rest()) == [Began(), Text("so EN"), Ended(FinishReason.LENGTH)]

    run(test)


def test_a_stop_string_may_end_with_the_last_bytes():
    async def test():
        setup = Setup(stop=["a�"])
        with setup.session:
            setup.admit()
            setup.say(b"xa\xc3")
            setup.finish()
            assert plain(await setup.rest()) == [Began(), Text("x"), Ended(FinishReason.STOP, "a�")]

    run(test)


def test_silence_gives_nothing_after_the_timeout():
    async def test():
        setup = Setup(stop=["END"])
        with setup.session as session:
            assert plain(await session.next(0.01)) == []
            setup.admit()
            assert plain(await session.next(0.01)) == [Began()]
            setup.say("E")  # held back: as silent as nothing
            assert plain(await session.next(0.01)) == []
            setup.say("x")
            assert plain(await session.next(0.01)) == [Text("Ex")]

    run(test)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (FailureCode.BAD_REQUEST, 400),
        (FailureCode.OVERLOADED, 429),
        (FailureCode.ENGINE, 500),
    ],
)
def test_a_failure_comes_after_the_text_before_it(code, status):
    async def test():
        setup = Setup()
        with pytest.raises(ApiError, match="why") as caught, setup.session as session:
            setup.admit()
            setup.say("a")
            setup.engine.emit(Failed("r", code, "why"))
            assert plain(await session.next(5)) == [Began(), Text("a")]
            await session.next(5)
        assert caught.value.status == status
        assert setup.engine.aborted == []  # it is over there already
        assert setup.told[-1][1].outcome == "failed"

    run(test)


def test_an_abort_by_the_engine_is_no_answer():
    async def test():
        setup = Setup()
        with pytest.raises(ApiError) as caught, setup.session as session:
            setup.finish(FinishReason.ABORT)
            await session.next(5)
        assert caught.value.status == 503

    run(test)


def test_leaving_early_aborts():
    async def test():
        setup = Setup()
        with pytest.raises(asyncio.CancelledError), setup.session:
            raise asyncio.CancelledError
        assert setup.engine.aborted == ["r"]
        assert setup.told[-1][1].outcome == "aborted"

    run(test)


def test_events_after_the_end_are_dropped():
    async def test():
        setup = Setup()
        with setup.session:
            pass
        setup.say("late")
        await asyncio.sleep(0)

    run(test)


def test_gaps_are_the_times_between_tokens():
    async def test():
        setup = Setup()
        with setup.session as session:
            setup.admit(1, 0)
            for now, text in ((2.0, "a"), (2.5, "bc"), (4.0, "d")):
                setup.now = now
                setup.say(text)
                await session.next(5)
            assert setup.gaps == [0.5, 0.0, 1.5]
            assert (session.course.first_token, session.course.computed) == (2.0, 3)
            setup.finish()
            await setup.rest()

    run(test)


def test_a_prompt_that_is_given_up_counts_as_far_as_it_came():
    course = Course("r", "m", arrived=0.0, prompt_tokens=100, cached_memory=40, prefilled=10)
    assert course.computed == 10
    course.prefilled = 90  # after a preemption it may have computed some of it again
    assert course.computed == 60
    course.prefilled, course.first_token = 10, 1.0
    assert course.computed == 60


def test_watchers_are_told_of_the_course_with_its_times():
    async def test():
        setup = Setup()
        with setup.session as session:
            setup.now = 1.0
            setup.admit(3)
            await session.next(5)
            setup.now = 2.0
            setup.say("ab")
            await session.next(5)
            setup.now = 4.0
            setup.finish()
            await setup.rest()
        assert [name for name, _ in setup.told] == ["open", "admit", "close"]
        course = setup.told[0][1]
        assert (course.admitted, course.first_token, course.ended) == (1.0, 2.0, 4.0)
        assert course.outcome == "stop"

    run(test)


def test_a_submit_that_raises_leaves_nothing_behind():
    async def test():
        setup = Setup()

        def submit(request):
            raise RuntimeError("gone")

        setup.engine.submit = submit
        with pytest.raises(RuntimeError), setup.session:
            pass
        assert setup.told == []
        setup.say("x")
        await asyncio.sleep(0)

    run(test)


def test_a_reader_that_is_too_slow_is_cancelled_and_aborted():
    async def test():
        setup = Setup(max_backlog=10)
        entered = asyncio.Event()

        async def read():
            with setup.session:
                entered.set()
                await asyncio.get_running_loop().create_future()

        task = asyncio.create_task(read())
        await entered.wait()
        setup.say("x" * 20)
        with pytest.raises(asyncio.CancelledError):
            await task
        assert setup.engine.aborted == ["r"]

    run(test)


def test_everybody_is_told_when_the_server_stops():
    async def test():
        setup = Setup()
        with pytest.raises(ApiError, match="stopping") as caught, setup.session as session:
            setup.hub.stop_all()
            await session.next(5)
        assert caught.value.status == 503
        assert setup.engine.aborted == ["r"]

    run(test)


def test_one_call_of_the_engine_wakes_the_loop_once():
    async def test():
        loop = asyncio.get_running_loop()
        calls = []
        hub = Hub(loop, max_backlog=10)
        listen = hub.listener("fake")
        original = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *args: (calls.append(args), original(*args))
        inboxes = [hub.open(name, lambda: None) for name in ("a", "b")]
        await asyncio.to_thread(listen, [Token("a", 1), Token("b", 2), Token("a", 3)])
        woken = [args for args in calls if args[0] == hub._deliver_batch]
        loop.call_soon_threadsafe = original
        assert len(woken) == 1
        assert [inbox.qsize() for inbox in inboxes] == [2, 1]

    run(test)


def test_events_after_the_loop_has_closed_are_dropped():
    loop = asyncio.new_event_loop()
    listen = Hub(loop, max_backlog=10).listener("fake")
    loop.close()
    listen([Token("a", 1)])


def test_the_tokens_of_an_answer_are_told_before_its_end():
    async def test():
        setup = Setup()
        with setup.session:
            setup.admit()
            setup.say("Hello")
            await setup.session.next(5)
            assert setup.said == []
            setup.finish()
            await setup.rest()
            [(said, salt)] = setup.said
            assert (said.tokens, said.is_ended, salt) == (tuple(b"Hello"), True, "s")
            assert "".join(part.text for part in said.parts) == "Hello"
        assert len(setup.said) == 1

    asyncio.run(test())


def test_what_was_said_of_an_answer_that_is_given_up_is_told():
    async def test():
        setup = Setup()
        with setup.session:
            setup.say("Hel")
            while not any(isinstance(piece, Text) for piece in await setup.session.next(5)):
                pass
        [(said, _)] = setup.said
        assert (said.tokens, said.is_ended) == (tuple(b"Hel"), False)

    asyncio.run(test())


def test_nothing_is_told_of_an_answer_without_tokens():
    async def test():
        setup = Setup()
        with setup.session:
            pass
        assert setup.said == []

    asyncio.run(test())
