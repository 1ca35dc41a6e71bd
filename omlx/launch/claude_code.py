"""Claude Code: everything by environment variables.

Knows nothing about the server but what a setup says.
"""

from pathlib import Path
from typing import cast

from omlx.errors import OmlxError
from omlx.launch.jsonc import read, set_values
from omlx.launch.plan import TIMEOUT_S, Edit, Plan, Recipe, Setup, read_text

_KEY = "ANTHROPIC_AUTH_TOKEN"
_OTHERS = (
    "ANTHROPIC_API_KEY",
    "CLAUDE_CODE_OAUTH_TOKEN",
    "CLAUDE_CODE_USE_BEDROCK",
    "CLAUDE_CODE_USE_VERTEX",
)
_MODELS = ("OPUS", "SONNET", "HAIKU")


def plan(setup: Setup) -> Plan:
    """How it is started; without the window it would assume a million tokens."""
    return Plan(setup.args, variables(setup), unset=_OTHERS, notes=_notes(setup))


def _notes(setup: Setup) -> tuple[str, ...]:
    """Which of the variables its own settings have as well: those come first."""
    path = _settings(setup)
    try:
        known = read(read_text(path) or "{}")
    except (ValueError, OmlxError):
        return ()
    match known:
        case {"env": dict()}:
            own = cast(dict[str, dict[str, object]], known)["env"]
        case _:
            return ()
    wanted = variables(setup)
    both = sorted(name for name in own if name in wanted and own[name] != wanted[name])
    return (f"{path} sets {', '.join(both)}, which comes before what is set here",) if both else ()


def _settings(setup: Setup) -> Path:
    return setup.place("CLAUDE_CONFIG_DIR", ".claude") / "settings.json"


def variables(setup: Setup) -> dict[str, str]:
    """The variables that it reads."""
    models = {f"ANTHROPIC_DEFAULT_{name}_MODEL": setup.model for name in _MODELS}
    return {
        "ANTHROPIC_BASE_URL": setup.base,
        _KEY: setup.sent_key,
        "ANTHROPIC_MODEL": setup.model,
        "ANTHROPIC_SMALL_FAST_MODEL": setup.small_model,
        **models,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": setup.small_model,
        "CLAUDE_CODE_SUBAGENT_MODEL": setup.model,
        "CLAUDE_CODE_MAX_CONTEXT_TOKENS": str(setup.window),
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": str(setup.max_output),
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",  # its text differs by conversation
        "API_TIMEOUT_MS": str(TIMEOUT_S * 1000),
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_ERROR_REPORTING": "1",
    }


def edits(setup: Setup) -> tuple[Edit, ...]:
    """Its settings have variables, too."""
    kept = variables(setup)
    if setup.key is not None:
        del kept[_KEY]  # the user exports it
    values = {("env", name): value for name, value in kept.items()}
    return (Edit(_settings(setup), lambda text: set_values(text, values)),)


RECIPE = Recipe(plan, edits, key_variable=_KEY)
