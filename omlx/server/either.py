"""Tells which dialect a body is written in, for bodies in files, which come without a path.

Knows nothing about where they are kept.
"""

import json
from collections.abc import Mapping

from omlx.models.config import items, mapping
from omlx.server.anthropic.messages import Messages
from omlx.server.generation import Dialect
from omlx.server.openai.chat import Chat
from omlx.server.openai.completions import Completions
from omlx.server.openai.responses import Responses

_ANTHROPIC_FIELDS = frozenset({"system", "stop_sequences", "thinking"})
_ANTHROPIC_BLOCKS = frozenset({"tool_use", "tool_result", "thinking", "redacted_thinking"})


def either_dialect(data: bytes) -> tuple[Dialect, bytes]:
    """The dialect of a body, and the body as that wants it; ValueError where it is not JSON.

    A body that would be the same in both is taken as one of chat completions.
    """
    try:
        tree: object = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    body = mapping(tree)
    if "messages" not in body:
        if "input" in body:
            return Responses(), data
        if "prompt" in body:
            return Completions(), data
    if not _is_anthropic(body):
        return Chat(), data
    if "max_tokens" not in body:  # which the API insists on, but no prompt has
        data = json.dumps({**body, "max_tokens": 1}).encode()
    return Messages(), data


def _is_anthropic(body: Mapping[str, object]) -> bool:
    if not _ANTHROPIC_FIELDS.isdisjoint(body):
        return True
    if any("input_schema" in mapping(tool) for tool in items(body.get("tools"))):
        return True
    contents = (mapping(m).get("content") for m in items(body.get("messages")))
    blocks = (mapping(block) for content in contents for block in items(content))
    return any(block.get("type") in _ANTHROPIC_BLOCKS for block in blocks)
