"""What is kept of a response as the Responses API shows it again: its input, page by page.

Knows nothing about where it is kept.
"""

from collections.abc import Mapping
from typing import cast

import orjson

from omlx.server.errors import bad_field

_DEFAULT_PAGE = 20
_LARGEST_PAGE = 100
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}

Item = dict[str, object]


def input_page(items: bytes, response_id: str, query: Mapping[str, str]) -> dict[str, object]:
    """A page of the items, the newest first unless `order` is asc; 400 names what is wrong."""
    limit = query.get("limit", str(_DEFAULT_PAGE))
    if not (limit.isascii() and limit.isdecimal()) or not 0 < int(limit[:9]) <= _LARGEST_PAGE:
        raise bad_field("limit", f"Must be between 1 and {_LARGEST_PAGE}")
    order, after = query.get("order", "desc"), query.get("after")
    if order not in ("asc", "desc"):
        raise bad_field("order", "Must be asc or desc")
    given = cast(list[Item], orjson.loads(items))
    shown = [_shown(item, f"{response_id.partition('_')[2]}_in{n}") for n, item in enumerate(given)]
    if order == "desc":
        shown.reverse()
    if after is not None:
        ids = [item["id"] for item in shown]
        if after not in ids:
            raise bad_field("after", "Must be the id of an item of this response")
        shown = shown[ids.index(after) + 1 :]
    page = shown[: int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else "",
        "last_id": page[-1]["id"] if page else "",
        "has_more": len(shown) > len(page),
    }


def _shown(item: Item, number: str) -> Item:
    """An item with what clients may leave out when they send one."""
    kind = str(item.get("type") or "message")
    item_id = item.get("id") or f"{_PREFIXES.get(kind, 'item')}_{number}"
    made: Item = {"status": "completed", **item, "type": kind, "id": item_id}
    if kind == "message":
        made["content"] = _content(item)
    elif kind in ("reasoning", "custom_tool_call", "custom_tool_call_output"):
        made = {key: value for key, value in made.items() if key != "status" or key in item}
    return made


def _content(item: Item) -> list[Item]:
    is_answer = item.get("role") == "assistant"
    given = item.get("content")
    parts = [{"text": given}] if isinstance(given, str) else cast(list[Item], given or ())
    kind = "output_text" if is_answer else "input_text"
    more: Item = {"type": kind, "annotations": []} if is_answer else {"type": kind}
    return [{**more, **part} for part in parts]
