"""Kernels that mlx compiles at run time, behind plain functions.

Each operation has a reference in plain mlx, and variants whose sources are files in kernels/. A
variant is used only where `omlx kernel build` has verified it on this device. Knows nothing of
models. This module imports nothing, so that asking for the status is what loads mlx.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from omlx.custom_kernels.records import KernelStatus


def native_kernel_status() -> "list[KernelStatus]":
    """Each kernel as it stands here: whether it is built, verified and faster, or why not.

    Reads the records of OMLX_HOME; loads mlx. Works on every machine, also without a GPU.
    """
    from omlx.custom_kernels.status import kernel_status, records_of_home

    return kernel_status(records_of_home())
