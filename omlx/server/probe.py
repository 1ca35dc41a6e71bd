"""Tries, before anything is served, whether the disk tier's folder can be written to.

Knows nothing about blocks; each engine opens the folder itself.
"""

import os
import tempfile
from pathlib import Path

_BYTES = 4096


def write_fault(folder: Path) -> str:
    """Why nothing can be stored in a folder, which is made if it is missing; empty if it can."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            file.write(b"\0" * _BYTES)
            os.fsync(file.fileno())
    except OSError as error:
        return error.strerror or str(error)
    return ""
