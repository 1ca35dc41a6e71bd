"""The model list of the Anthropic API.

Knows nothing about engines.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from omlx.server.context import Listed

# What that API wants to be told of every model; in this version a model takes and gives text.
_UNSUPPORTED = (
    "batch",
    "citations",
    "code_execution",
    "image_input",
    "pdf_input",
    "structured_outputs",
)
_THINKING = ("adaptive", "between_tools", "disabled", "enabled")


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
        "capabilities": _capabilities(),
    }


def _capabilities() -> dict[str, object]:
    def no() -> dict[str, object]:
        return {"supported": False}

    return {
        **{name: no() for name in _UNSUPPORTED},
        "context_management": no(),
        "effort": {**no(), "low": no(), "medium": no(), "high": no(), "max": no()},
        "server_tools": {**no(), "code_execution": no(), "web_search": no()},
        "thinking": {**no(), "types": {kind: no() for kind in _THINKING}},
    }


def models(listed: Sequence[Listed]) -> dict[str, object]:
    """The list, which is never cut into pages."""
    return {
        "data": [model(one) for one in listed],
        "has_more": False,
        "first_id": listed[0].id if listed else None,
        "last_id": listed[-1].id if listed else None,
    }
