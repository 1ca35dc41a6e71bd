"""Case M11 and the workaround for Metal: when freed buffers go back, on a fake allocator."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omlx.engine.buffers import FreedBuffers
from tests.fakes.allocator import FakeAllocator
from tests.fakes.child import Clock

KEPT = 800


class Bench:
    """Freed buffers over a fake; `turn` is a turn of the loop with these rows."""

    def __init__(self, *, is_metal: bool) -> None:
        self.allocator = FakeAllocator()
        self.clock = Clock()
        self.num_trims = 0
        self.worth: tuple[int, ...] = ()
        self.buffers = FreedBuffers(
            self.allocator, KEPT, is_metal=is_metal, clock=self.clock, trim=self.trim
        )

    def trim(self) -> bool:
        self.num_trims += 1
        return self.num_trims in self.worth

    def turn(self, *row_ids: str, freed_bytes: int = KEPT + 1) -> bool:
        """Whether buffers were given back."""
        self.allocator.freed_bytes = freed_bytes
        before = self.allocator.calls.count("clear")
        self.buffers.turned(row_ids)
        return self.allocator.calls.count("clear") > before


def test_elsewhere_they_go_back_once_they_are_many() -> None:
    bench = Bench(is_metal=False)
    assert not bench.turn("a", freed_bytes=KEPT)
    assert bench.turn("a")
    assert bench.turn(), "a row has left, and that changes nothing"
    assert "synchronize" not in bench.allocator.calls


def test_on_metal_they_go_back_eight_steps_after_a_row_has_left() -> None:
    bench = Bench(is_metal=True)
    assert bench.turn("a", "b")
    done = [bench.turn("b") for _ in range(10)]
    assert done == [False] * 8 + [True] * 2
    done = [bench.turn("b", "c"), *(bench.turn("c") for _ in range(9))]
    assert done == [True] + [False] * 8 + [True], (
        "one that comes changes nothing, one that goes does"
    )


@given(
    st.lists(st.tuples(st.frozensets(st.sampled_from("abc")), st.booleans(), st.floats(0, 3))),
)
def test_on_metal_after_a_synchronize_and_never_soon_after_a_row_has_left(
    turns: list[tuple[frozenset[str], bool, float]],
) -> None:
    bench = Bench(is_metal=True)
    before: frozenset[str] = frozenset()
    num_steps, idle_s = 100, 0.0
    for rows, is_much, passed_s in turns:
        bench.clock.now += passed_s
        idle_s = idle_s + passed_s if not before and not rows else 0.0
        num_steps = 0 if before - rows else num_steps
        num_steps += bool(rows)
        if bench.turn(*rows, freed_bytes=KEPT + 1 if is_much else 1):
            assert num_steps > 8 if rows else idle_s >= 1.0
        before = rows
    calls = bench.allocator.calls
    assert calls[::2] == ["synchronize"] * (len(calls) // 2)
    assert calls[1::2] == ["clear"] * (len(calls) // 2)


def test_a_shortage_and_a_command_give_all_back_after_a_synchronize() -> None:
    bench = Bench(is_metal=True)
    bench.turn("a", freed_bytes=5)
    bench.turn("b", freed_bytes=5)
    bench.buffers.release()
    assert bench.allocator.calls == ["synchronize", "clear"] and bench.num_trims == 1
    bench.allocator.error = RuntimeError("[METAL] Command buffer execution failed")
    bench.buffers.release()
    assert bench.allocator.calls[2:] == ["synchronize"], "what a failed command uses stays"


@pytest.mark.parametrize("is_metal", [True, False])
def test_m11_an_idle_engine_gives_all_back(*, is_metal: bool) -> None:
    bench = Bench(is_metal=is_metal)
    bench.turn("a", freed_bytes=5)
    assert not bench.turn(freed_bytes=5)
    bench.clock.now += 9.9
    assert not bench.turn(freed_bytes=5)
    bench.clock.now += 0.2
    assert bench.turn(freed_bytes=5) and bench.num_trims == 1
    bench.clock.now += 1
    assert not bench.turn(freed_bytes=5), "what upkeep frees is used for as long"
    bench.clock.now += 10
    assert bench.turn(freed_bytes=5) and bench.num_trims == 2
    bench.clock.now += 60
    assert not bench.turn(freed_bytes=0) and bench.num_trims == 2, "there is nothing left"


def test_an_idle_engine_trims_as_long_as_that_gives_something_back() -> None:
    bench = Bench(is_metal=False)
    bench.worth = (1, 2)
    bench.turn("a", freed_bytes=0)
    bench.turn(freed_bytes=0)
    for expected in (1, 2, 3, 3, 3):
        bench.clock.now += 10
        bench.turn(freed_bytes=0)
        assert bench.num_trims == expected
    bench.turn("b", freed_bytes=0)
    bench.turn(freed_bytes=0)
    bench.clock.now += 10
    bench.turn(freed_bytes=0)
    assert bench.num_trims == 4, "it has worked since"


def test_near_the_limit_fewer_are_kept() -> None:
    bench = Bench(is_metal=False)
    bench.allocator.active_bytes = 1000
    bench.buffers.set_limit(1300)
    assert not bench.turn("a", freed_bytes=300)
    assert bench.turn("a", freed_bytes=301)
    bench.buffers.set_limit(900)
    assert not bench.turn("a", freed_bytes=100), "a step needs some of them"
    assert bench.turn(freed_bytes=1), "nobody needs them now"


_M11 = """
import sys
from pathlib import Path
import mlx.core as mx
from omlx.engine.footprint import footprint_bytes
from tests.fakes import tiny
from tests.fakes.harness import Harness

wide = {"hidden_size": 64, "num_hidden_layers": 2, "intermediate_size": 64, "head_dim": 256,
        "num_attention_heads": 8, "num_key_value_heads": 8}
model = tiny.build_config({**tiny.CONFIGS["llama"], **wide})
harness = Harness(model, Path(sys.argv[1]), disk_bytes=0, memory_bytes=10**9, block_size=32)
try:
    for seed in range(32):
        harness.ask([3 + (seed * 7 + i * (seed + 1)) % 500 for i in range(96)], 1)
    full = footprint_bytes()
    assert harness.engine.release(30.0)
    print(full, footprint_bytes())
finally:
    harness.stop()
"""


def test_m11_the_footprint_falls_within_the_call(tmp_path: object) -> None:
    """100 MB of cache of a tiny model: the system has them back when the call returns."""
    done = subprocess.run(
        [sys.executable, "-c", _M11, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    full, after = map(int, done.stdout.split())
    assert full - after > 80_000_000, (full, after)
