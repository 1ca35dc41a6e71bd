"""Compiles one kernel, verifies and times it, and keeps the verdict.

Knows nothing of who asks for it.
"""

from collections.abc import Callable
from pathlib import Path

from omlx.custom_kernels.backend import Backend
from omlx.custom_kernels.op import Op
from omlx.custom_kernels.records import Record, Verdict, write_record
from omlx.custom_kernels.registry import digest
from omlx.custom_kernels.timing import time_op
from omlx.custom_kernels.verify import verify

OnStep = Callable[[int, int, str], None]


def build(op: Op, backend: Backend, path: Path, progress: OnStep) -> Record | None:
    """The verdict on an operation's kernel, written to `path`; None where it has no source for
    this device. OmlxError where the source is not whole, or `path` can't be written."""
    content = digest(op, backend)
    if content is None:
        return None
    checked = verify(op, backend, lambda done, total: progress(done, total, f"verify {op.name}"))
    if checked.reason:
        verdict, speedups = Verdict.FAILED, {}
    else:
        timed = time_op(op, backend, lambda done, total: progress(done, total, f"time {op.name}"))
        verdict = Verdict.VERIFIED
        speedups = {one.case.shape_class: round(one.speedup, 3) for one in timed}
    record = Record(
        op=op.name,
        backend=backend.device.backend,
        device=backend.device.name,
        mlx=backend.device.mlx,
        digest=content,
        verdict=verdict,
        reason=checked.reason,
        num_cases=checked.num_cases,
        errors=checked.errors,
        speedups=speedups,
    )
    write_record(path, record)
    return record


def broken_record(op: Op, backend: Backend, reason: str) -> Record:
    """The verdict on a kernel whose process died."""
    device = backend.device
    return Record(
        op=op.name,
        backend=device.backend,
        device=device.name,
        mlx=device.mlx,
        digest=digest(op, backend) or "",
        verdict=Verdict.FAILED,
        reason=reason,
    )
