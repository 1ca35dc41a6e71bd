"""Whether the files of a model are still those that were loaded, by names, sizes and times.

Knows nothing about what is in them; `fingerprint` does, and takes longer.
"""

import hashlib
from pathlib import Path

_SUFFIXES = (".json", ".safetensors", ".jinja", ".model", ".txt")


def files_version(folder: Path) -> str:
    """Changes whenever a file of the model does; empty where the folder can't be read."""
    digest = hashlib.sha256()
    try:
        for path in sorted(folder.iterdir()):
            if path.suffix not in _SUFFIXES:
                continue
            stat = path.stat()  # of what a link leads to
            digest.update(f"{path.name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    except OSError:
        return ""
    return digest.hexdigest()
