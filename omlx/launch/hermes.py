"""Hermes: a home folder like the user's own, in which the configuration names the server.

Knows nothing about the server but what a setup says.
"""

from pathlib import Path

from omlx.launch.plan import KEY_VARIABLE, Edit, Mirror, Plan, Recipe, Setup, read_text
from omlx.launch.yamltext import set_in

_FILE = "config.yaml"
_REFERENCE = f"${{{KEY_VARIABLE}}}"
_KEPT = ("sessions", "memories", "skills", "logs")


def plan(setup: Setup) -> Plan:
    """How it is started."""
    text = change(setup, read_text(home(setup) / _FILE), key=_REFERENCE)
    return Plan(
        setup.args,
        {"HERMES_HOME": str(setup.folder), KEY_VARIABLE: setup.sent_key},
        files={_FILE: text},
        mirrors=(Mirror(home(setup), "", (_FILE,), _KEPT),),
    )


def home(setup: Setup) -> Path:
    """The user's own home folder of it."""
    return setup.place("HERMES_HOME", ".hermes")


def change(setup: Setup, text: str, *, key: str) -> str:
    """The configuration with the server as its model's place."""
    values = {
        "default": setup.model,
        "provider": "custom",
        "base_url": setup.v1,
        "api_key": key,
        "context_length": setup.window,
        "max_tokens": setup.max_output,
    }
    return set_in(text, "model", values)


def edits(setup: Setup) -> tuple[Edit, ...]:
    """The user's own configuration."""
    key = setup.key_or(_REFERENCE)
    return (Edit(home(setup) / _FILE, lambda text: change(setup, text, key=key)),)


RECIPE = Recipe(plan, edits, key_variable=KEY_VARIABLE)
