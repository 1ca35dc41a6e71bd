"""How much faster a kernel is than plain mlx, over weights that no cache holds.

Knows nothing of records.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from omlx.custom_kernels.backend import Backend
from omlx.custom_kernels.op import Case, Function, Op, arrays_of, in_order

_mx: Any = mx
COLD_BYTES = 256 * 2**20  # more than the last cache of any GPU
_MOST_COPIES = 64
_FEWEST_COPIES = 3
_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of one call, of the kernel and of the reference, as a model would see them: with
    what the host does for it."""

    case: Case
    kernel_s: float
    reference_s: float

    @property
    def speedup(self) -> float:
        """The reference's time over the kernel's."""
        return self.reference_s / self.kernel_s


def time_op(
    op: Op,
    backend: Backend,
    progress: Callable[[int, int], None] = lambda done, total: None,
    *,
    cold_bytes: int = COLD_BYTES,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Timed]:
    """Time each of the operation's shape classes, rounds of kernel and reference by turns."""
    function = op.bind(backend)
    found: list[Timed] = []
    for done, case in enumerate(op.timed):
        progress(done, len(op.timed))
        num = max(_FEWEST_COPIES, min(_MOST_COPIES, cold_bytes // max(1, case.weight_bytes)))
        calls = [op.inputs(case) for _ in range(num)]
        _mx.eval(arrays_of(calls))
        kernel: list[float] = []
        reference: list[float] = []
        for _ in range(_ROUNDS + 1):  # the first is not counted: it compiles
            kernel.append(_seconds(function, calls, clock))
            reference.append(_seconds(op.reference, calls, clock))
        found.append(Timed(case, min(kernel[1:]) / num, min(reference[1:]) / num))
    return found


def _seconds(
    function: Function, calls: Sequence[Sequence[Any]], clock: Callable[[], float]
) -> float:
    began = clock()
    _mx.eval(chain(function, calls))
    return clock() - began


def chain(function: Function, calls: Sequence[Sequence[Any]]) -> list[mx.array]:
    """The last call's outputs, where each waits for the one before, as layers do."""
    found: list[mx.array] = []
    for first, *others in calls:
        x = _mx.depends(first, found) if found else first
        found = in_order(function(x, *others))
    return found
