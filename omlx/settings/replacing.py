"""Files that are whole at any time: a new one is written beside and takes the old one's place.

Knows nothing about what is in them.
"""

import os
import tempfile
from pathlib import Path


def replace_text(path: Path, text: str) -> None:
    """Put `text` (UTF-8) in the place of a file that only its owner may read, all of it or nothing;
    OSError."""
    # mkstemp files are 0600 from the start.
    handle, name = tempfile.mkstemp(prefix=".tmp-", dir=path.parent)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink()
        raise
