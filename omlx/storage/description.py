"""What a root says of itself in its root.json.

Knows nothing about what the words mean.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from omlx.storage.fs import FileSystem, read_file
from omlx.storage.layout import BLOCKS, ROOT_FILE

_MAX_BYTES = 1 << 16


def read_description(fs: FileSystem, directory: Path, root16: str) -> Mapping[str, object]:
    """The content of root.json, empty where there is none that can be read."""
    path = directory / BLOCKS / root16 / ROOT_FILE
    try:
        return as_object(json.loads(read_file(fs, path, max_bytes=_MAX_BYTES)))
    except (OSError, ValueError, RecursionError):
        return {}


def as_object(value: object) -> Mapping[str, object]:
    """A JSON value that should be an object; anything else is an empty one."""
    return cast(Mapping[str, object], value) if isinstance(value, dict) else {}
