"""JSON as a client sends it whose objects have no order."""

import random
from typing import Any


def shuffled(value: Any, rng: random.Random) -> Any:
    """The same JSON with the keys of every object in another order."""
    if isinstance(value, list):
        return [shuffled(item, rng) for item in value]
    if not isinstance(value, dict):
        return value
    keys = list(value)
    rng.shuffle(keys)
    return {key: shuffled(value[key], rng) for key in keys}
