"""Kilo: as OpenCode, of which it is a fork, with variables of its own names.

Knows nothing about the server but what a setup says.
"""

from omlx.launch import opencode
from omlx.launch.plan import KEY_VARIABLE, Edit, Plan, Recipe, Setup, compact


def plan(setup: Setup) -> Plan:
    """How it is started."""
    return Plan(
        setup.args,
        {
            "KILO_CONFIG_CONTENT": compact(opencode.config(setup, key=f"{{env:{KEY_VARIABLE}}}")),
            KEY_VARIABLE: setup.sent_key,
            "KILO_DISABLE_AUTOUPDATE": "1",
            "KILO_DISABLE_MODELS_FETCH": "1",
            "KILO_DISABLE_LSP_DOWNLOAD": "1",
            "KILO_DISABLE_DEFAULT_PLUGINS": "1",
            "KILO_TELEMETRY_LEVEL": "off",
        },
    )


def edits(setup: Setup) -> tuple[Edit, ...]:
    """The user's own configuration."""
    return opencode.config_edits(setup, "kilo")


RECIPE = Recipe(plan, edits, key_variable=KEY_VARIABLE)
