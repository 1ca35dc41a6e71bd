"""With whom a request shares what is cached: a salt from its API key and its own header.

Knows nothing about the cache, where the salt is a part of what the first block is named after.
"""

import hashlib
from collections.abc import Mapping

from omlx.server.auth import Grant
from omlx.server.errors import ApiError

SALT_HEADER = "X-Omlx-Cache-Salt"
_MAX_CHARS = 256


def cache_salt(headers: Mapping[str, str], grant: Grant, *, isolate: str) -> str:
    """The salt, a digest; empty for what everyone shares. ApiError 400 for a header that is wrong.

    What a client chooses never opens what is another key's, since the key is always a part of it.
    """
    own = headers.get(SALT_HEADER.lower(), "")
    if len(own) > _MAX_CHARS:
        message = f"Must have at most {_MAX_CHARS} characters - at `{SALT_HEADER}`"
        raise ApiError(400, message, param=SALT_HEADER)
    if not own and (isolate != "key" or not grant.identity):
        return ""
    digest = hashlib.sha256(b"omlx cache salt")
    for part in (grant.identity, own):
        value = part.encode("utf-8", "surrogateescape")
        digest.update(len(value).to_bytes(8, "little") + value)
    return digest.hexdigest()
