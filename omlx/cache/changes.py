"""Says in one word how a text became another one, at the first place where they differ.

Knows nothing about tokens or prompts.
"""

import re
from collections import Counter
from collections.abc import Sequence
from difflib import SequenceMatcher
from enum import Enum

_UNIT = re.compile(r"\w+|\s+|[^\w\s]")
_MAX_UNITS = 4000


class Change(Enum):
    """What happened to the old text where the new one first differs from it."""

    VALUE = "value changed"
    ORDER = "order changed"
    INSERTED = "inserted"
    REMOVED = "removed"


def classify(old: str, new: str) -> Change:
    """How the first difference came about, by lines, and within changed lines by words."""
    old_lines, new_lines = old.splitlines(), new.splitlines()
    change, rest = _first_change(old_lines[:_MAX_UNITS], new_lines[:_MAX_UNITS])
    if rest is None:
        return change
    before, after = ("\n".join(lines) for lines in rest)
    change, _ = _first_change(_units(before), _units(after))
    return change


def _units(text: str) -> list[str]:
    return _UNIT.findall(text)[:_MAX_UNITS]


_Pair = tuple[Sequence[str], Sequence[str]]


def _first_change(old: Sequence[str], new: Sequence[str]) -> tuple[Change, _Pair | None]:
    """The first change, and what became what where a stretch was replaced by another."""
    steps = [
        (kind, old[a:b], new[c:d])
        for kind, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
        if kind != "equal"
    ]
    if not steps:
        return Change.VALUE, None
    kind, gone, come = steps[0]
    if kind == "insert":
        is_moved = any(_same(come, other) for _, other, _ in steps[1:])
        return (Change.ORDER if is_moved else Change.INSERTED), None
    if kind == "delete":
        is_moved = any(_same(gone, other) for _, _, other in steps[1:])
        return (Change.ORDER if is_moved else Change.REMOVED), None
    all_gone = _words([unit for _, units, _ in steps for unit in units])
    all_come = _words([unit for _, _, units in steps for unit in units])
    if all_gone != all_come and Counter(all_gone) == Counter(all_come):
        return Change.ORDER, None
    return Change.VALUE, (gone, come)


def _same(a: Sequence[str], b: Sequence[str]) -> bool:
    """Whether two stretches say the same, but for spaces and punctuation between the words."""
    return bool(_words(a)) and _words(a) == _words(b)


def _words(units: Sequence[str]) -> list[str]:
    return [word for unit in units for word in re.findall(r"\w+", unit)]
