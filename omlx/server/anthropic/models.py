"""The model list of the Anthropic API.

Knows nothing about engines.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from omlx.server.context import Listed


def model(listed: Listed) -> dict[str, object]:
    """One model."""
    created = datetime.fromtimestamp(listed.created, UTC)
    return {
        "type": "model",
        "id": listed.id,
        "display_name": listed.id,
        "created_at": created.isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": listed.window,
    }


def models(listed: Sequence[Listed]) -> dict[str, object]:
    """The list, which is never cut into pages."""
    return {
        "data": [model(one) for one in listed],
        "has_more": False,
        "first_id": listed[0].id if listed else None,
        "last_id": listed[-1].id if listed else None,
    }
