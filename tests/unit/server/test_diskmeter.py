"""Bytes on disk over all the processes that an engine has."""

from omlx.engine.request import CacheCounters, EngineSnapshot, EngineState
from omlx.server.diskmeter import DiskMeter
from omlx.server.figures import EngineView
from omlx.storage.tally import DiskTally


def view(life: str, written: int, evicted: int = 0, model: str = "m") -> EngineView:
    counters = CacheCounters(bytes_written=written, bytes_evicted=evicted)
    return EngineView(model, EngineState.READY, EngineSnapshot(counters=counters, life=life))


def test_only_what_is_new_is_told() -> None:
    meter = DiskMeter()
    assert meter.take([view("a", 100, 5)]) == {"m": DiskTally(100, 5)}
    assert meter.take([view("a", 100, 5)]) == {}
    assert meter.take([view("a", 130, 5)]) == {"m": DiskTally(30, 0)}


def test_a_new_process_counts_from_nothing_however_much_it_has_written() -> None:
    meter = DiskMeter()
    meter.take([view("a", 100)])
    assert meter.take([view("b", 150, 20)]) == {"m": DiskTally(150, 20)}
    assert meter.take([view("c", 10)]) == {"m": DiskTally(10, 0)}


def test_models_are_apart_and_one_that_was_never_loaded_is_left_out() -> None:
    meter = DiskMeter()
    found = meter.take([view("a", 100), view("b", 7, model="n"), view("", 50, model="o")])
    assert found == {"m": DiskTally(100, 0), "n": DiskTally(7, 0)}
    assert meter.take([view("b", 8, model="n")]) == {"n": DiskTally(1, 0)}
    assert meter.take([view("a", 101)]) == {"m": DiskTally(1, 0)}
