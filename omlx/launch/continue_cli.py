"""Continue's command line, cn: a configuration that it is given by a flag.

Knows nothing about the server but what a setup says.
"""

from omlx.launch.plan import (
    KEY_VARIABLE,
    NO_KEY,
    PROVIDER,
    TIMEOUT_S,
    Edit,
    Plan,
    Recipe,
    Setup,
    pretty,
)
from omlx.launch.yamltext import set_item, set_top

_FILE = "config.yaml"


def plan(setup: Setup) -> Plan:
    """How it is started."""
    config = {
        "name": PROVIDER,
        "version": "1.0.0",
        "schema": "v1",
        "models": [model(setup, key=setup.sent_key)],
    }
    env = {"CONTINUE_TELEMETRY_ENABLED": "0", "CONTINUE_CLI_ENABLE_TELEMETRY": "0"}
    args = ("--config", str(setup.folder / _FILE), *setup.args)
    return Plan(args, env, files={_FILE: pretty(config)})  # JSON is YAML


def model(setup: Setup, *, key: str = NO_KEY) -> dict[str, object]:
    """The model, as the configuration lists it."""
    return {
        "name": PROVIDER,
        "provider": "openai",
        "model": setup.model,
        "apiBase": setup.v1,
        "apiKey": key,
        "roles": ["chat", "edit", "apply"],
        "capabilities": ["tool_use"],
        "requestOptions": {"timeout": TIMEOUT_S * 1000},
        "defaultCompletionOptions": {
            "contextLength": setup.window,
            "maxTokens": setup.max_output,
        },
    }


def edits(setup: Setup) -> tuple[Edit, ...]:
    """The user's own configuration, which the editors' extension reads as well."""
    key = setup.key_or(f"${{{{ secrets.{KEY_VARIABLE} }}}}")
    path = setup.place("CONTINUE_GLOBAL_DIR", ".continue") / _FILE

    def change(text: str) -> str:
        if not text.strip():
            text = set_top(text, {"name": PROVIDER, "version": "1.0.0", "schema": "v1"})
        return set_item(text, "models", model(setup, key=key), by="name")

    return (Edit(path, change),)


RECIPE = Recipe(plan, edits, key_variable=KEY_VARIABLE)
