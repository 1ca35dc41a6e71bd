"""OpenCode: a configuration in a variable, which it merges over the user's own.

Knows nothing about the server but what a setup says.
"""

from omlx.launch.jsonc import set_values
from omlx.launch.plan import KEY_VARIABLE, PROVIDER, TIMEOUT_S, Edit, Plan, Recipe, Setup, compact


def plan(setup: Setup) -> Plan:
    """How it is started."""
    return Plan(
        setup.args,
        {
            "OPENCODE_CONFIG_CONTENT": compact(config(setup, key=f"{{env:{KEY_VARIABLE}}}")),
            KEY_VARIABLE: setup.sent_key,
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        },
    )


def config(setup: Setup, *, key: str) -> dict[str, object]:
    """The keys of its configuration."""
    return {
        "model": f"{PROVIDER}/{setup.model}",
        "small_model": f"{PROVIDER}/{setup.small_model}",
        "autoupdate": False,
        "share": "disabled",
        "provider": {PROVIDER: provider(setup, key=key)},
    }


def provider(setup: Setup, *, key: str) -> dict[str, object]:
    """The provider and its models."""
    limit = {"context": setup.window, "output": setup.max_output}
    models = {
        name: {"name": name, "tool_call": True, "limit": limit}
        for name in (setup.model, setup.small_model)
    }
    return {
        "npm": "@ai-sdk/openai-compatible",
        "name": PROVIDER,
        "options": {
            "baseURL": setup.v1,
            "apiKey": key,
            "timeout": TIMEOUT_S * 1000,
            "chunkTimeout": TIMEOUT_S * 1000,
            "headerTimeout": TIMEOUT_S * 1000,
        },
        "models": models,
    }


def edits(setup: Setup) -> tuple[Edit, ...]:
    """The user's own configuration."""
    return config_edits(setup, "opencode")


def config_edits(setup: Setup, name: str) -> tuple[Edit, ...]:
    """The configuration of this client or a fork of it."""
    folder = setup.place("XDG_CONFIG_HOME", ".config") / name
    with_comments = folder / f"{name}.jsonc"
    path = with_comments if with_comments.exists() else folder / f"{name}.json"
    values = {
        ("model",): f"{PROVIDER}/{setup.model}",
        ("small_model",): f"{PROVIDER}/{setup.small_model}",
        ("provider", PROVIDER): provider(setup, key=setup.key_or(f"{{env:{KEY_VARIABLE}}}")),
    }
    return (Edit(path, lambda text: set_values(text, values)),)


RECIPE = Recipe(plan, edits, key_variable=KEY_VARIABLE)
