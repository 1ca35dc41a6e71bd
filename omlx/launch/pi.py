"""Pi: an extension that is loaded for one run adds the server as a provider.

Knows nothing about the server but what a setup says.
"""

from omlx.launch.jsonc import set_values
from omlx.launch.plan import KEY_VARIABLE, PROVIDER, Edit, Plan, Recipe, Setup, pretty

_FILE = "provider.js"
_SUBCOMMANDS = ("install", "remove", "uninstall", "update", "list", "config", "auth")


def plan(setup: Setup) -> Plan:
    """How it is started; its subcommands take no such options."""
    env = {
        KEY_VARIABLE: setup.sent_key,
        "PI_OFFLINE": "1",
        "PI_SKIP_VERSION_CHECK": "1",
        "PI_TELEMETRY": "0",
    }
    if setup.args[:1] and setup.args[0] in _SUBCOMMANDS:
        return Plan(setup.args, env)
    known = pretty(provider(setup, key=f"${KEY_VARIABLE}")).rstrip()
    script = f'export default function (pi) {{\n  pi.registerProvider("{PROVIDER}", {known});\n}}\n'
    extension = str(setup.folder / _FILE)
    options = ("--extension", extension, "--provider", PROVIDER, "--model", setup.model)
    return Plan((*options, *setup.args), env, files={_FILE: script})


def provider(setup: Setup, *, key: str) -> dict[str, object]:
    """The provider and its models."""
    names = dict.fromkeys((setup.model, setup.small_model))
    return {
        "name": PROVIDER,
        "baseUrl": setup.v1,
        "api": "openai-completions",
        "apiKey": key,
        "models": [model(setup, name) for name in names],
    }


def model(setup: Setup, name: str) -> dict[str, object]:
    """One model, as Pi and OpenClaw describe it."""
    return {
        "id": name,
        "name": name,
        "reasoning": False,
        "input": ["text"],
        "contextWindow": setup.window,
        "maxTokens": setup.max_output,
        "cost": {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0},
    }


def edits(setup: Setup) -> tuple[Edit, ...]:
    """Its list of models, and which of them is the first."""
    folder = setup.place("PI_CODING_AGENT_DIR", ".pi", "agent")
    named = {("providers", PROVIDER): provider(setup, key=setup.key_or(f"${KEY_VARIABLE}"))}
    first = {("defaultProvider",): PROVIDER, ("defaultModel",): setup.model}
    return (
        Edit(folder / "models.json", lambda text: set_values(text, named)),
        Edit(folder / "settings.json", lambda text: set_values(text, first)),
    )


RECIPE = Recipe(plan, edits, key_variable=KEY_VARIABLE)
