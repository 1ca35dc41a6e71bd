"""Mistral Vibe: every key of its configuration has a variable, which comes before the file.

Knows nothing about the server but what a setup says.
"""

from omlx.launch.plan import KEY_VARIABLE, PROVIDER, Edit, Plan, Recipe, Setup, compact
from omlx.launch.tomltext import set_item, set_top


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


def edits(setup: Setup) -> tuple[Edit, ...]:
    """The user's own configuration."""
    place = setup.place("VIBE_HOME", ".vibe") / "config.toml"

    def change(text: str) -> str:
        text = set_top(text, {"active_model": PROVIDER})
        known = provider(setup, key_variable="" if setup.key is None else KEY_VARIABLE)
        text = set_item(text, "providers", known, by="name")
        return set_item(text, "models", model(setup), by="alias")

    return (Edit(place, change),)


RECIPE = Recipe(plan, edits, key_variable=KEY_VARIABLE)
