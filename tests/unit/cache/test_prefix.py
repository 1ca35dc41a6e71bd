"""The prefix cache as rows use it: what is stored, shared, replaced and never lost."""

from itertools import takewhile

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from omlx.cache.block import Chain
from omlx.cache.hashing import token_array
from tests.fakes import state
from tests.fakes.cache import BLOCK, BLOCK_BYTES, Rig

LONG = [*range(1, 23)]  # five full blocks and a tail of two


def test_forks_share_their_blocks() -> None:
    rig = Rig()
    a, b = [*LONG[:10], 50, 51, 52], [*LONG[:10], 60, 61, 62]
    rig.compute(a)
    assert rig.prefix.blocks_stored == 4
    assert rig.compute(b).num_tokens == 10
    assert rig.prefix.blocks_stored == 6, "one block that holds the fork, and one tail"
    assert len(rig.memory) == 6
    rig.pass_delay()
    assert rig.on_disk() == [1, 1, *[BLOCK] * 4]


def test_a_conversation_stores_each_token_once() -> None:
    rig = Rig()
    tokens: list[int] = []
    for turn in range(6):
        hit = rig.compute(tokens := [*tokens, *range(100 * turn, 100 * turn + 7)])
        assert hit.num_tokens == len(tokens) - 7
    assert rig.memory.used_bytes == len(tokens) * state.BYTES_PER_TOKEN
    rig.pass_delay()
    assert sum(rig.on_disk()) == len(tokens)


def test_missing_is_what_completes_blocks() -> None:
    rig = Rig()
    chain = Chain(token_array(LONG))
    assert rig.prefix.missing(chain, 3) is None
    assert rig.prefix.missing(chain, 4) == (0, 4)
    assert rig.prefix.missing(chain, 11) == (0, 8)
    rig.prefix.store(chain, state.caches(LONG), 8)
    assert rig.prefix.missing(chain, 11) is None
    assert rig.prefix.missing(chain, 12) == (8, 12)


def test_blocks_that_another_row_stored_meanwhile_are_taken_over() -> None:
    rig = Rig()
    chain = Chain(token_array(LONG))
    rig.compute(LONG[:9])
    assert rig.prefix.missing(chain, 15) == (8, 12)
    assert len(chain.names) == 2


def test_a_row_that_another_overtook_stores_nothing_twice() -> None:
    """Both missed, both computed; the second finds the blocks when it comes to store them."""
    rig = Rig()
    first, second = Chain(token_array(LONG)), Chain(token_array(LONG))
    assert rig.prefix.missing(second, 20) == (0, 20)
    rig.keep(first, LONG)
    rig.prefix.store(second, state.caches(LONG), 20)
    assert second.names == first.names
    assert rig.prefix.blocks_stored == 6


def test_a_tail_is_stored_once_and_only_where_nothing_covers_it() -> None:
    rig = Rig()
    chain = rig.compute(LONG).chain
    assert rig.prefix.missing_tail(chain, 22) is None, "it is there"
    assert rig.prefix.missing_tail(chain, 21) is None, "a longer one covers it"
    assert rig.prefix.missing_tail(chain, 20) is None, "there is no rest"
    chain.tokens = token_array([*LONG[:21], 99])
    assert rig.prefix.missing_tail(chain, 22) == (20, 22)


def test_a_full_block_covers_a_tail() -> None:
    rig = Rig()
    rig.compute(LONG[:8])
    chain = Chain(token_array(LONG[:6]))
    assert rig.prefix.missing(chain, 6) is None
    assert rig.prefix.missing_tail(chain, 6) is None


def test_a_longer_tail_replaces_the_shorter_but_not_its_sibling() -> None:
    rig = Rig()
    rig.compute(LONG[:5])
    rig.compute([*LONG[:4], 50, 51])
    rig.compute(LONG[:7])
    assert sorted(map(len, rig.in_memory())) == [2, 3, 4]


@pytest.mark.parametrize("memory_bytes", [0, BLOCK_BYTES - 1])
def test_a_memory_budget_of_nothing_leaves_the_disk(memory_bytes: int) -> None:
    rig = Rig(memory_bytes=memory_bytes)
    rig.compute(LONG)
    rig.settle()
    hit = rig.compute([*LONG, 99])
    assert (hit.from_memory, hit.from_disk) == (0, len(LONG))
    assert rig.memory.used_bytes <= memory_bytes


def test_without_a_disk_memory_serves() -> None:
    rig = Rig(has_disk=False)
    rig.compute(LONG)
    assert rig.compute([*LONG, 99]).from_memory == len(LONG)
    rig.start()
    assert rig.look_up([*LONG, 99]).num_tokens == 0


@pytest.mark.parametrize("has_disk", [True, False])
def test_a_prompt_larger_than_memory_keeps_its_head(*, has_disk: bool) -> None:
    rig = Rig(memory_bytes=2 * BLOCK_BYTES, has_disk=has_disk)
    rig.compute(LONG)
    rig.settle()
    hit = rig.look_up([*LONG, 99])
    assert hit.from_memory == 2 * BLOCK
    assert hit.from_disk == (len(LONG) - 2 * BLOCK if has_disk else 0)


def test_a_row_in_work_stays_whole_when_others_push_it_out() -> None:
    """A long decode stores block after block while its head has gone from memory."""
    rig = Rig(memory_bytes=3 * BLOCK_BYTES)
    chain = Chain(token_array(LONG))
    for end in range(BLOCK, 21, BLOCK):
        rig.keep(chain, LONG[:end], has_tail=False)
        rig.compute(range(100 * end, 100 * end + 3 * BLOCK))
    rig.restart()
    assert rig.look_up([*LONG, 99]).from_disk == 20


def test_an_aborted_row_is_written_at_once() -> None:
    rig = Rig()
    chain = Chain(token_array(LONG))
    rig.keep(chain, LONG[:10])
    rig.prefix.hurry(chain)
    rig.settle()
    rig.start()
    assert rig.look_up(LONG).from_disk == 10


class Conversations(RuleBasedStateMachine):
    """Random sequences from few tokens, over both tiers, with restarts and lost files.

    Every hit is compared with the state of its prefix, and with what was ever computed; as long
    as nothing was evicted or lost, a hit must be the longest there is.
    """

    rig: Rig | None = None

    @initialize(
        blocks=st.sampled_from([0, 1, 3, 8, 1000]),
        has_disk=st.booleans(),
        queued=st.sampled_from([1, 2, 1000]),
    )
    def begin(self, blocks: int, has_disk: bool, queued: int) -> None:
        self.rig = Rig(
            memory_bytes=blocks * BLOCK_BYTES,
            has_disk=has_disk,
            max_queued_bytes=queued * BLOCK_BYTES,
        )
        self.done: list[list[int]] = []
        self.is_whole = blocks == 1000

    def longest(self, tokens: list[int]) -> int:
        """The longest prefix of `tokens`, without its last, of anything that was computed."""
        runs = (
            len(list(takewhile(lambda p: p[0] == p[1], zip(tokens[:-1], old, strict=False))))
            for old in self.done
        )
        return max(runs, default=0)

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=19))
    def compute(self, tokens: list[int]) -> None:
        hit = self.rig.compute(tokens)
        longest = self.longest(tokens)
        assert hit.num_tokens == longest if self.is_whole else hit.num_tokens <= longest
        self.done.append(tokens)

    @rule()
    def wait(self) -> None:
        self.rig.pass_delay()

    @rule()
    def restart(self) -> None:
        self.rig.restart()
        self.is_whole = self.is_whole and self.rig.has_disk

    @rule(index=st.integers(0, 30), is_lost=st.booleans())
    def harm(self, index: int, is_lost: bool) -> None:
        files = self.rig.block_files()
        if index < len(files):
            self.is_whole = False
            if is_lost:
                self.rig.fs.unlink(files[index])
            else:
                self.rig.fs.content(files[index])[-1] ^= 1

    def teardown(self) -> None:
        if self.rig is None:
            return
        assert self.rig.memory.used_bytes <= self.rig.memory_bytes
        dirty = [e for e in self.rig.entries() if e.dirty_since is not None]
        assert self.rig.writeback.dirty_bytes == sum(e.payload.nbytes for e in dirty)
        assert not self.rig.has_disk or len(self.rig.fs.open_files) == 0


TestConversations = Conversations.TestCase
TestConversations.settings = settings(
    max_examples=50, stateful_step_count=10, deadline=None, database=None
)
