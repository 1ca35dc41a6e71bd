"""One limit for several engines: the arithmetic, and engines that keep what they are told, late."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from omlx.engine.ceiling import Ceiling, Claim, claim_of, level, split
from omlx.engine.request import EngineSnapshot, MemoryUse, WriteUsage

C = 1000


def claim(name: str, least: int, needed: int = 0, cache: int = 0, wanted: int = 0) -> Claim:
    needed = max(least, needed)
    return Claim(name, least, needed, max(wanted, needed), needed + cache, told_bytes=None)


# ---- the arithmetic


def test_one_engine_gets_all() -> None:
    assert split([claim("a", 100, cache=50)], C) == {"a": C}


def test_weights_come_first_then_rows_then_those_that_wait_then_caches() -> None:
    claims = [claim("a", 100, cache=2000), claim("b", 300, needed=400, wanted=500)]
    assert split(claims, C) == {"a": 500 - C // 16, "b": 500 + C // 16}
    claims = [claim("a", 100, needed=900, cache=500), claim("b", 300, wanted=500)]
    assert split(claims, C) == {"a": 700, "b": 300}, "what is taken from rows is what must be"
    assert split([claim("a", 700), claim("b", 600)], C) == {"a": 700, "b": 600}


def test_caches_are_cut_from_the_largest_down() -> None:
    claims = [claim("a", 100, cache=700), claim("b", 100, cache=20), claim("c", 100, cache=500)]
    shares = split(claims, C)
    assert shares["b"] == 100 + 20 + C // 16
    assert shares["a"] == 100 + (700 - 82) // 2 == shares["c"]


@given(st.dictionaries(st.text("abc", max_size=2), st.integers(0, 99), max_size=6), st.integers())
def test_level(asked: dict[str, int], left: int) -> None:
    given = level(asked, left)
    assert all(0 <= given[i] <= asked[i] for i in asked)
    assert sum(given.values()) == min(max(0, left), sum(asked.values()))
    short = [given[i] for i in asked if given[i] < asked[i]]
    assert not short or max(given.values()) <= min(short) + 1


def test_a_claim_is_made_of_figures() -> None:
    assert claim_of("a", 70, None) == Claim("a", 70, 70, 70, 70)
    use = MemoryUse(
        least_bytes=80,
        needed_bytes=90,
        wanted_bytes=200,
        cache_bytes=30,
        process_bytes=160,
        told_bytes=5,
    )
    snapshot = EngineSnapshot(memory_use=use, writes=WriteUsage(queued_bytes=10))
    assert claim_of("a", 70, snapshot) == Claim("a", 80, 90, 200, 130, 30, 5)
    assert claim_of("a", 70, snapshot, is_leaving=True).least_bytes == 130


def test_what_processes_hold_beside_arrays_is_paid_from_the_reserve_first() -> None:
    for beside, share in ((50, 500), (100, 450)):
        ceiling = Ceiling(C, reserve_bytes=100)
        claims = [Claim(name, 100, 100, 100, 100, beside) for name in "ab"]
        told = {"a": ceiling.begin(claims[0], [])}
        told["b"] = ceiling.begin(claims[1], claims[:1])
        told.update(ceiling.turn(claims))
        told.update(ceiling.turn(claims))
        assert told == {"a": share, "b": share}


def test_rows_are_in_excess_only_where_one_has_less_than_it_needs() -> None:
    """Two models that fit with their weights, but not with a row each, are no reason to unload."""
    ceiling = Ceiling(C)
    idle = [claim("a", 520), claim("b", 520)]
    ceiling.begin(idle[0], [])
    ceiling.begin(idle[1], idle[:1])
    ceiling.turn(idle)
    assert ceiling.excess(idle, is_waiting=True) == 0
    busy = [claim("a", 520, needed=600, wanted=700), idle[1]]
    assert ceiling.excess(busy, is_waiting=False) == 120
    assert ceiling.excess(busy, is_waiting=True) == 220
    assert ceiling.excess(busy[:1], is_waiting=True) == 0, "there is room, it only has to be told"


# ---- engines that hear late


@dataclass
class Node:
    """An engine that keeps the limit in force as far as it can, and reports late."""

    name: str
    weights: int
    rows: int = 0
    queued: int = 0
    wish: int = 0  # what its cache would hold
    cache: int = 0
    in_force: int = 0
    inbox: list[int] = field(default_factory=list[int])
    report: Claim | None = None

    def hear(self) -> None:
        """Take up what it was told last, and live on with it."""
        if self.inbox:
            self.in_force, self.inbox = self.inbox[-1], []
        self.live()

    def live(self) -> None:
        room = max(0, self.in_force - self.weights - self.rows)
        self.cache = min(self.wish, room)

    @property
    def used(self) -> int:
        return self.weights + self.rows + self.cache

    def tell(self) -> None:
        needed = self.weights + self.rows
        wanted = needed + self.queued
        self.report = Claim(
            self.name, self.weights, needed, wanted, self.used, told_bytes=self.in_force
        )

    def claim(self) -> Claim:
        w = self.weights
        return self.report or Claim(self.name, w, w, w, w)


class House:
    """A pool of nodes; `load` begins as soon as the ceiling lets it."""

    def __init__(self) -> None:
        self.ceiling = Ceiling(C)
        self.nodes: list[Node] = []
        self.num_told = 0

    def turn(self, joining: Node | None = None) -> bool:
        """Whether `joining` has been loaded."""
        claims = [node.claim() for node in self.nodes]
        is_in = joining is not None and self.ceiling.admits(claims, joining.claim())
        if joining is not None and is_in:
            limit = self.ceiling.begin(joining.claim(), claims)
            assert limit is not None
            joining.in_force = limit
            self.nodes.append(joining)
        claims = [node.claim() for node in self.nodes]
        waiting = joining.claim() if joining is not None and not is_in else None
        changed = self.ceiling.turn(claims, waiting)
        for node in self.nodes:
            if node.name in changed:
                self.num_told += 1
                node.inbox.append(changed[node.name])
        return is_in

    def calm(self, joining: Node | None = None) -> bool:
        """Let all be heard and reported some times."""
        is_in = False
        for _ in range(30):
            is_in = self.turn(None if is_in else joining) or is_in
            for node in self.nodes:
                node.hear()
                node.tell()
        return is_in


def test_a_cache_makes_way_before_the_weights_of_another_model_come() -> None:
    house = House()
    first, second = Node("a", 300, wish=5000), Node("b", 400)
    assert house.calm(first) and first.cache == 700
    assert not house.turn(second), "the cache is there still"
    first.hear()
    assert not house.turn(second), "nobody knows yet that it is not"
    first.tell()
    assert house.turn(second)
    assert first.used <= C - 400


def test_a_load_waits_for_running_rows_and_comes_when_they_end() -> None:
    house = House()
    first, second = Node("a", 300), Node("b", 400)
    house.calm(first)
    first.rows = 500
    first.tell()
    assert not house.calm(second)
    first.rows = 0
    assert house.calm(second)


def test_a_request_that_waits_gets_what_anothers_cache_holds() -> None:
    house = House()
    first, second = Node("a", 100, wish=5000), Node("b", 100)
    house.calm(first)
    house.calm(second)
    assert first.in_force > 700
    second.queued = 600
    second.tell()
    house.calm()
    assert second.in_force >= 700 and first.used <= 300


def test_a_second_cache_gets_its_part_of_a_full_one() -> None:
    house = House()
    first, second = Node("a", 100, wish=5000), Node("b", 100, wish=5000)
    house.calm(first)
    assert first.cache == 900
    house.calm(second)
    assert abs(first.cache - second.cache) <= 2 * C // 16


def test_small_changes_are_not_told() -> None:
    house = House()
    node, other = Node("a", 100, wish=200), Node("b", 100, wish=200)
    house.calm(node)
    house.calm(other)
    before = house.num_told
    for rows in (1, 3, 5, 2, 4):
        node.rows = rows
        house.calm()
    assert house.num_told == before


actions = st.tuples(
    st.sampled_from(["turn", "hear", "tell", "rows", "wish", "queued"]),
    st.integers(0, 2),
    st.integers(0, 600),
)


@settings(max_examples=400, deadline=None, database=None)
@given(st.lists(st.integers(0, 500), min_size=1, max_size=3), st.lists(actions, max_size=80))
def test_limits_in_force_are_never_above_the_ceiling_and_come_to_rest(
    weights: list[int], steps: list[tuple[str, int, int]]
) -> None:
    """Whatever is heard and reported late: the sum of the limits that are in force is at most the
    ceiling, or what could not be taken from rows and weights."""
    house = House()
    for number, size in enumerate(weights):
        house.calm(Node("abc"[number], size))
    nodes = house.nodes
    for action, index, size in steps:
        node = nodes[index % len(nodes)]
        if action == "turn":
            house.turn()
        elif action == "hear":
            node.hear()
        elif action == "tell":
            node.tell()
        elif action == "rows":  # they run where the limit lets them, or alone
            node.rows = min(size, max(0, node.in_force - node.weights))
            node.live()
        elif action == "wish":
            node.wish = size * 3
            node.live()
        else:
            node.queued = size
        stuck = sum(n.weights + n.rows for n in nodes)
        assert sum(n.in_force for n in nodes) <= max(C, sum(n.weights for n in nodes))
        assert sum(n.used for n in nodes) <= max(C, stuck)
    house.calm()
    before = house.num_told
    house.calm()
    assert house.num_told == before, "nothing changes any more, and nothing is told"
