"""Keys of what texts make up together, for what is kept between requests.

Knows nothing about what the texts are.
"""

import hashlib
from collections.abc import Iterable


def key_of(kind: bytes, texts: Iterable[str]) -> bytes:
    """SHA-256 of texts of a kind, each after its length: no two lists of them give the same."""
    digest = hashlib.sha256(kind)
    for text in texts:
        data = text.encode("utf-8", "surrogatepass")
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.digest()
