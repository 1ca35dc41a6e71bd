"""The editor Zed: the server as a provider in its settings.

Knows nothing about the server but what a setup says.
"""

from omlx.launch.jsonc import set_values
from omlx.launch.plan import PROVIDER, Edit, Recipe, Setup, pretty

_KEY = f"{PROVIDER.upper()}_API_KEY"


def says(setup: Setup) -> str:
    """What to put into its settings."""
    return (
        "# Zed: merge this into settings.json (omlx launch zed --write does it).\n"
        f"# Start Zed with the variable {_KEY}={setup.sent_key}, or enter that as the key of\n"
        f"# {PROVIDER} in its agent settings: it takes no key from the file.\n"
        f"{pretty(settings(setup)).rstrip()}"
    )


def settings(setup: Setup) -> dict[str, object]:
    """The keys of its settings."""
    return {
        "language_models": {"openai_compatible": {PROVIDER: provider(setup)}},
        "agent": {"default_model": _default(setup)},
    }


def provider(setup: Setup) -> dict[str, object]:
    """The server and its models."""
    models = [
        {
            "name": name,
            "display_name": name,
            "max_tokens": setup.window,
            "max_output_tokens": setup.max_output,
            "capabilities": {"tools": True, "images": False, "parallel_tool_calls": True},
        }
        for name in dict.fromkeys((setup.model, setup.small_model))
    ]
    return {"api_url": setup.v1, "available_models": models}


def _default(setup: Setup) -> dict[str, object]:
    return {"provider": PROVIDER, "model": setup.model}


def edits(setup: Setup) -> tuple[Edit, ...]:
    """The user's own settings."""
    values = {
        ("language_models", "openai_compatible", PROVIDER): provider(setup),
        ("agent", "default_model"): _default(setup),
    }
    path = setup.place("XDG_CONFIG_HOME", ".config") / "zed" / "settings.json"
    return (Edit(path, lambda text: set_values(text, values)),)


RECIPE = Recipe(None, edits, says, key_variable=_KEY)
