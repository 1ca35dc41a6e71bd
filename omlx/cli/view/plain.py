"""Values out of JSON objects that may lack them or have others there.

Knows nothing about what the objects are.
"""

import math
from collections.abc import Mapping
from typing import cast

from omlx.cli.view.text import harmless


def maps_of(item: Mapping[str, object], key: str) -> list[Mapping[str, object]]:
    """The objects in a list; others are passed over."""
    value = item.get(key)
    items = cast(list[object], value) if isinstance(value, list) else []
    return [cast(Mapping[str, object], one) for one in items if isinstance(one, dict)]


def map_of(item: Mapping[str, object], key: str) -> Mapping[str, object]:
    """An object; an empty one where it is none."""
    value = item.get(key)
    return cast(Mapping[str, object], value) if isinstance(value, dict) else {}


def text_of(item: Mapping[str, object], key: str) -> str:
    """A text that a terminal can't be harmed by; empty where it is none."""
    value = item.get(key)
    return harmless(value) if isinstance(value, str) else ""


def texts_of(item: Mapping[str, object], key: str) -> list[str]:
    """The texts in a list that a terminal can't be harmed by; others are passed over."""
    value = item.get(key)
    items = cast(list[object], value) if isinstance(value, list) else []
    return [harmless(one) for one in items if isinstance(one, str)]


def int_of(item: Mapping[str, object], key: str) -> int:
    """A whole number; 0 where it is none."""
    return int(number_of(item, key) or 0)


def number_of(item: Mapping[str, object], key: str) -> float | None:
    """A finite number; None where it is none."""
    value = item.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return value if math.isfinite(value) else None
    except OverflowError:  # an integer beyond all floats
        return None
