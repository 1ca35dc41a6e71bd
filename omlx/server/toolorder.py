"""Puts tools and the keys in them into the order in which the same ones came first.

Knows nothing about prompts. Two sets are the same if they differ in nothing but the order of tools
and of keys: values never change, and lists keep their order.
"""

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, cast

from omlx.server.context import Message
from omlx.server.textkey import key_of


class FirstSeen(Protocol):
    """Remembers texts; see omlx.storage.toolsets.ToolSets."""

    def first(self, key: bytes, text: str) -> str:
        """The text that first came with a key."""
        ...


@dataclass(frozen=True, slots=True)
class Ordered:
    """Tools in their first order; `indices` say where each was, `num_changed` how many differ."""

    tools: Sequence[Message]
    indices: Sequence[int]
    num_changed: int


def in_first_order(tools: Sequence[Message], first_seen: FirstSeen, salt: str) -> Ordered | None:
    """The same tools as they came first; None where that is as they are.

    Those with another `salt` have orders of their own, so that none tells what others sent.
    """
    try:
        own = [_sorted_text(tool) for tool in tools]
        text = _text(tools)
    except (RecursionError, ValueError, TypeError):
        return None
    found = first_seen.first(key_of(b"omlx tool set", (salt, *sorted(own))), text)
    if found == text:
        return None
    first = _read(found)
    try:
        names = [_sorted_text(tool) for tool in first]
    except (RecursionError, ValueError, TypeError):
        return None
    if sorted(names) != sorted(own):  # the file has something else under this name
        return None
    indices = _places(own, names)
    pairs = zip(first, indices, strict=True)
    num = sum(at != idx or _text(tool) != _text(tools[idx]) for at, (tool, idx) in enumerate(pairs))
    return Ordered(first, indices, num)


def _places(own: Sequence[str], names: Sequence[str]) -> list[int]:
    """Where each of the names is among our own, of which some may be the same."""
    places: defaultdict[str, list[int]] = defaultdict(list)
    for idx in reversed(range(len(own))):
        places[own[idx]].append(idx)
    return [places[name].pop() for name in names]


def _sorted_text(tool: Message) -> str:
    return json.dumps(tool, ensure_ascii=False, sort_keys=True, separators=(",", ":"))


def _text(tools: object) -> str:
    return json.dumps(tools, ensure_ascii=False, separators=(",", ":"))


def _read(text: str) -> list[Message]:
    try:
        tree: object = json.loads(text)
    except (ValueError, RecursionError):
        return []
    if not isinstance(tree, list):
        return []
    return [cast(Message, tool) for tool in cast(list[object], tree) if isinstance(tool, dict)]
