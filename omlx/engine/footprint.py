"""How much of the system's memory this process takes, as the system counts it.

Knows nothing about arrays.
"""

import ctypes
import os
import sys
from typing import Any

import psutil

_RUSAGE_INFO_V0 = 0


class _RusageInfo(ctypes.Structure):
    """`struct rusage_info_v0` of macOS."""

    _fields_ = (
        ("uuid", ctypes.c_uint8 * 16),
        ("user_time", ctypes.c_uint64),
        ("system_time", ctypes.c_uint64),
        ("idle_wakeups", ctypes.c_uint64),
        ("interrupt_wakeups", ctypes.c_uint64),
        ("pageins", ctypes.c_uint64),
        ("wired_size", ctypes.c_uint64),
        ("resident_size", ctypes.c_uint64),
        ("phys_footprint", ctypes.c_uint64),
        ("start_time", ctypes.c_uint64),
        ("exit_time", ctypes.c_uint64),
    )


def footprint_bytes(*, platform: str = sys.platform, library: Any = None) -> int:
    """The physical footprint on macOS, which has the GPU's buffers; else what is resident, pages of
    mapped files included.

    `library` is the C library of macOS.
    """
    if platform == "darwin":
        library = library or ctypes.CDLL("/usr/lib/libproc.dylib")
        info = _RusageInfo()
        if library.proc_pid_rusage(os.getpid(), _RUSAGE_INFO_V0, ctypes.byref(info)) == 0:
            return int(info.phys_footprint)
    return int(psutil.Process().memory_info().rss)
