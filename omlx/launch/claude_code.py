"""Claude Code: everything by environment variables.

Knows nothing about the server but what a setup says.
"""

from omlx.launch.jsonc import set_values
from omlx.launch.plan import TIMEOUT_S, Edit, Plan, Recipe, Setup

_KEY = "ANTHROPIC_AUTH_TOKEN"
_MODELS = ("OPUS", "SONNET", "HAIKU")


def plan(setup: Setup) -> Plan:
    """How it is started; without the window it would assume a million tokens."""
    return Plan(setup.args, variables(setup), unset=("ANTHROPIC_API_KEY",))


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
    path = setup.place("CLAUDE_CONFIG_DIR", ".claude") / "settings.json"
    values = {("env", name): value for name, value in kept.items()}
    return (Edit(path, lambda text: set_values(text, values)),)


RECIPE = Recipe(plan, edits, key_variable=_KEY)
