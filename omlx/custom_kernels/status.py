"""Each kernel as it stands on this machine.

Knows nothing of models; loads mlx to see which device there is.
"""

import os
from pathlib import Path

from omlx.custom_kernels.backend import Backend, this_backend
from omlx.custom_kernels.op import Op
from omlx.custom_kernels.records import (
    NO_KERNEL,
    NOT_BUILT,
    KernelStatus,
    Record,
    find,
    read_records,
)
from omlx.custom_kernels.registry import digest, operations
from omlx.settings.places import home, kernels_path


def records_of_home() -> Path:
    """The file of the verdicts in OMLX_HOME."""
    return kernels_path(home(os.environ))


def kernel_status(path: Path, backend: Backend | None = None) -> list[KernelStatus]:
    """All kernels by the verdicts in `path`, for this machine's device or for another."""
    backend = backend or this_backend()
    records = read_records(path)
    return [_status(op, backend, records) for op in operations()]


def _status(op: Op, backend: Backend | None, records: tuple[Record, ...]) -> KernelStatus:
    if backend is None:
        reason = "mlx computes on the CPU here, and kernels are for GPUs"
        return KernelStatus(op.name, op.summary, None, NO_KERNEL, reason)
    device = backend.device
    content = digest(op, backend)
    if content is None:
        is_needed = device.backend in op.backends
        reason = "its source is missing" if is_needed else f"mlx needs none on {device.backend}"
        return KernelStatus(op.name, op.summary, device.name, NO_KERNEL, reason)
    holds_for = (op.name, device.backend, device.name, device.mlx)
    record = find(records, holds_for, content)
    if record is None:
        why = _why_not_built(op, device.name, records)
        return KernelStatus(op.name, op.summary, device.name, NOT_BUILT, why)
    return KernelStatus(
        name=op.name,
        summary=op.summary,
        device=device.name,
        state=record.verdict.value,
        reason=record.reason,
        num_cases=record.num_cases,
        errors=dict(record.errors),
        speedups=dict(record.speedups),
    )


def _why_not_built(op: Op, device: str, records: tuple[Record, ...]) -> str:
    older = [one for one in records if one.op == op.name and one.device == device]
    if older:
        return "its verdict is on another source or version of mlx"
    return "there is no verdict on it for this device"
