"""The tokens that the next request will begin with, once an answer has called tools.

Knows nothing about engines. What the results are is not known yet: the prompt ends before them.
"""

from collections.abc import Sequence
from dataclasses import replace

from omlx.errors import OmlxError
from omlx.models.messages import Message
from omlx.server.errors import ApiError
from omlx.server.generation import ToolCall
from omlx.server.ledger import Ledger, Said
from omlx.server.parse.said import Reasoning, Text
from omlx.server.prompt import Prepared, encode
from omlx.storage.entry import PartKind

# Fewer tokens that are not cached are computed about as soon as this takes.
_LEAST = 32


def predicted(
    prepared: Prepared, said: Said, ledger: Ledger | None, salt: str
) -> tuple[int, ...] | None:
    """The tokens up to the first result, as the template will print them.

    None where that can't be told, or next to nothing of it is missing in the cache: the prompt and
    the answer are there.
    """
    generation = prepared.generation
    calls = [part for part in said.parts if isinstance(part, ToolCall)]
    if not calls or generation.prompt is not None or generation.num_choices != 1:
        return None
    if generation.messages[-1].get("role") == "assistant":
        return None  # an answer that was continued is part of another message
    places = list(generation.places or range(len(generation.messages)))
    first = max(places) + 1
    reply = _reply(said, calls, generation.messages)
    results = [_result(call) for call in calls]
    going_on = replace(
        generation,
        messages=[*generation.messages, reply, *results],
        places=[*places, *range(first, first + 1 + len(results))],
    )
    try:
        encoded = encode(prepared.text, going_on, ledger, salt=salt)
    except (OmlxError, ApiError, RecursionError):
        return None
    ends = [
        span.start
        for span in encoded.spans
        if span.part.kind is PartKind.MESSAGE and span.part.idx == first + 1
    ]
    if not ends:
        return None
    tokens = encoded.tokens[: ends[0]]
    held = (*prepared.tokens, *said.tokens)
    shared = _num_shared(tokens, held)
    is_missing = shared < len(held) and len(tokens) - shared >= _LEAST
    return tokens if is_missing else None


def _reply(said: Said, calls: Sequence[ToolCall], history: Sequence[Message]) -> Message:
    """The answer as the client will send it: with its reasoning, unless it has left that out."""
    text = "".join(part.text for part in said.parts if isinstance(part, Text))
    thought = "".join(part.text for part in said.parts if isinstance(part, Reasoning))
    earlier = [m for m in history if m.get("role") == "assistant" and m.get("tool_calls")]
    is_sent = not earlier or any(message.get("reasoning_content") for message in earlier)
    more = {"reasoning_content": thought} if thought and is_sent else {}
    return {
        "role": "assistant",
        "content": text,
        "tool_calls": [
            {
                "id": _id(call),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in calls
        ],
        **more,
    }


def _result(call: ToolCall) -> Message:
    return {"role": "tool", "name": call.name, "tool_call_id": _id(call), "content": "result"}


def _id(call: ToolCall) -> str:
    return f"call_{call.index}"


def _num_shared(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = zip(first, second, strict=False)
    shared = min(len(first), len(second))
    return next((n for n, (a, b) in enumerate(pairs) if a != b), shared)
