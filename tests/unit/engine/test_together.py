"""Prompts that come together begin to decode together, where that costs nobody much."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from omlx.engine.pacer import Pacer
from omlx.engine.request import RequestClass
from omlx.engine.together import Together
from omlx.engine.turns import Stage

INTERACTIVE, BATCH = RequestClass.INTERACTIVE, RequestClass.BATCH


@dataclass
class Bench:
    """A batch, a scheduler and rows as `Together` sees them; a prompt token takes 10 ms."""

    done_ids: list[str] = field(default_factory=list[str])
    left: dict[str, int] = field(default_factory=dict[str, int])
    counts: dict[Stage, int] = field(default_factory=dict[Stage, int])
    rows: dict[str, Any] = field(default_factory=dict[str, Any])
    now: float = 100.0

    def __post_init__(self) -> None:
        pacer = Pacer(256, 0.25)
        pacer.stepped(1.28, 128, 0)
        self.together = Together(self, self, self.rows, pacer=pacer, clock=lambda: self.now)

    def num_left(self, row_id: str) -> int:
        return self.left[row_id]

    def count(self, *stages: Stage) -> int:
        return sum(self.counts.get(stage, 0) for stage in stages)

    def row(self, name: str, kind: RequestClass = INTERACTIVE, emitted: Sequence[int] = ()) -> str:
        self.rows[name] = SimpleNamespace(
            emitted=list(emitted), request=SimpleNamespace(request_class=kind)
        )
        return name

    def done(self, name: str, **given: Any) -> None:
        self.done_ids.append(self.row(name, **given))

    def coming(self, name: str, num_tokens: int, **given: Any) -> str:
        self.left[self.row(name, **given)] = num_tokens
        return name

    def turn(self, *chosen: str) -> tuple[int, bool]:
        return self.together.room(256), self.together.holds(chosen)


def test_a_short_prompt_is_waited_for() -> None:
    bench = Bench()
    bench.done("a")
    assert bench.turn(bench.coming("b", 40)) == (128, True), "what is done within two seconds"
    bench.now += 0.4
    assert bench.turn(bench.coming("c", 40)) == (128, True)
    bench.now += 1.3
    assert bench.turn(bench.coming("d", 40)) == (16, False), "and no longer than that in all"
    bench.now += 0.2
    assert bench.turn(bench.coming("e", 5)) == (256, False), "no piece ends within what is left"


def test_one_that_takes_long_is_not() -> None:
    bench = Bench()
    bench.done("a")
    assert bench.turn(bench.coming("b", 50))[1]
    assert not bench.turn(bench.coming("c", 5_000))[1]
    assert not bench.turn(bench.coming("d", 51))[1]


def test_nobody_waits_beside_streams_that_run() -> None:
    bench = Bench(counts={Stage.DECODING: 1})
    bench.done("a")
    assert bench.turn(bench.coming("b", 5)) == (256, False)
    bench.counts.clear()
    bench.done("c", emitted=[7])
    assert not bench.turn("b")[1], "one that comes back is a stream, too"


def test_nobody_waits_for_the_less_urgent_or_for_nothing() -> None:
    bench = Bench()
    bench.done("a")
    assert not bench.turn(bench.coming("b", 5, kind=BATCH))[1]
    assert not bench.turn()[1]
    assert bench.together.pause_s == 0.0


def test_requests_that_are_looked_up_are_waited_for_a_moment() -> None:
    bench = Bench(counts={Stage.LOADING: 3})
    bench.done("a")
    assert bench.turn()[1] and bench.together.pause_s > 0
    bench.now += 0.04
    assert bench.turn()[1]
    bench.now += 0.02  # blocks that come from a disk take longer, and so may the row
    assert not bench.turn()[1] and bench.together.pause_s == 0.0


def test_the_time_counts_anew_for_those_that_come_later() -> None:
    bench = Bench()
    bench.done("a")
    assert bench.turn(bench.coming("b", 40))[1]
    bench.now += 1.9
    assert not bench.turn("b")[1]
    bench.done_ids.clear()
    assert not bench.turn("b")[1], "nobody waits"
    bench.done("c")
    assert bench.turn("b")[1]


def test_without_a_known_cost_nobody_waits() -> None:
    bench = Bench()
    bench.together = Together(
        bench, bench, bench.rows, pacer=Pacer(256, 0.25), clock=lambda: bench.now
    )
    bench.done("a")
    assert bench.turn(bench.coming("b", 5)) == (256, False)
