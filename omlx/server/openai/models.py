"""The model list of the OpenAI API.

Knows nothing about engines. The keys after `owned_by` that API doesn't have: agents need them.
"""

from collections.abc import Sequence
from types import MappingProxyType

from omlx.server.context import Listed

# What every model can be asked for in this version.
CAPABILITIES = MappingProxyType(
    {"completion": True, "streaming": True, "tools": False, "vision": False, "embedding": False}
)


def model(listed: Listed) -> dict[str, object]:
    """One model."""
    return {
        "id": listed.id,
        "object": "model",
        "created": listed.created,
        "owned_by": "omlx",
        "context_window": listed.window,
        "root": listed.root or listed.id,
        "profile": listed.profile,
        "capabilities": dict(CAPABILITIES),
    }


def models(listed: Sequence[Listed]) -> dict[str, object]:
    """The list."""
    return {"object": "list", "data": [model(one) for one in listed]}
