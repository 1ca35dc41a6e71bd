"""Compiles one kernel, verifies and times it, and keeps the verdict.

Knows nothing of who asks for it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from omlx.custom_kernels.backend import Backend
from omlx.custom_kernels.op import Op
from omlx.custom_kernels.records import Record, Verdict, write_record
from omlx.custom_kernels.registry import digest
from omlx.custom_kernels.timing import time_op
from omlx.custom_kernels.verify import Verification, verify

OnStep = Callable[[int, int, str], None]


def build(op: Op, backend: Backend, path: Path, progress: OnStep) -> Record | None:
    """The verdict on an operation's kernel, written to `path`; None where it has no source for
    this device. OmlxError where the source is not whole, or `path` can't be written."""
    content = digest(op, backend)
    if content is None:
        return None
    checked = verify(op, backend, lambda done, total: progress(done, total, f"verify {op.name}"))
    timed = (
        []
        if checked.reason
        else time_op(op, backend, lambda done, total: progress(done, total, f"time {op.name}"))
    )
    speedups = {one.case.shape_class: round(one.speedup, 3) for one in timed}
    record = record_of(op, backend, content, checked, speedups)
    write_record(path, record)
    return record


def record_of(
    op: Op,
    backend: Backend,
    content: str,
    checked: Verification,
    speedups: Mapping[str, float],
) -> Record:
    """The verdict on a kernel of that content (see `registry.digest`) by what came of it."""
    device = backend.device
    return Record(
        op=op.name,
        backend=device.backend,
        device=device.name,
        mlx=device.mlx,
        digest=content,
        verdict=Verdict.FAILED if checked.reason else Verdict.VERIFIED,
        reason=checked.reason,
        num_cases=checked.num_cases,
        errors=checked.errors,
        speedups=speedups,
    )


def broken_record(op: Op, backend: Backend, reason: str) -> Record:
    """The verdict on a kernel whose process died."""
    return record_of(op, backend, digest(op, backend) or "", Verification({}, 0, reason), {})
