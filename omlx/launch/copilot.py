"""Copilot CLI: everything by environment variables.

Knows nothing about the server but what a setup says.
"""

from omlx.launch.plan import Plan, Recipe, Setup


def plan(setup: Setup) -> Plan:
    """How it is started."""
    env = {
        "COPILOT_PROVIDER_BASE_URL": setup.v1,
        "COPILOT_PROVIDER_TYPE": "openai",
        "COPILOT_PROVIDER_WIRE_API": "completions",
        "COPILOT_PROVIDER_API_KEY": setup.sent_key,
        "COPILOT_MODEL": setup.model,
        "COPILOT_PROVIDER_MAX_PROMPT_TOKENS": str(setup.window - setup.max_output),
        "COPILOT_PROVIDER_MAX_OUTPUT_TOKENS": str(setup.max_output),
        "COPILOT_OFFLINE": "true",
        "COPILOT_AUTO_UPDATE": "false",
    }
    return Plan(("--no-auto-update", "--disable-client-telemetry", *setup.args), env)


RECIPE = Recipe(plan)
