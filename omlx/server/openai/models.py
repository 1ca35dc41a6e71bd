"""The model list of the OpenAI API.

Knows nothing about engines. `context_window` is the one key that API doesn't have: agents need it.
"""

from collections.abc import Sequence

from omlx.server.context import Listed


def model(listed: Listed) -> dict[str, object]:
    """One model."""
    return {
        "id": listed.id,
        "object": "model",
        "created": listed.created,
        "owned_by": "omlx",
        "context_window": listed.window,
    }


def models(listed: Sequence[Listed]) -> dict[str, object]:
    """The list."""
    return {"object": "list", "data": [model(one) for one in listed]}
