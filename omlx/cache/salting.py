"""What names of blocks are hashed from: tagged fields, and the root of those who share a salt.

Knows nothing about tokens; the server's process, which has no numpy, needs it too.
"""

import hashlib

from omlx.storage.layout import RootHash


def hashed(*fields: tuple[bytes, bytes | memoryview]) -> bytes:
    """SHA-256 of (tag, value) fields: no two different lists of them give the same bytes."""
    digest = hashlib.sha256()
    for tag, value in fields:
        for part in (tag, len(value).to_bytes(8, "little"), value):
            digest.update(part)
    return digest.digest()


def salted_root(root: RootHash, salt: str) -> RootHash:
    """The first parent of all blocks of those who share a salt; without one it is the root.

    Whoever does not know the salt can neither find their blocks nor tell whether there are any.
    """
    if not salt:
        return root
    value = salt.encode("utf-8", "surrogatepass")
    return RootHash(hashed((b"P", root), (b"K", b"salt"), (b"k", value)))
