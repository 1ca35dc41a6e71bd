"""Chooses one option for each module so that the errors' sum is least within a byte budget.

Knows nothing about models: a knapsack with one choice out of several for each item.
"""

from collections.abc import Sequence
from dataclasses import dataclass

_MAX_ROUNDS = 50


@dataclass(frozen=True, slots=True)
class Option:
    """One format of a module: its bytes, and the error that it adds."""

    label: str
    nbytes: int
    error: float


@dataclass(frozen=True, slots=True)
class Item:
    """A module with its options; none is an item that stays as it is."""

    name: str
    options: tuple[Option, ...]


@dataclass(frozen=True, slots=True)
class Allocation:
    """The option chosen for each item, by its index, and what they take together."""

    chosen: tuple[int, ...]
    nbytes: int
    error: float


def smallest_bytes(items: Sequence[Item]) -> int:
    """What the smallest options take together."""
    return sum(min(one.nbytes for one in item.options) for item in items)


def allocate(items: Sequence[Item], budget_bytes: int) -> Allocation | None:
    """The best choice within the budget; None where not even the smallest options fit into it.

    Steps along the lower convex hull of each item, best gain for a byte first (the optimum of the
    relaxed problem), then single moves and exchanges of two items as long as they gain.
    Deterministic: equal gains go by the items' order.
    """
    chosen = [
        min(range(len(item.options)), key=lambda idx, i=item: _size(i, idx)) for item in items
    ]
    used = sum(item.options[idx].nbytes for item, idx in zip(items, chosen, strict=True))
    if used > budget_bytes:
        return None
    used = _climb(items, chosen, used, budget_bytes)
    used = _polish(items, chosen, used, budget_bytes)
    error = sum(item.options[idx].error for item, idx in zip(items, chosen, strict=True))
    return Allocation(tuple(chosen), used, error)


def _size(item: Item, idx: int) -> tuple[int, float]:
    return item.options[idx].nbytes, item.options[idx].error


def hull(item: Item) -> list[int]:
    """The options on the lower convex hull of error over bytes, smallest first."""
    order = sorted(range(len(item.options)), key=lambda idx: _size(item, idx))
    found: list[int] = []
    for idx in order:
        option = item.options[idx]
        if found and option.error >= item.options[found[-1]].error:
            continue  # more bytes for no less error
        while len(found) >= 2 and _slope(item, found[-2], found[-1]) <= _slope(
            item, found[-2], idx
        ):
            found.pop()
        found.append(idx)
    return found


def _slope(item: Item, first: int, second: int) -> float:
    """The error that goes for each byte more."""
    a, b = item.options[first], item.options[second]
    return (a.error - b.error) / max(b.nbytes - a.nbytes, 1)


def _climb(items: Sequence[Item], chosen: list[int], used: int, budget: int) -> int:
    """Take steps of the hulls by falling gain while they fit (mutates `chosen`)."""
    steps: list[tuple[float, int, int]] = []
    for at, item in enumerate(items):
        line = hull(item)
        chosen[at] = line[0]
        steps += [(-_slope(item, a, b), at, b) for a, b in zip(line, line[1:], strict=False)]
    steps.sort(key=lambda step: (step[0], step[1]))
    stuck: set[int] = set()
    for _, at, idx in steps:
        if at in stuck:
            continue
        more = items[at].options[idx].nbytes - items[at].options[chosen[at]].nbytes
        if used + more <= budget:
            used += more
            chosen[at] = idx
        else:
            stuck.add(at)
    return used


def _polish(items: Sequence[Item], chosen: list[int], used: int, budget: int) -> int:
    """Single moves first, then exchanges: one item gives bytes, another takes them."""
    for _ in range(_MAX_ROUNDS):
        move = _best_move(items, chosen, budget - used)
        if move is None:
            move = _best_exchange(items, chosen, budget - used)
        if move is None:
            return used
        for at, idx in move:
            used += items[at].options[idx].nbytes - items[at].options[chosen[at]].nbytes
            chosen[at] = idx
    return used


def _best_move(
    items: Sequence[Item], chosen: Sequence[int], room: int
) -> list[tuple[int, int]] | None:
    best, found = 0.0, None
    for at, item in enumerate(items):
        now = item.options[chosen[at]]
        for idx, option in enumerate(item.options):
            gain = now.error - option.error
            if option.nbytes - now.nbytes <= room and gain > best:
                best, found = gain, [(at, idx)]
    return found


def _best_exchange(
    items: Sequence[Item], chosen: Sequence[int], room: int
) -> list[tuple[int, int]] | None:
    """The best pair of a move that frees bytes and one that needs them."""
    down: list[tuple[float, int, int, int]] = []
    up: list[tuple[float, int, int, int]] = []
    for at, item in enumerate(items):
        now = item.options[chosen[at]]
        for idx, option in enumerate(item.options):
            freed, gain = now.nbytes - option.nbytes, now.error - option.error
            if freed > 0 and gain < 0:
                down.append((-gain, freed, at, idx))
            elif freed < 0 and gain > 0:
                up.append((gain, -freed, at, idx))
    down.sort()
    up.sort(reverse=True)
    best, found = 0.0, None
    for gain, needed, at, idx in up:
        if gain <= best:
            break
        for loss, freed, other, other_idx in down:
            if gain - loss <= best:
                break
            if other != at and freed + room >= needed:
                best, found = gain - loss, [(at, idx), (other, other_idx)]
                break
    return found
