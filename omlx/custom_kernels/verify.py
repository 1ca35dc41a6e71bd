"""A kernel against float64, over all its cases, on random inputs and with poisoned outputs.

Knows nothing of records.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx

from omlx.custom_kernels.backend import Backend
from omlx.custom_kernels.op import Case, Op, arrays_of, in_order

_mx: Any = mx
_BROKEN = (RuntimeError, ValueError)  # what mlx raises where a source doesn't compile or run
OnCase = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Verification:
    """What came of it: the largest errors by type, and why it failed, empty if it didn't."""

    errors: dict[str, float]
    num_cases: int
    reason: str = ""


def verify(op: Op, backend: Backend, progress: OnCase = lambda done, total: None) -> Verification:
    """Compare an operation's kernel with the exact result; ends at the first case that differs.

    The outputs are full of NaN before the kernel runs, so what it leaves out shows. Each case runs
    twice and must give the same bits.
    """
    function = op.bind(backend.poisoned())
    errors: dict[str, float] = {}
    for done, case in enumerate(op.cases):
        progress(done, len(op.cases))
        _mx.random.seed(done)
        inputs = op.inputs(case)
        _mx.eval(arrays_of(inputs))
        try:
            first, again = in_order(function(*inputs)), in_order(function(*inputs))
            _mx.eval(first, again)
        except _BROKEN as error:
            return Verification(errors, done, f"{case.label}: {_first_line(error)}")
        reason, error = _judge(op, case, inputs, first)
        if not reason and not all(_same(a, b) for a, b in zip(first, again, strict=True)):
            reason = "two runs gave different results"
        errors[case.dtype] = max(errors.get(case.dtype, 0.0), error)
        if reason:
            return Verification(errors, done, f"{case.label}: {reason}")
    return Verification(errors, len(op.cases))


def _judge(op: Op, case: Case, inputs: list[Any], found: list[mx.array]) -> tuple[str, float]:
    """Why the result of a case is wrong, empty if it is right; and its largest error."""
    with _mx.stream(_mx.cpu):
        exact = in_order(op.exact(*inputs))
        worst = 0.0
        for got, true in zip(found, exact, strict=True):
            if got.shape != true.shape or got.dtype != case.mx_dtype:
                return f"{got.dtype} {got.shape} instead of {true.shape}", worst
            wide = got.astype(_mx.float64)
            if not _mx.isfinite(wide).all().item():
                return "part of the output was not written, or is not finite", worst
            mean = _mx.sqrt((true * true).mean())
            worst = max(worst, float((_mx.abs(wide - true) / (_mx.abs(true) + mean)).max().item()))
    limit = op.tolerances[case.dtype]
    return (f"an error of {worst:.3g}, above {limit:g}" if worst > limit else ""), worst


def _same(a: mx.array, b: mx.array) -> bool:
    return bool(_mx.array_equal(a, b, equal_nan=True).item())


def _first_line(error: Exception) -> str:
    """What a compiler says first of an error."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next((line for line in lines if "error" in line), lines[0] if lines else repr(error))
