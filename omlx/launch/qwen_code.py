"""Qwen Code: variables, and a file of settings that come before the user's own.

Knows nothing about the server but what a setup says.
"""

from omlx.launch.jsonc import set_values
from omlx.launch.plan import KEY_VARIABLE, TIMEOUT_S, Edit, Plan, Recipe, Setup, pretty

_FILE = "settings.json"
_KEY = "OPENAI_API_KEY"
_SUBCOMMANDS = (
    "auth", "board", "channel", "extensions", "hooks", "mcp", "review", "sandbox", "serve",
    "sessions", "update",
)  # fmt: skip


def plan(setup: Setup) -> Plan:
    """How it is started; without the window it would guess one from the model's name."""
    env = {
        "OPENAI_BASE_URL": setup.v1,
        _KEY: setup.sent_key,
        "OPENAI_MODEL": setup.model,
        "QWEN_CODE_SYSTEM_SETTINGS_PATH": str(setup.folder / _FILE),
    }
    is_sub = setup.args[:1] and setup.args[0] in _SUBCOMMANDS
    flags = () if is_sub else ("--auth-type", "openai", "--model", setup.model)
    return Plan((*flags, *setup.args), env, files={_FILE: pretty(settings(setup))})


def settings(setup: Setup) -> dict[str, object]:
    """The settings of one run."""
    return {
        "modelProviders": {"openai": [provider(setup)]},
        "model": {"name": setup.model},
        "security": {"auth": {"selectedType": "openai"}},
        "privacy": {"usageStatisticsEnabled": False},
        "telemetry": {"enabled": False},
        "general": {"disableAutoUpdate": True, "enableAutoUpdate": False},
    }


def provider(setup: Setup) -> dict[str, object]:
    """The model and where it is."""
    return {
        "id": setup.model,
        "name": setup.model,
        "baseUrl": setup.v1,
        "envKey": _KEY,
        "generationConfig": {
            "contextWindowSize": setup.window,
            "timeout": TIMEOUT_S * 1000,
            "samplingParams": {"max_tokens": setup.max_output},
        },
    }


def edits(setup: Setup) -> tuple[Edit, ...]:
    """The user's own settings."""
    values = {
        ("security", "auth", "selectedType"): "openai",
        ("security", "auth", "baseUrl"): setup.v1,
        ("security", "auth", "apiKey"): setup.key_or(f"${KEY_VARIABLE}"),
        ("model", "name"): setup.model,
        ("model", "generationConfig", "contextWindowSize"): setup.window,
        ("model", "generationConfig", "timeout"): TIMEOUT_S * 1000,
    }
    path = setup.place("QWEN_HOME", ".qwen") / _FILE
    return (Edit(path, lambda text: set_values(text, values)),)


RECIPE = Recipe(plan, edits, key_variable=KEY_VARIABLE)
