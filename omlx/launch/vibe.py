"""Mistral Vibe: every key of its configuration has a variable, which comes before the file.

Knows nothing about the server but what a setup says.
"""

from omlx.launch.plan import KEY_VARIABLE, PROVIDER, Plan, Recipe, Setup, compact


def plan(setup: Setup) -> Plan:
    """How it is started; it would let 200,000 tokens come together before it sums up."""
    return Plan(
        setup.args,
        {
            "VIBE_ACTIVE_MODEL": PROVIDER,
            "VIBE_PROVIDERS": compact([provider(setup, key_variable=KEY_VARIABLE)]),
            "VIBE_MODELS": compact([model(setup)]),
            KEY_VARIABLE: setup.sent_key,
            "VIBE_ENABLE_TELEMETRY": "false",
            "VIBE_ENABLE_UPDATE_CHECKS": "false",
            "VIBE_ENABLE_AUTO_UPDATE": "false",
        },
    )


def provider(setup: Setup, *, key_variable: str) -> dict[str, object]:
    """The server as a provider."""
    return {
        "name": PROVIDER,
        "api_base": setup.v1,
        "api_key_env_var": key_variable,
        "api_style": "openai",
        "backend": "generic",
    }


def model(setup: Setup) -> dict[str, object]:
    """The model under a name of its own."""
    return {
        "name": setup.model,
        "provider": PROVIDER,
        "alias": PROVIDER,
        "auto_compact_threshold": setup.compact_at,
    }


RECIPE = Recipe(plan)
