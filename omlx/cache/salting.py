"""What names of blocks are hashed from: tagged fields, and the root of those who share a salt.

Knows nothing about tokens; the server's process, which has no numpy, needs it too.
"""

import hashlib
from collections.abc import Iterable

from omlx.storage.layout import RootHash


def tagged(tag: bytes, value: bytes | memoryview) -> Iterable[bytes | memoryview]:
    """Tag, length, value: no two different lists of fields give the same bytes."""
    return tag, len(value).to_bytes(8, "little"), value


def salted_root(root: RootHash, salt: str) -> RootHash:
    """The first parent of all blocks of those who share a salt; without one it is the root.

    Whoever does not know the salt can neither find their blocks nor tell whether there are any.
    """
    if not salt:
        return root
    digest = hashlib.sha256()
    value = salt.encode("utf-8", "surrogatepass")
    for part in (*tagged(b"P", root), *tagged(b"K", b"salt"), *tagged(b"k", value)):
        digest.update(part)
    return RootHash(digest.digest())
