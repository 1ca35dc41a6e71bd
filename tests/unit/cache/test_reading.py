"""Reading: memory for a few blocks at a time, pieces in order, and an end whatever happens."""

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from omlx.cache import reading
from omlx.cache.codec import Codec
from omlx.cache.cost import LoadCost
from omlx.cache.hashing import token_array
from omlx.cache.io import ReadJob
from omlx.cache.reading import Gap, Piece, Reading
from omlx.storage.layout import BlockHash, BlockKey
from tests.fakes import state
from tests.fakes.blocks import Clock

COUNT = 4


class Disk:
    """Takes jobs, and reads block i as its number when a test says so."""

    def __init__(self, num_readers: int) -> None:
        self.num_readers = num_readers
        self.jobs: list[tuple[ReadJob, Callable[[list[bool]], None]]] = []
        self.num_asked = 0

    def read(self, jobs: Sequence[ReadJob], done: Callable[[list[bool]], None]) -> None:
        (job,) = jobs
        self.jobs.append((job, done))
        self.num_asked += 1

    def answer(self, at: int = 0, *, is_good: bool = True) -> None:
        job, done = self.jobs.pop(at)
        for _, buffer in job.buffers:
            np.frombuffer(buffer, np.float32)[:] = job.key.name[0]
        done([is_good])


class Case:
    def __init__(self, num_pieces: int, *, num_readers: int = 8) -> None:
        self.disk, self.clock = Disk(num_readers), Clock()
        self.codec = Codec(state.LEAVES)
        self.cost = LoadCost(clock=self.clock)
        self.arrived: list[int] = []
        self.ended: list[int | None] = []
        self.pieces = [
            Piece(
                BlockKey(BlockHash(bytes(32)), BlockHash(bytes([i]) * 32), COUNT), token_array([i])
            )
            for i in range(num_pieces)
        ]
        Reading(
            self.disk,  # type: ignore[arg-type]
            self.codec,
            self.cost,
            [Gap(piece, [0, 1]) for piece in self.pieces],
            arrived=lambda piece: self.arrived.append(self.pieces.index(piece)),
            done=lambda bad: self.ended.append(None if bad is None else self.pieces.index(bad)),
        ).start()


def test_memory_is_set_apart_for_a_few_blocks_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    block_bytes = COUNT * state.BYTES_PER_TOKEN
    monkeypatch.setattr(reading, "_AHEAD_BYTES", 20 * block_bytes / 8)
    case = Case(100)
    ahead = [len(case.disk.jobs)]
    while case.disk.jobs:
        case.disk.answer()
        ahead.append(len(case.disk.jobs))
    assert ahead[0] == 12
    assert max(ahead) == 20 and ahead[:9] == [12, 13, 14, 15, 16, 17, 18, 19, 20]
    assert case.disk.num_asked == 100
    assert case.arrived == list(range(100)) and case.ended == [None]


def test_large_blocks_are_asked_for_as_soon_as_one_has_arrived(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reading, "_AHEAD_BYTES", 1)
    case = Case(40)
    for _ in range(20):
        assert len(case.disk.jobs) == 12
        case.disk.answer()


def test_one_reader_needs_one_block_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_AHEAD_BYTES", 1)
    case = Case(20, num_readers=1)
    for _ in range(10):
        assert len(case.disk.jobs) == 2
        case.disk.answer()


def test_pieces_arrive_in_order_with_what_was_read() -> None:
    case = Case(8)
    for at in (3, 3, 0, 1, 0, 0, 0, 0):
        case.disk.answer(at)
    assert case.arrived == list(range(8)) and case.ended == [None]
    for i, piece in enumerate(case.pieces):
        assert piece.payload is not None
        assert all((np.array(a) == i).all() for a in piece.payload.arrays)


def test_the_first_bad_piece_ends_it_and_nothing_after_it_is_begun() -> None:
    case = Case(50)
    case.disk.answer(9, is_good=False)
    case.disk.answer(5, is_good=False)
    while case.disk.jobs:
        assert case.ended == []
        case.disk.answer(-1)
    assert case.disk.num_asked == 12
    assert case.arrived == [0, 1, 2, 3, 4]
    assert case.ended == [5]


def test_the_rate_of_reading_is_measured() -> None:
    case = Case(3)
    for _ in range(3):
        case.clock.now += 0.5
        case.disk.answer()
    assert case.cost.read_bytes_per_s == 3 * COUNT * state.BYTES_PER_TOKEN / 1.5
