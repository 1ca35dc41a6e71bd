"""Two engine processes under one limit: the cache of the first makes way for the second."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from omlx.engine.config import EngineConfig
from omlx.engine.pool import Pool, PoolPolicy
from omlx.engine.process import EngineProcess
from omlx.engine.request import EngineRequest, EngineSnapshot, EngineState, Event, Failed, Finished
from omlx.engine.room import RoomLimits
from omlx.engine.slot import Stay
from omlx.models.footprint import State
from omlx.models.locate import ModelEntry
from tests.fakes import tiny

pytestmark = pytest.mark.e2e
LIMIT = 100_000_000
WIDE = {
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "head_dim": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
}  # 33 kB of keys and values a token


class House:
    """A pool of two engines, and the requests that are over."""

    def __init__(self, folder: Path) -> None:
        config = {**tiny.CONFIGS["llama"], **WIDE}
        self.entries: list[ModelEntry] = []
        for name in "ab":
            path = tiny.save(tiny.build_config(config), folder / name, config)
            size = (path / "model.safetensors").stat().st_size
            entry = ModelEntry(name, path, "llama", None, size, None, None, state=State(32_768))
            self.entries.append(entry)
        self.over = threading.Semaphore(0)
        self.ends: list[Event] = []
        self.sums: list[int] = []
        self.pool = Pool(
            self.entries,
            self.make,
            stay=lambda entry: Stay(),
            policy=PoolPolicy(RoomLimits(None, LIMIT), reserve_bytes=4 * 10**9),
        )
        self.pool.start_all(lambda model_id: self.hear)

    def make(self, entry: ModelEntry) -> EngineProcess:
        config = EngineConfig(
            entry.id,
            str(entry.path),
            disk_bytes=0,
            block_size=32,
            memory_limit=LIMIT,
            memory_bytes=LIMIT,
            log_level="error",
        )
        return EngineProcess(config, blas="off")

    def hear(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, Finished | Failed):
                self.ends.append(event)
                self.over.release()

    def ask(self, model_id: str, seed: int) -> None:
        tokens = tuple(3 + (seed * 7 + i * (seed + 1)) % 500 for i in range(128))
        request = EngineRequest(f"{model_id}{seed}", tokens, 2)
        self.pool.get(model_id).submit(request)
        assert self.over.acquire(timeout=60)
        assert isinstance(self.ends[-1], Finished), self.ends[-1]

    def figures(self, model_id: str) -> EngineSnapshot:
        return self.pool.get(model_id).snapshot() or EngineSnapshot()

    def until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        while not is_so():
            assert time.monotonic() < deadline, [self.figures(n).memory_use for n in "ab"]
            self.note()
            time.sleep(0.05)

    def note(self) -> None:
        self.sums.append(sum(self.figures(name).memory_use.limit_bytes for name in "ab"))


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    found = House(tmp_path)
    yield found
    found.pool.stop_all(5.0)


def test_the_cache_of_the_first_shrinks_as_the_second_loads(house: House) -> None:
    for seed in range(16):
        house.ask("a", seed)
    house.until(lambda: house.figures("a").memory_use.cache_bytes > 30_000_000)
    use = house.figures("a").memory_use
    assert use.limit_bytes == LIMIT
    assert use.needed_bytes + use.cache_bytes <= LIMIT
    assert use.process_bytes > use.active_bytes > use.cache_bytes
    for seed in range(16):
        house.ask("b", seed)
        house.note()
    house.until(lambda: house.figures("b").memory_use.cache_bytes > 5_000_000)
    uses = [house.figures(name).memory_use for name in "ab"]
    assert uses[0].cache_bytes < use.cache_bytes - 5_000_000
    assert sum(u.least_bytes + u.cache_bytes for u in uses) <= LIMIT
    assert max(house.sums) <= LIMIT
    assert [house.pool.get(name).state() for name in "ab"] == [EngineState.READY] * 2
    house.ask("a", 1)
