"""How fast the device reads its memory, measured: what bounds a decode step.

Knows nothing about models. For a process of its own: it takes memory and a thread for seconds.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import psutil

_mx: Any = mx  # what the stubs leave untyped
_PIECES = 8
_MAX_PIECE_BYTES = 256 << 20
_SHARE = 16  # of the memory that is free, all pieces together take one part in so many
_ROUNDS = 7
_WIDTH = 4096  # of a matrix, in numbers of 4 bytes


@dataclass(frozen=True, slots=True)
class ReadRate:
    """Bytes per second: the best of each way, over arrays of `num_bytes` in all."""

    matvec: float
    total: float
    num_bytes: int
    device: str

    @property
    def best(self) -> float:
        """The rate that a step is measured against."""
        return max(self.matvec, self.total)


def measure_read_rate(*, free_bytes: int | None = None) -> ReadRate:
    """Read arrays larger than any cache in two ways: as a decode step does, and as a sum.

    A step multiplies each weight matrix with a vector: the arrays are float32 matrices, whose
    product with a vector reads each number once. Each way runs over all arrays seven times; the
    fastest counts, since others can only slow it down.
    """
    free = psutil.virtual_memory().available if free_bytes is None else free_bytes
    piece = max(1 << 20, min(_MAX_PIECE_BYTES, free // (_SHARE * _PIECES)))
    rows = max(1, piece // (4 * _WIDTH))
    matrices = [mx.random.normal((rows, _WIDTH)) for _ in range(_PIECES)]
    vector = mx.random.normal((_WIDTH, 1))
    _mx.eval(*matrices, vector)
    num_bytes = sum(matrix.nbytes for matrix in matrices)
    return ReadRate(
        matvec=num_bytes / _fastest(lambda: _mx.eval(*(matrix @ vector for matrix in matrices))),
        total=num_bytes / _fastest(lambda: _mx.eval(*(matrix.sum() for matrix in matrices))),
        num_bytes=num_bytes,
        device=str(mx.default_device()),
    )


def _fastest(work: Callable[[], None]) -> float:
    work()
    best = float("inf")
    for _ in range(_ROUNDS):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best
