"""Marks files as written here, so that one that somebody edited is known.

Knows nothing about what is in them.
"""

import hashlib
import re

_SAID = "Written by omlx service install, which writes it anew; omlx-digest: "
_LINE = re.compile(rb"^[^\n]*omlx-digest: ([0-9a-f]{64})[^\n]*\n", re.MULTILINE)
_XML = b"<?xml"


def sealed(data: bytes) -> bytes:
    """The same file with a comment that holds the digest of all else."""
    mark = f"{_SAID}{_digest(data)}"
    if not data.startswith(_XML):
        return f"# {mark}\n".encode() + data
    first, end, rest = data.partition(b"\n")
    return first + end + f"<!-- {mark} -->\n".encode() + rest


def is_sealed(data: bytes) -> bool:
    """Whether a file is as it was written here."""
    match = _LINE.search(data)
    if match is None:
        return False
    return _digest(data[: match.start()] + data[match.end() :]).encode() == match[1]


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
