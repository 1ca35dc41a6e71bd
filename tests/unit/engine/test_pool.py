"""Which engines run: load at first use, who leaves, idle time, pins, commands, replaced files."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from omlx.engine.lifecycle import Phase
from omlx.engine.pool import Pool, PoolPolicy
from omlx.engine.request import EngineRequest, EngineSnapshot, EngineState, Failed, MemoryUse
from omlx.engine.room import RoomLimits
from omlx.engine.slot import Stay
from omlx.models.locate import ModelEntry
from tests.fakes.child import Clock, FakeChild, Heard

NEVER = Stay()


class Bench:
    """A pool of fakes; `turn` takes the place of its thread."""

    def __init__(
        self,
        *names: str,
        limits: RoomLimits | None = None,
        stay: Callable[[ModelEntry], Stay] = lambda entry: NEVER,
        folder: Path = Path("/nowhere"),
    ) -> None:
        self.clock = Clock()
        self.children: dict[str, list[FakeChild]] = {name: [] for name in names}
        self.heard = Heard()
        self.num_requests = 0
        entries = [ModelEntry(name, folder / name, "llama", None, 10, None, None) for name in names]
        self.pool = Pool(
            entries,
            self.make,
            stay=stay,
            policy=PoolPolicy(limits or RoomLimits(), unload_s=5.0),
            clock=self.clock,
        )
        self.pool._run = lambda: None  # the test turns itself
        self.pool.start_all(lambda model_id: self.heard)

    def make(self, entry: ModelEntry) -> FakeChild:
        child = FakeChild(self.clock)
        self.children[entry.id].append(child)
        return child

    def turn(self, times: int = 3) -> None:
        for _ in range(times):
            self.pool.turn()

    def ask(self, model_id: str) -> str:
        self.num_requests += 1
        name = f"{model_id}{self.num_requests}"
        self.pool.get(model_id).submit(EngineRequest(name, (1, 2, self.num_requests), 9))
        return name

    def child(self, model_id: str) -> FakeChild:
        return self.children[model_id][-1]

    def loaded(self) -> set[str]:
        phases = {name: self.pool.get(name).phase for name in self.children}
        return {name for name, phase in phases.items() if phase is Phase.RUNNING}

    def serve(self, model_id: str) -> None:
        """A request comes, is answered, and some time passes."""
        name = self.ask(model_id)
        self.turn()
        child = self.child(model_id)
        child.ready()
        self.turn()
        assert name in child.ids
        child.finishes(name)
        self.pass_time(1)

    def pass_time(self, seconds: int) -> None:
        for _ in range(seconds):
            self.clock.now += 1
            for children in self.children.values():
                for child in children[-1:]:
                    child.beats()
            self.turn()


def test_nothing_is_loaded_before_it_is_asked_for_and_then_once() -> None:
    bench = Bench("a", "b")
    bench.turn()
    assert bench.loaded() == set()
    names = [bench.ask("a") for _ in range(16)]
    bench.turn()
    assert bench.loaded() == {"a"} and len(bench.children["a"]) == 1
    assert bench.child("a").ids == names and not bench.heard.events


def test_preloaded_ones_are_there_at_once() -> None:
    bench = Bench("a", "b", stay=lambda entry: Stay(is_preloaded=entry.id == "b"))
    bench.turn()
    assert bench.loaded() == {"b"}


def test_nobody_leaves_for_a_preload() -> None:
    bench = Bench("a", "b", limits=RoomLimits(1), stay=lambda entry: Stay(is_preloaded=True))
    bench.turn()
    bench.child("a").ready()
    bench.turn()
    assert bench.loaded() == {"a"}
    assert "not preloaded" in (bench.pool.refusal("b") or "")
    bench.serve("b")
    assert bench.loaded() == {"b"} and bench.pool.refusal("b") is None


def test_the_least_recently_used_makes_room_and_is_gone_first() -> None:
    bench = Bench("a", "b", "c", limits=RoomLimits(2))
    for model_id in "aba":
        bench.serve(model_id)
    bench.child("b").is_stubborn = True
    bench.ask("c")
    bench.turn()
    assert bench.child("b").stops == [5.0] and not bench.children["c"], "b is not gone yet"
    bench.child("b").end(0, is_clean=True)
    bench.turn()
    assert bench.loaded() == {"a", "c"}


def test_two_models_take_turns_where_one_fits() -> None:
    bench = Bench("a", "b", limits=RoomLimits(None, 15))
    for turn in range(20):
        bench.serve("ab"[turn % 2])
        assert len(bench.loaded()) == 1
    assert len(bench.children["a"]) == len(bench.children["b"]) == 10


def test_a_model_in_use_finishes_what_it_has_and_then_leaves() -> None:
    bench = Bench("a", "b", limits=RoomLimits(1))
    first = bench.ask("a")
    bench.turn()
    bench.child("a").ready()
    bench.turn()
    other = bench.ask("b")
    bench.turn()
    second = bench.ask("a")
    bench.turn()
    assert bench.loaded() == {"a"} and bench.child("a").ids == [first]
    bench.child("a").finishes(first)
    bench.turn()
    assert bench.loaded() == {"b"} and bench.child("b").ids == [other]
    bench.child("b").ready()
    bench.child("b").finishes(other)
    bench.turn()
    assert bench.loaded() == {"a"} and bench.child("a").ids == [second]


def test_the_one_that_was_to_leave_stays_if_nobody_wants_its_place_any_more() -> None:
    bench = Bench("a", "b", limits=RoomLimits(1))
    bench.ask("a")
    bench.turn()
    bench.child("a").ready()
    other = bench.ask("b")
    bench.turn()
    second = bench.ask("a")
    bench.pool.get("b").abort(other)
    bench.turn()
    assert bench.loaded() == {"a"} and second in bench.child("a").ids


def test_idle_models_leave_after_their_time_and_pinned_ones_stay() -> None:
    bench = Bench("a", "b", stay=lambda entry: Stay(is_pinned=entry.id == "b", ttl_s=10.0))
    bench.serve("a")
    bench.serve("b")
    name = bench.ask("a")
    bench.pass_time(60)
    assert bench.loaded() == {"a", "b"}, "a request is not idle time"
    bench.child("a").finishes(name)
    bench.pass_time(9)
    assert bench.loaded() == {"a", "b"}
    bench.pass_time(3)
    assert bench.loaded() == {"b"}
    bench.serve("a")
    assert bench.loaded() == {"a", "b"}


def test_what_pinned_ones_leave_no_room_for_is_refused() -> None:
    bench = Bench("a", "b", limits=RoomLimits(1), stay=lambda entry: Stay(is_pinned=True))
    bench.serve("a")
    name = bench.ask("b")
    bench.turn()
    (end,) = bench.heard.of(name)
    assert isinstance(end, Failed) and "pinned models (a)" in end.message
    bench.serve("a")


# ---- one limit of memory for all


def use(bench: Bench, model_id: str, **sizes: int) -> None:
    """An engine has heard what it was told, and reports what it takes."""
    child = bench.child(model_id)
    told = child.limits[-1]
    child.figures = EngineSnapshot(memory_use=MemoryUse(told_bytes=told, **sizes))
    bench.turn()


def test_a_process_is_told_what_it_may_use_before_it_loads() -> None:
    bench = Bench("a", limits=RoomLimits(None, 100))
    bench.ask("a")
    bench.turn()
    assert bench.child("a").limits == [100]
    bench.child("a").ready()
    bench.child("a").end(-9)
    bench.turn()
    assert len(bench.children["a"]) == 2 and bench.child("a").limits == [100]


def test_without_a_limit_nobody_is_told_anything() -> None:
    bench = Bench("a", "b")
    bench.serve("a")
    bench.serve("b")
    assert bench.child("a").limits == bench.child("b").limits == []


def test_a_load_waits_until_caches_have_made_way() -> None:
    bench = Bench("a", "b", limits=RoomLimits(None, 100))
    bench.serve("a")
    use(bench, "a", least_bytes=20, cache_bytes=80)
    assert bench.child("a").limits == [100]
    bench.ask("b")
    bench.turn()
    assert bench.loaded() == {"a"} and bench.child("a").limits == [100, 84]
    bench.turn(10)
    assert bench.loaded() == {"a"} and bench.child("a").limits == [100, 84], "told once"
    use(bench, "a", least_bytes=20, cache_bytes=64)
    assert bench.loaded() == {"a", "b"}
    assert sum(bench.child(name).limits[-1] for name in "ab") <= 100


def test_a_load_waits_for_running_rows_without_making_them_leave() -> None:
    bench = Bench("a", "b", limits=RoomLimits(None, 100))
    name = bench.ask("a")
    bench.turn()
    bench.child("a").ready()
    use(bench, "a", least_bytes=20, needed_bytes=95)
    bench.ask("b")
    bench.turn(10)
    assert bench.loaded() == {"a"}
    bench.child("a").finishes(name)
    use(bench, "a", least_bytes=20)
    use(bench, "a", least_bytes=20)
    assert bench.loaded() == {"a", "b"}


def test_rows_that_need_it_make_an_idle_model_leave() -> None:
    bench = Bench("a", "b", "c", limits=RoomLimits(None, 100))
    for name in "cba":
        bench.serve(name)
    bench.ask("a")
    bench.turn()
    use(bench, "a", least_bytes=20, needed_bytes=85)
    assert bench.loaded() == {"a", "b"}, "c was idle longest, and one is enough"


def test_requests_that_wait_make_a_model_leave_that_is_idle_for_long() -> None:
    bench = Bench("a", "b", limits=RoomLimits(None, 100))
    bench.serve("b")
    bench.serve("a")
    bench.ask("a")
    bench.turn()
    use(bench, "a", least_bytes=20, needed_bytes=50, wanted_bytes=95)
    bench.pass_time(25)
    assert bench.loaded() == {"a", "b"}
    bench.pass_time(10)
    assert bench.loaded() == {"a"}


def test_commands() -> None:
    bench = Bench("a", "b", limits=RoomLimits(1))
    bench.pool.load("a")
    bench.turn()
    bench.child("a").ready()
    bench.turn()
    assert bench.loaded() == {"a"}
    name = bench.ask("a")
    assert not bench.pool.unload("a")
    bench.child("a").finishes(name)
    bench.pool.load("b")
    bench.turn()
    assert bench.loaded() == {"b"}
    assert bench.pool.unload("b") and bench.pool.unload("b")
    bench.turn()
    assert bench.loaded() == set()
    assert bench.pool.refusal("b") == ""
    with pytest.raises(KeyError):
        bench.pool.load("c")


def test_a_load_that_fails_says_why() -> None:
    bench = Bench("a")
    bench.pool.load("a")
    bench.turn()
    bench.child("a").end(1, error="no weights")
    assert bench.pool.refusal("a") == "no weights"
    bench.pool.load("a")
    assert bench.pool.refusal("a") is None
    bench.turn()
    assert bench.loaded() == {"a"} and len(bench.children["a"]) == 2


def test_replaced_files_are_noticed_at_the_next_load(tmp_path: Path) -> None:
    weights = tmp_path / "a" / "model.safetensors"
    weights.parent.mkdir()
    weights.write_bytes(b"one")
    bench = Bench("a", folder=tmp_path)
    first = bench.pool.version("a")
    bench.serve("a")
    weights.write_bytes(b"other")
    assert bench.pool.version("a") == first, "what is loaded is what counts"
    bench.pool.unload("a")
    assert bench.pool.version("a") != first
    bench.serve("a")
    second = bench.pool.version("a")
    name = bench.ask("a")
    bench.child("a").works_on(name)
    os.utime(weights, (1, 1))
    bench.child("a").end(-9)
    bench.turn()
    assert bench.heard.kinds(name) == ["Admitted", "Failed"], "its tokens are of the files before"
    assert bench.pool.version("a") != second and bench.loaded() == {"a"}


def test_stop_ends_all_and_the_thread() -> None:
    clock = Clock()
    entries = [ModelEntry("a", Path("/nowhere"), "llama", None, 10, None, None)]
    children: list[FakeChild] = []

    def make(entry: ModelEntry) -> FakeChild:
        children.append(FakeChild(clock))
        return children[-1]

    pool = Pool(entries, make, clock=clock)
    pool.start_all(lambda model_id: Heard())
    while pool.get("a").state() is EngineState.UNLOADED:
        pass
    pool.stop_all(3.0)
    assert children[0].stops == [3.0]
    assert pool.get("a").state() is EngineState.STOPPED


def test_a_model_that_comes_later_is_served_like_the_others() -> None:
    bench = Bench("a", limits=RoomLimits(max_loaded=1))
    bench.ask("a")
    bench.turn()
    bench.children["late"] = []
    bench.pool.add(ModelEntry("late", Path("/nowhere/late"), "llama", None, 10, None, None))
    assert [entry.id for entry in bench.pool.models()] == ["a", "late"]
    assert bench.pool.get("late").state() is EngineState.UNLOADED
    assert bench.children["late"] == []
    bench.pool.load("late")
    bench.turn()
    assert len(bench.children["late"]) == 0, "the other one has a request"
    assert bench.pool.refusal("late") is None


def test_a_pin_can_be_set_and_taken_off_while_it_runs() -> None:
    bench = Bench("a", "b", limits=RoomLimits(max_loaded=1))
    bench.pool.load("a")
    bench.turn()
    bench.pool.pin("a", is_pinned=True)
    assert bench.pool.is_pinned("a") and not bench.pool.is_pinned("b")
    bench.pool.load("b")
    bench.turn()
    assert bench.children["b"] == []
    assert "pinned" in (bench.pool.refusal("b") or "")
    bench.pool.pin("a", is_pinned=False)
    bench.pool.load("b")
    bench.turn()
    assert bench.pool.get("a").phase is not Phase.RUNNING
    with pytest.raises(KeyError):
        bench.pool.pin("nobody", is_pinned=True)
