"""Why a prompt misses the cache, as text and as JSON.

Knows nothing about how it was found out.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass

from omlx.cache.changes import Change
from omlx.cache.explain import Divergence, SectionRow
from omlx.cli.view.text import columns
from omlx.storage.entry import JournalEntry, Part
from omlx.units import format_duration


@dataclass(frozen=True, slots=True)
class Explanation:
    """What is known of one prompt: a request's, or one that was never sent.

    `cached` tokens were, or would be, taken from the cache. `left_at` is the first token that is
    not stored, where that is known, and `place` the part it lies in. `note` says in one sentence
    why there is no more to say.
    """

    title: str
    model: str
    num_tokens: int
    num_cached: int
    sections: tuple[SectionRow, ...]
    is_sent: bool
    other: str
    divergence: Divergence | None = None
    left_at: int | None = None
    place: str = ""
    note: str = ""
    entry: JournalEntry | None = None


def explain_text(found: Explanation) -> str:
    """A few lines on the prompt, its tokens by part, and where it left what is stored."""
    parts = [found.title, columns(list(_facts(found)), indent="  "), _table(found)]
    parts += [text for text in (_divergence(found), found.note) if text]
    return "\n\n".join(parts)


def _facts(found: Explanation) -> Iterator[tuple[str, str]]:
    entry = found.entry
    if entry is None:
        yield "model", found.model
        return
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.time))
    sender = ", ".join(word for word in (entry.client, entry.dialect, entry.session) if word)
    yield "came", f"{at}{f', from {sender}' if sender else ''}"
    yield "model", found.model
    yield (
        "tokens",
        f"{entry.prompt_tokens:,} in the prompt: {entry.cached_memory:,} from memory, "
        f"{entry.cached_disk:,} from disk, {entry.uncached:,} computed; "
        f"{entry.generated:,} generated, {entry.outcome}",
    )
    if entry.parts is not None:
        named = ", ".join(
            f"{name.replace('_', '-')} {format_duration(seconds)}"
            for name, seconds in entry.parts.by_name().items()
        )
        yield "TTFT", f"{format_duration(entry.parts.ttft_s)}: {named}"
    yield "miss", entry.miss.value
    if entry.changes:
        yield "changed", ", ".join(f"{kind} {num:,}" for kind, num in entry.changes.items())


def _table(found: Explanation) -> str:
    verb = "" if found.is_sent else "would be "
    counts = [(r.section.value, r.num_tokens, r.num_cached, r.num_uncached) for r in found.sections]
    num_uncached = found.num_tokens - found.num_cached
    counts.append(("total", found.num_tokens, found.num_cached, num_uncached))
    rows = [(name, *(f"{number:,}" for number in numbers)) for name, *numbers in counts]
    head = ("part", "tokens", f"{verb}cached", f"{verb}uncached")
    return columns([head, *rows], right=(1, 2, 3), indent="  ")


def _divergence(found: Explanation) -> str:
    one = found.divergence
    if one is None:
        if found.left_at is None:
            return ""
        return f"first token that is not stored: {found.left_at:,}, in {found.place}"
    head = f"first divergence: token {one.token_idx:,}, in {one.place}: {one.change.value}"
    if one.counterpart is not None and one.counterpart != one.part:
        is_gone = one.change is Change.REMOVED
        where = "here" if is_gone else found.other
        head += f"\n  {where} has {one.counterpart} there"
    rows = [
        ("before", _quoted(one.before)),
        ("here", _quoted(one.ours)),
        (found.other, _quoted(one.theirs)),
    ]
    return f"{head}\n{columns(rows, indent='  ')}"


def _quoted(text: str) -> str:
    """Text on one line, so that every space and line end can be seen."""
    return json.dumps(text, ensure_ascii=False)


def explain_json(found: Explanation) -> str:
    """The same for machines; times are seconds since 1970, null is not known."""
    whole = {
        "title": found.title,
        "model": found.model,
        "request": None if found.entry is None else _entry_json(found.entry),
        "tokens": found.num_tokens,
        "cached": found.num_cached,
        "uncached": found.num_tokens - found.num_cached,
        "parts": [
            {
                "part": row.section.value,
                "tokens": row.num_tokens,
                "cached": row.num_cached,
                "uncached": row.num_uncached,
            }
            for row in found.sections
        ],
        "divergence": _divergence_json(found),
        "note": found.note,
    }
    return json.dumps(whole, indent=2)


def _entry_json(entry: JournalEntry) -> dict[str, object]:
    return {
        "id": entry.request_id,
        "time": entry.time,
        "client": entry.client,
        "session": entry.session,
        "dialect": entry.dialect,
        "outcome": entry.outcome,
        "prompt_tokens": entry.prompt_tokens,
        "cached_memory": entry.cached_memory,
        "cached_disk": entry.cached_disk,
        "uncached": entry.uncached,
        "generated": entry.generated,
        "ttft_s": None if entry.parts is None else entry.parts.ttft_s,
        "ttft_parts_s": None if entry.parts is None else entry.parts.by_name(),
        "miss": entry.miss.value,
        "snapshot": entry.snapshot,
        "changes": dict(entry.changes),
    }


def _divergence_json(found: Explanation) -> dict[str, object] | None:
    one = found.divergence
    if one is None:
        if found.left_at is None:
            return None
        unknown = dict.fromkeys(("part", "counterpart", "change", "before", "here", "there"))
        return {"token": found.left_at, "place": found.place, **unknown}
    return {
        "token": one.token_idx,
        "place": one.place,
        "part": _part_json(one.part),
        "counterpart": _part_json(one.counterpart),
        "change": one.change.value,
        "before": one.before,
        "here": one.ours,
        "there": one.theirs,
    }


def _part_json(part: Part | None) -> dict[str, object] | None:
    if part is None:
        return None
    return {"kind": part.kind.value, "index": part.idx, "name": part.name}
