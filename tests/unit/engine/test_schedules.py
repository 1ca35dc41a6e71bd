"""Random schedules: whatever happens, each request ends once, and undisturbed ones are right."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from omlx.engine.request import FailureCode, FinishReason, RequestClass
from tests.fakes.batch import solo
from tests.fakes.cache import BLOCK_BYTES, Rig
from tests.fakes.loop import NUM_VOCAB, LoopRig, Outcome
from tests.fakes.schedule import LoopMachine

PROMPTS = st.lists(st.integers(0, 2), min_size=1, max_size=25)


class Schedule(LoopMachine):
    """Requests, aborts, failing steps and failing stores in any order.

    The rig itself checks that no event follows the last one of its request.
    """

    @initialize(
        blocks=st.sampled_from([None, 0, 2, 1000]),
        has_disk=st.booleans(),
        max_active=st.integers(1, 4),
        max_waiting=st.integers(0, 3),
        chunk=st.integers(1, 9),
    )
    def begin(
        self, blocks: int | None, has_disk: bool, max_active: int, max_waiting: int, chunk: int
    ) -> None:
        cache = None
        if blocks is not None:
            cache = Rig(memory_bytes=blocks * BLOCK_BYTES, has_disk=has_disk)
        self.rig = LoopRig(cache=cache, max_active=max_active, max_waiting=max_waiting, chunk=chunk)
        self.max_active = max_active
        self.aborted: set[str] = set()
        self.num_failures = 0

    @rule(
        tokens=PROMPTS,
        max_tokens=st.integers(1, 9),
        stop_at=st.integers(0, 20),
        request_class=st.sampled_from(RequestClass),
    )
    def submit(
        self, tokens: list[int], max_tokens: int, stop_at: int, request_class: RequestClass
    ) -> None:
        new, _ = solo(tokens, 21, NUM_VOCAB)
        stop = [new[stop_at : stop_at + 2]]
        self.rig.submit(tokens, max_tokens, stop, request_class=request_class)

    @rule()
    def submit_nothing(self) -> None:
        self.rig.submit([])

    @rule()
    def fail_the_next_step(self) -> None:
        self.num_failures += 1
        self.rig.batch.failures.add(self.rig.batch.num_steps + 1)

    @rule()
    def fail_the_next_store(self) -> None:
        if self.rig.cache is not None:
            self.num_failures += 1
            self.rig.cache.break_the_next_store()

    def teardown(self) -> None:
        if self.rig is None:
            return
        self.rig.until()
        for outcome in self.outcomes():
            self.check(outcome)
        assert len(self.rig.batch) == 0
        assert self.rig.batch.most_rows <= self.max_active

    def check(self, outcome: Outcome) -> None:
        """A request that ended by itself has the tokens of a solo run, any other a part of them."""
        request = outcome.request
        if outcome.code is FailureCode.BAD_REQUEST:
            assert request.tokens == ()
            return
        assert outcome.last is not None
        new, reason = solo(request.tokens, request.max_tokens, NUM_VOCAB, request.stop)
        delivered = new[:-1] if reason == "stop" else new
        if outcome.reason is FinishReason.ABORT:
            assert request.id in self.aborted
        elif outcome.code in (FailureCode.ENGINE, FailureCode.CRASH):
            assert self.num_failures >= 2
        elif outcome.code is FailureCode.OVERLOADED:
            assert outcome.kinds == ["Failed"]
        else:
            assert outcome.reason is FinishReason(reason)
            assert outcome.tokens == delivered
        assert outcome.tokens == delivered[: len(outcome.tokens)]


TestSchedule = Schedule.TestCase
TestSchedule.settings = settings(
    max_examples=80, stateful_step_count=15, deadline=None, database=None
)
