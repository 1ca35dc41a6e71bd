"""Codex: its settings by -c flags, the key by a variable.

Knows nothing about the server but what a setup says.
"""

import json

from omlx.launch.plan import KEY_VARIABLE, PROVIDER, TIMEOUT_S, Edit, Plan, Recipe, Setup
from omlx.launch.tomltext import Scalars, set_table, set_top

_LASTING = (
    "model",
    "model_provider",
    "model_context_window",
    "model_auto_compact_token_limit",
)
_TABLE = f"model_providers.{PROVIDER}"


def plan(setup: Setup) -> Plan:
    """How it is started; without the two limits it would never sum up what was said."""
    flags = [
        part
        for key, value in {**settings(setup), **provider(setup, key_variable=KEY_VARIABLE)}.items()
        for part in ("-c", f"{key}={_toml(value)}")
    ]
    return Plan((*flags, *setup.args), {KEY_VARIABLE: setup.sent_key})


def settings(setup: Setup) -> Scalars:
    """The settings that are no table."""
    return {
        "model": setup.model,
        "model_provider": PROVIDER,
        "model_context_window": setup.window,
        "model_auto_compact_token_limit": setup.compact_at,
        "check_for_update_on_startup": False,
        "analytics.enabled": False,
    }


def provider(setup: Setup, *, key_variable: str | None) -> Scalars:
    """The settings of the provider, each with its whole path."""
    named = {f"{_TABLE}.env_key": key_variable} if key_variable else {}
    return {
        f"{_TABLE}.name": PROVIDER,
        f"{_TABLE}.base_url": setup.v1,
        **named,
        f"{_TABLE}.wire_api": "responses",
        f"{_TABLE}.stream_idle_timeout_ms": TIMEOUT_S * 1000,
    }


def _toml(value: object) -> str:
    """A text, number or truth value in TOML, which writes them as JSON does."""
    return json.dumps(value)


def edits(setup: Setup) -> tuple[Edit, ...]:
    """Its configuration, without what is a matter of taste."""
    top = {key: value for key, value in settings(setup).items() if key in _LASTING}
    variable = None if setup.key is None else KEY_VARIABLE
    named = provider(setup, key_variable=variable)
    table = {key.removeprefix(f"{_TABLE}."): value for key, value in named.items()}
    path = setup.place("CODEX_HOME", ".codex") / "config.toml"
    return (Edit(path, lambda text: set_table(set_top(text, top), _TABLE, table)),)


RECIPE = Recipe(plan, edits, key_variable=KEY_VARIABLE)
