"""The table of omlx beside other servers, made from the measured figures and put into the README.

Knows nothing about how the figures came about.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PAGE = "README.md"
RESULT = "docs/bench/compare-cpu.json"
_BEGIN, _END = "<!-- made by scripts/gen: comparison -->\n", "<!-- end -->\n"
_OWN = "omlx"
# The rows: what is measured, as (name, what of it, how many at once), and what readers call it.
_ROWS: Mapping[tuple[str, str, int], str] = {
    ("ttft", "cold", 1): "first token, nothing known",
    ("ttft", "again", 1): "the same prompt again",
    ("ttft", "more", 1): "the conversation goes on",
    ("ttft", "restart", 1): "after a restart",
    ("ttft", "agent", 1): "a turn of three agents, mean",
    ("started", "restart", 1): "start of the process to a first token",
    ("rate", "streams", 1): "1 stream",
    ("rate", "streams", 2): "2 streams",
    ("rate", "streams", 4): "4 streams",
    ("rate", "streams", 8): "8 streams",
    ("memory", "memory", 8): "memory after all that",
}


def readme_with_comparison(root: Path) -> dict[str, str]:
    """The README with the table in its place; nothing where figures or place are missing."""
    page, result = root / PAGE, root / RESULT
    if not (page.exists() and result.exists()):
        return {}
    text = page.read_text(encoding="utf-8")
    head, begin, rest = text.partition(_BEGIN)
    _, end, tail = rest.partition(_END)
    if not (begin and end):
        return {}
    table = comparison_table(json.loads(result.read_text(encoding="utf-8")))
    return {PAGE: f"{head}{begin}{table}{end}{tail}"}


def comparison_table(result: Mapping[str, Any]) -> str:
    """A row for each figure: omlx's own median, then for each peer how far omlx is ahead."""
    peers = [name for name in result["sides"] if name != _OWN]
    titles = [f"{_title(result['sides'][name])}" for name in peers]
    lines = [
        f"| | omlx | {' | '.join(titles)} |",
        f"|---|---|{'---|' * len(peers)}",
    ]
    for key, shown in _ROWS.items():
        own = _measure(result["measures"], key)
        if own is None:
            continue
        cells = [_cell(_ratio(result["ratios"], key, peer)) for peer in peers]
        lines.append(f"| {shown} | {_value(own)} | {' | '.join(cells)} |")
    options, machine = result["options"], result["machine"]
    lines += [
        "",
        f"{result['model']}, prompts of {options['head_tokens']:,} tokens, "
        f"{options['rounds']} rounds in turns with a fresh process each; {machine['system']}, "
        f"{machine['cores']} CPU cores, commit {str(machine['commit'])[:7]}. Medians of omlx; "
        "beside them how many times better it is than each server, with the 95 % interval. Below 1 "
        "the other server is ahead.",
    ]
    return "\n".join(lines) + "\n"


def _title(side: Mapping[str, Any]) -> str:
    version = side.get("version")
    return f"{side['title']} {version}" if version else str(side["title"])


def _is_of(entry: Mapping[str, Any], key: tuple[str, str, int]) -> bool:
    name, of, at_once = key
    return (
        entry["name"] == name
        and entry["case"].get("of") == of
        and entry["label"]["concurrency"] == at_once
    )


def _measure(measures: Sequence[Mapping[str, Any]], key: tuple[str, str, int]) -> Any:
    found = [one for one in measures if one["side"] == _OWN and _is_of(one, key)]
    return found[0] if found else None


def _ratio(ratios: Sequence[Mapping[str, Any]], key: tuple[str, str, int], peer: str) -> Any:
    found = [one for one in ratios if peer in (one["side"], one["base"]) and _is_of(one, key)]
    return found[0] if found else None


def _value(measure: Mapping[str, Any]) -> str:
    median = measure["spread"]["median"]
    match measure["unit"]:
        case "s":
            return f"{median:.2f} s" if median >= 1 else f"{median * 1000:.0f} ms"
        case "bytes":
            return f"{median / 1e9:.2f} GB"
        case unit:
            return f"{median:.1f} {unit}"


def _cell(ratio: Mapping[str, Any] | None) -> str:
    if ratio is None:
        return "-"
    low, high = ratio["low95"], ratio["high95"]
    shown = f"{_number(ratio['ratio'])}×"
    return shown if high is None else f"{shown} ({_number(low)}–{_number(high)})"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 20 else f"{value:.1f}" if value >= 3 else f"{value:.2f}"
