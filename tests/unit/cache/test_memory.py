"""The memory tier: a byte budget, leaf-first LRU, held against a naive reference."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from omlx.cache.hashing import token_array
from omlx.cache.memory import Entry, MemoryTier
from omlx.storage.layout import BlockHash, BlockKey

ROOT = BlockHash(b"r" * 32)


@dataclass(frozen=True)
class Bytes:
    """A payload that is only a size."""

    nbytes: int


def name_of(path: Sequence[int]) -> BlockHash:
    """The name of the block at the end of `path`: the root for an empty one."""
    return BlockHash(hashlib.sha256(bytes(path)).digest()) if path else ROOT


def entry(path: Sequence[int], nbytes: int = 10) -> Entry[Bytes]:
    key = BlockKey(name_of(path[:-1]), name_of(path), 1)
    return Entry(key, token_array([path[-1]]), Bytes(nbytes))


def chain(path: Sequence[int]) -> list[BlockHash]:
    return [name_of(path[: i + 1]) for i in range(len(path))]


def add_chain(tier: MemoryTier[Bytes], path: Sequence[int]) -> list[BlockHash]:
    """Add every block of `path` that is not there; the names that had to go."""
    gone: list[BlockHash] = []
    for end in range(1, len(path) + 1):
        if tier.get(name_of(path[:end])) is None:
            gone += [e.key.name for e in tier.add(entry(path[:end]))]
    tier.touch(chain(path))
    return gone


def test_the_leaf_that_was_not_used_for_longest_goes_first() -> None:
    tier: MemoryTier[Bytes] = MemoryTier(40, ROOT)
    add_chain(tier, [1, 2])
    add_chain(tier, [3])
    add_chain(tier, [4])
    assert add_chain(tier, [5]) == [name_of([1, 2])]
    assert add_chain(tier, [6]) == [name_of([1])]
    assert add_chain(tier, [7]) == [name_of([3])]


def test_a_touched_chain_stays() -> None:
    tier: MemoryTier[Bytes] = MemoryTier(30, ROOT)
    add_chain(tier, [1, 2])
    add_chain(tier, [3])
    tier.touch(chain([1, 2]))
    assert add_chain(tier, [4]) == [name_of([3])]


def test_getting_a_block_is_not_a_use() -> None:
    tier: MemoryTier[Bytes] = MemoryTier(20, ROOT)
    add_chain(tier, [1])
    add_chain(tier, [2])
    assert tier.get(name_of([1])) is not None
    assert add_chain(tier, [3]) == [name_of([1])]


def test_a_parent_stays_as_long_as_a_child_does() -> None:
    tier: MemoryTier[Bytes] = MemoryTier(30, ROOT)
    add_chain(tier, [1, 2])
    tier.touch([name_of([1, 2])])  # the child alone: its parent is the oldest now
    add_chain(tier, [3])
    assert add_chain(tier, [4]) == [name_of([1, 2])]


def test_an_entry_larger_than_the_budget_leaves_the_others_alone() -> None:
    tier: MemoryTier[Bytes] = MemoryTier(25, ROOT)
    add_chain(tier, [1, 2])
    large = entry([3], 26)
    assert tier.add(large) == [large]
    assert [tier.get(name) is not None for name in chain([1, 2])] == [True, True]
    assert (tier.used_bytes, tier.evicted) == (20, 1)


@pytest.mark.parametrize("size", [1, 10])
def test_a_budget_of_nothing_keeps_nothing(size: int) -> None:
    tier: MemoryTier[Bytes] = MemoryTier(0, ROOT)
    new = entry([1], size)
    assert tier.add(new) == [new]
    assert (len(tier), tier.used_bytes, tier.evicted) == (0, 0, 1)
    assert tier.children(ROOT) == []


def test_a_chain_longer_than_the_budget_keeps_its_head() -> None:
    """What has lost its parent can't be found, so it must not push out what can."""
    tier: MemoryTier[Bytes] = MemoryTier(30, ROOT)
    path = list(range(10))
    add_chain(tier, path)
    assert [tier.get(name) is not None for name in chain(path)] == [True] * 3 + [False] * 7


def test_children_are_those_in_memory() -> None:
    tier: MemoryTier[Bytes] = MemoryTier(100, ROOT)
    add_chain(tier, [1, 2])
    add_chain(tier, [1, 3])
    assert {e.key.name for e in tier.children(name_of([1]))} == {name_of([1, 2]), name_of([1, 3])}
    tier.remove(name_of([1, 2]))
    assert {e.key.name for e in tier.children(name_of([1]))} == {name_of([1, 3])}
    assert tier.remove(name_of([9])) is None


class Reference(RuleBasedStateMachine):
    """The tier beside a list of paths in the order of use, searched naively."""

    @initialize(budget=st.integers(0, 60))
    def begin(self, budget: int) -> None:
        self.tier: MemoryTier[Bytes] = MemoryTier(budget, ROOT)
        self.order: list[tuple[int, ...]] = []
        self.sizes: dict[tuple[int, ...], int] = {}

    paths = st.lists(st.integers(0, 2), min_size=1, max_size=5).map(tuple)

    @rule(path=paths, sizes=st.lists(st.integers(1, 25), min_size=5, max_size=5))
    def use_chain(self, path: tuple[int, ...], sizes: list[int]) -> None:
        """What a row does: add the blocks that are missing, then touch all."""
        for end in range(1, len(path) + 1):
            part = path[:end]
            if part in self.order:
                continue
            gone = [e.key.name for e in self.tier.add(entry(part, sizes[end - 1]))]
            assert gone == [name_of(p) for p in self.expect(part, sizes[end - 1])]
        self.tier.touch(chain(path))
        for end in range(len(path), 0, -1):
            if path[:end] in self.order:
                self.order.remove(path[:end])
                self.order.append(path[:end])

    def expect(self, part: tuple[int, ...], size: int) -> list[tuple[int, ...]]:
        """What has to go when `part` comes."""
        if size > self.tier.budget_bytes or (part[:-1] and part[:-1] not in self.order):
            return [part]
        self.order.append(part)
        self.sizes[part] = size
        gone: list[tuple[int, ...]] = []
        while sum(self.sizes[p] for p in self.order) > self.tier.budget_bytes:
            leaf = next(p for p in self.order if not any(q[:-1] == p for q in self.order))
            self.order.remove(leaf)
            gone.append(leaf)
        return gone

    @rule(path=paths)
    def remove(self, path: tuple[int, ...]) -> None:
        """What superseding does: take a leaf out."""
        if any(q[:-1] == path for q in self.order):
            return
        assert (self.tier.remove(name_of(path)) is not None) == (path in self.order)
        if path in self.order:
            self.order.remove(path)

    @invariant()
    def same_blocks(self) -> None:
        assert list(self.tier._entries) == [name_of(p) for p in self.order]
        assert self.tier.used_bytes == sum(self.sizes[p] for p in self.order)
        assert self.tier.used_bytes <= self.tier.budget_bytes

    @invariant()
    def no_child_is_younger_than_its_parent(self) -> None:
        for path in self.order:
            if path[:-1]:
                assert self.order.index(path) < self.order.index(path[:-1])


TestReference = Reference.TestCase
TestReference.settings = settings(
    max_examples=60, stateful_step_count=12, deadline=None, database=None
)
