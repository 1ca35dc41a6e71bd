"""The table of what agents' turns cost, made from the measured figures and put into the guide.

Knows nothing about how the figures came about.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

GUIDE = "docs/guide/agents.md"
RESULT = "docs/bench/agents.json"
_BEGIN, _END = "<!-- made by scripts/gen: costs -->\n", "<!-- end -->\n"
# Turns in the order of the course, and what other servers were measured in.
_TURNS = {
    "again": "same prompt again",
    "other": "another conversation",
    "more": "it goes on",
    "tool step": "after a tool",
    "stopped": "same prompt, after a stop",
    "killed": "same prompt, after kill -9",
    "more after kill": "it goes on, after kill -9",
}


def guide_with_costs(root: Path) -> dict[str, str]:
    """The guide with the table in its place; nothing where the figures or the place are missing."""
    guide, result = root / GUIDE, root / RESULT
    if not (guide.exists() and result.exists()):
        return {}
    text = guide.read_text(encoding="utf-8")
    head, begin, rest = text.partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    if not (begin and end):
        return {}
    table = _table(json.loads(result.read_text(encoding="utf-8")))
    return {GUIDE: f"{head}{begin}{table}{end}{tail}"}


def _table(result: Mapping[str, Any]) -> str:
    lines = [
        f"| client | prompt | {' | '.join(_TURNS.values())} |",
        f"|---|---|{'---|' * len(_TURNS)}",
    ]
    for name, agent in result["agents"].items():
        turns = {turn["turn"]: turn for turn in agent["turns"]}
        cells = [_cell(turns.get(turn), agent["peers"].get(turn)) for turn in _TURNS]
        lines.append(f"| {name} | {turns['cold']['prompt']:,} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(turn: Mapping[str, Any] | None, best: int | None) -> str:
    """What a turn computed, of what was new in it, and in brackets the best of other servers."""
    if turn is None:
        return "-"
    shown = f"{turn['uncached']:,} of {turn['new']:,} new"
    return shown if best is None else f"{shown} ({best:,})"
