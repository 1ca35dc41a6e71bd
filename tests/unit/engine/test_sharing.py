"""Random schedules of prompts that begin alike: no block of a prompt is prefilled twice."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule

from omlx.engine.request import FinishReason, Prefilled
from tests.fakes.blocks import MANY
from tests.fakes.cache import BLOCK, Rig
from tests.fakes.loop import LoopRig, Outcome, assert_as_solo
from tests.fakes.schedule import LoopMachine

FAMILIES = [[family * 9 + (i * i + family) % 9 for i in range(60)] for family in range(2)]


class Sharing(LoopMachine):
    """Requests with common prefixes, aborts, a disk that answers when it likes.

    Nothing is lost here: memory and the disk are large enough, and no step fails.
    """

    @initialize(
        tiers=st.sampled_from([(MANY, True), (MANY, False), (0, True)]),
        max_active=st.integers(1, 6),
        chunk=st.sampled_from([1, 3, 4, 8, 9]),
    )
    def begin(self, tiers: tuple[int, bool], max_active: int, chunk: int) -> None:
        cache = Rig(memory_bytes=tiers[0], has_disk=tiers[1])
        self.rig = LoopRig(cache=cache, max_active=max_active, max_waiting=50, chunk=chunk)
        self.aborted: set[str] = set()

    @rule(
        family=st.sampled_from(FAMILIES),
        num_shared=st.integers(1, 60),
        end=st.lists(st.integers(40, 41), max_size=9),
        max_tokens=st.integers(1, 4),
    )
    def submit(self, family: list[int], num_shared: int, end: list[int], max_tokens: int) -> None:
        self.rig.submit([*family[:num_shared], *end], max_tokens)

    @rule(index=st.integers(0, 9))
    def submit_again(self, index: int) -> None:
        if self.rig.outcomes:
            tokens = self.outcomes()[-1 - index % len(self.rig.outcomes)].request.tokens
            self.rig.submit(tokens)

    @rule(is_newest=st.booleans())
    def one_disk_job(self, is_newest: bool) -> None:
        """The disk answers one of those that wait for it, and not always the first one."""
        readers = self.rig.cache.readers
        others = list(readers.jobs)
        if others:
            chosen = others.pop(-1 if is_newest else 0)
            readers.jobs.clear()
            readers.jobs.append(chosen)
            readers.run()
            readers.jobs.extendleft(reversed(others))
            self.rig.answer()

    def teardown(self) -> None:
        if self.rig is None:
            return
        self.rig.until()
        for outcome in self.outcomes():
            if outcome.request.id not in self.aborted or outcome.reason is FinishReason.LENGTH:
                assert_as_solo(outcome)
        counts = Counter(block for outcome in self.outcomes() for block in self.blocks(outcome))
        twice = [block for block, count in counts.items() if count > 1]
        assert not twice, f"{len(twice)} blocks were prefilled twice: {twice}"

    def blocks(self, outcome: Outcome) -> list[tuple[int, ...]]:
        """The full blocks, each with all before it, whose every token was prefilled for it."""
        request = outcome.request
        done = max((e.done for e in outcome.events if isinstance(e, Prefilled)), default=0)
        starts = [len(r.prefix) for r in self.rig.batch.inserted if r.row_id == request.id]
        if not starts:
            return []
        (start,) = starts
        end = min(start + done, len(request.tokens) - 1)
        return [request.tokens[:i] for i in range(BLOCK, end + 1, BLOCK) if i - BLOCK >= start]


TestSharing = Sharing.TestCase
TestSharing.settings = settings(
    max_examples=60, stateful_step_count=20, deadline=None, database=None
)
