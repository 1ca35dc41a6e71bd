"""A task of its own process: builds one kernel, or says how all of them stand.

Knows nothing about terminals; what comes in and goes out is described in models/task.py.
"""

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from omlx.custom_kernels.backend import this_backend
from omlx.custom_kernels.build import broken_record, build
from omlx.custom_kernels.records import write_record
from omlx.custom_kernels.registry import operation
from omlx.custom_kernels.status import kernel_status
from omlx.models.task import OnProgress, run_as_main


def kernels(spec: Mapping[str, object], progress: OnProgress) -> dict[str, object]:
    """How all kernels stand, after what `spec` asks for.

    Keys of `spec`: records (the file of the verdicts), build (the kernel to build, or None), and
    died (why the process that built it ended, or None): then the verdict is that it failed.
    """
    records = Path(str(spec["records"]))
    backend = this_backend()
    name = spec.get("build")
    if name is not None and backend is not None:
        op = operation(str(name))
        if spec.get("died") is None:
            build(op, backend, records, progress)
        else:
            write_record(records, broken_record(op, backend, str(spec["died"])))
    return {
        "device": None if backend is None else backend.device.name,
        "backend": None if backend is None else backend.device.backend,
        "kernels": [asdict(one) for one in kernel_status(records, backend)],
    }


if __name__ == "__main__":
    sys.exit(run_as_main(kernels))
