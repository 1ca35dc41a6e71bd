"""Claude Code: everything by environment variables.

Knows nothing about the server but what a setup says.
"""

from omlx.launch.plan import TIMEOUT_S, Plan, Recipe, Setup

_MODELS = ("OPUS", "SONNET", "HAIKU")


def plan(setup: Setup) -> Plan:
    """How it is started; without the window it would assume a million tokens."""
    return Plan(setup.args, variables(setup), unset=("ANTHROPIC_API_KEY",))


def variables(setup: Setup) -> dict[str, str]:
    """The variables that it reads."""
    models = {f"ANTHROPIC_DEFAULT_{name}_MODEL": setup.model for name in _MODELS}
    return {
        "ANTHROPIC_BASE_URL": setup.base,
        "ANTHROPIC_AUTH_TOKEN": setup.sent_key,
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


RECIPE = Recipe(plan)
