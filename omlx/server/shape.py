"""How much a JSON body may hold, found by its bytes before anything is decoded.

Knows nothing about dialects, or about what is valid JSON.
"""

import re

from omlx.server.errors import ApiError

# Schemas of tools are the deepest that clients send: two levels for each object in an object,
# three with a list between. 128 is beyond forty such objects within each other.
MAX_DEPTH = 128
# Objects and lists together; a long session of an agent with hundreds of tools has thousands.
MAX_CONTAINERS = 250_000
# What lists of a request may hold; msgspec checks them while it decodes.
MAX_MESSAGES = 20_000
MAX_TOOLS = 2_000
MAX_PARTS = 2_000

_TEXT = re.compile(rb'"[^"]*"?')
_OTHERS = bytes(one for one in range(256) if one not in b"[]{}")


def check_shape(body: bytes) -> None:
    """ApiError 400, with the limit, for JSON that is nested too deeply or holds too much."""
    if body.count(b"[") + body.count(b"{") <= MAX_DEPTH:
        return  # too few, even if all were within each other
    brackets = _brackets(body)
    num_containers = brackets.count(b"[") + brackets.count(b"{")
    if num_containers > MAX_CONTAINERS:
        raise ApiError(
            400,
            f"The body holds {num_containers} objects and lists; at most {MAX_CONTAINERS} are "
            "taken",
        )
    if _is_too_deep(brackets):
        raise ApiError(400, f"The body is nested too deeply: at most {MAX_DEPTH} levels are taken")


def _brackets(body: bytes) -> bytes:
    """The brackets that are not within texts, in their order."""
    # Escapes pair from the left, so what is left of a run of backslashes may escape a quote.
    without_escapes = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    return _TEXT.sub(b"", without_escapes).translate(None, _OTHERS)


def _is_too_deep(brackets: bytes) -> bool:
    depth = 0
    for one in brackets:
        depth += 1 if one in b"[{" else -1
        if depth > MAX_DEPTH:
            return True
    return False
