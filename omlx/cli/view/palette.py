"""The colours of the views: each can be read on a dark and on a light background.

They are from the 216 colours that no terminal's theme changes. Nothing is told by colour alone.
"""

from omlx.cli.view.lead import Verdict

GOOD = "color(28)"
WATCH = "color(130)"
BAD = "color(160)"
ACCENT = "color(32)"
QUIET = "dim"

_VERDICTS = {Verdict.GOOD: GOOD, Verdict.WATCH: WATCH, Verdict.BAD: f"bold {BAD}"}
_STATES = {"ready": GOOD, "failed": f"bold {BAD}", "stopped": QUIET, "unloaded": QUIET}


def of_verdict(verdict: Verdict | None) -> str:
    """The style of a verdict."""
    return "" if verdict is None else _VERDICTS[verdict]


def of_state(state: str) -> str:
    """The style of an engine's state."""
    return _STATES.get(state, WATCH)
