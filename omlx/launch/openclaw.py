"""OpenClaw: a copy of the user's configuration with the server in it; its state stays the user's.

Knows nothing about the server but what a setup says.
"""

from pathlib import Path

from omlx.launch import pi
from omlx.launch.jsonc import set_values
from omlx.launch.plan import (
    KEY_VARIABLE,
    PROVIDER,
    TIMEOUT_S,
    Edit,
    Plan,
    Recipe,
    Setup,
    read_text,
)

_FILE = "openclaw.json"


def plan(setup: Setup) -> Plan:
    """How it is started: as a chat in the terminal, without its gateway."""
    text = change(setup, read_text(path(setup)), key=f"${{{KEY_VARIABLE}}}")
    return Plan(
        setup.args or ("chat",),
        {
            "OPENCLAW_CONFIG_PATH": str(setup.folder / _FILE),
            KEY_VARIABLE: setup.sent_key,
            "OPENCLAW_DISABLE_UPDATE": "1",
            "OPENCLAW_SKIP_CHANNELS": "1",
        },
        files={_FILE: text},
    )


def path(setup: Setup) -> Path:
    """The user's configuration."""
    named = setup.env.get("OPENCLAW_CONFIG_PATH")
    state = setup.env.get("OPENCLAW_STATE_DIR")
    if named:
        return Path(named).expanduser()
    return (Path(state).expanduser() if state else setup.home / ".openclaw") / _FILE


def change(setup: Setup, text: str, *, key: str) -> str:
    """The configuration with the server as a provider and its model as the main one."""
    names = dict.fromkeys((setup.model, setup.small_model))
    return set_values(
        text,
        {
            ("models", "mode"): "merge",
            ("models", "providers", PROVIDER): {
                "baseUrl": setup.v1,
                "apiKey": key,
                "api": "openai-completions",
                "timeoutSeconds": TIMEOUT_S,
                "models": [pi.model(setup, name) for name in names],
            },
            ("agents", "defaults", "model", "primary"): f"{PROVIDER}/{setup.model}",
            ("update", "checkOnStart"): False,
            ("gateway", "mode"): "local",
        },
    )


def edits(setup: Setup) -> tuple[Edit, ...]:
    """The user's own configuration."""
    key = setup.key_or(f"${{{KEY_VARIABLE}}}")
    return (Edit(path(setup), lambda text: change(setup, text, key=key)),)


RECIPE = Recipe(plan, edits, key_variable=KEY_VARIABLE)
