"""Finds what clients put into system texts that changes while its meaning for a model doesn't.

Knows nothing about messages. What it finds is anchored: whole lines of one known form, or a whole
element of one known name; a text that only quotes one of them is left alone.
"""

import re

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
_COUNTDOWN_TAGS = ("</total_tokens>", "</system_warning>", "</budget:token_budget>")
# Copilot's folder of one session, in the elements that tell of it.
_SESSION = re.compile(r"[/\\]session-state[/\\][0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_ELEMENT = re.compile(
    r"^<(session_context|plan_mode)>[ \t]*\r?\n.*?^</\1>[ \t]*\r?(?:\n|\Z)",
    re.MULTILINE | re.DOTALL,
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
    kept = [line for line in lines if not _COUNTDOWN.fullmatch(line)]
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
    found = [one for one in _ELEMENT.finditer(text) if _SESSION.search(one[0])]
    if not found:
        return text, ""
    left, at = "", 0
    for one in found:
        left, at = left + text[at : one.start()], one.end()
    left += text[at:]
    if _SESSION.search(left):
        return text, ""
    return left, "\n".join(one[0].strip() for one in found)
