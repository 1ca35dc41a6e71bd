"""Finds what clients put into system texts that changes while its meaning for a model doesn't.

Knows nothing about messages. What it finds is anchored: whole lines of one known form, or a whole
element of one known name; a text that only quotes one of them is left alone.
"""

import re
from collections.abc import Iterator
from types import MappingProxyType

# Claude Code's line about itself: part of it changes with every conversation.
_ATTRIBUTION = "x-anthropic-billing-header:"
_NUMBER = r"\d[\d,._ ]*"
# How much a client believes to be left of a window that may not be this model's.
_COUNTDOWN = re.compile(
    rf"""[ \t]*(?:
        <total_tokens>\s*{_NUMBER}(?:tokens\ left|tokens\ remaining)?\s*</total_tokens>
      | <system_warning>\s*Token\ usage:\s*{_NUMBER}/\s*{_NUMBER};\s*{_NUMBER}remaining\s*
        </system_warning>
      | <budget:token_budget>\s*{_NUMBER}</budget:token_budget>
    )[ \t]*\r?""",
    re.VERBOSE,
)
_MAX_CHARS = 200
_COUNTDOWN_TAGS = ("</total_tokens>", "</system_warning>", "</budget:token_budget>")
# Copilot's folder of one session, in the elements that tell of it.
_SESSION = re.compile(r"[/\\]session-state[/\\][0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_OPENING = re.compile(r"^<(session_context|plan_mode)>[ \t]*\r?\n", re.MULTILINE)
_CLOSINGS = MappingProxyType(
    {
        name: re.compile(rf"^</{name}>[ \t]*\r?(?:\n|\Z)", re.MULTILINE)
        for name in ("session_context", "plan_mode")
    }
)
_SESSION_ELEMENT = "<session_context>"


def without_attribution(text: str) -> str:
    """A text of the system without the lines about the client that it begins with."""
    rest = text
    while rest.startswith(_ATTRIBUTION):
        rest = rest.partition("\n")[2]
    return text if rest is text else rest.lstrip("\r\n")


def without_countdown(text: str) -> tuple[str, int]:
    """A system text without the lines that only count tokens down, and how many those were."""
    if not any(tag in text for tag in _COUNTDOWN_TAGS):
        return text, 0
    lines = text.split("\n")
    kept = [one for one in lines if len(one) > _MAX_CHARS or not _COUNTDOWN.fullmatch(one)]
    num = len(lines) - len(kept)
    if not num:
        return text, 0
    left = "\n".join(kept)
    return (left if left.strip() else ""), num


def without_session(text: str) -> tuple[str, str]:
    """A system text without the elements that tell of one session's folder, and those.

    Nothing is taken out where the folder is named elsewhere too: that would be of no use.
    """
    if _SESSION_ELEMENT not in text or not _SESSION.search(text):
        return text, ""
    kept: list[str] = []
    found: list[str] = []
    at = 0
    for start, end in _elements(text):
        if _SESSION.search(text, start, end):
            kept.append(text[at:start])
            found.append(text[start:end].strip())
            at = end
    left = "".join([*kept, text[at:]])
    if not found or _SESSION.search(left):
        return text, ""
    return left, "\n".join(found)


def _elements(text: str) -> Iterator[tuple[int, int]]:
    """Where the known elements begin and end; each text is looked through once for an end."""
    at = 0
    endless: set[str] = set()
    while opening := _OPENING.search(text, at):
        name, at = opening[1], opening.end()
        closing = None if name in endless else _CLOSINGS[name].search(text, at)
        if closing is None:
            endless.add(name)
        else:
            at = closing.end()
            yield opening.start(), at
