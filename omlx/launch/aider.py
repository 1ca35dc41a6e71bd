"""Aider: variables, and a file that says what the model's window is.

Knows nothing about the server but what a setup says.
"""

from omlx.launch.jsonc import set_values
from omlx.launch.plan import TIMEOUT_S, Edit, Plan, Recipe, Setup, pretty
from omlx.launch.yamltext import set_top

_FILE = "model-metadata.json"


def plan(setup: Setup) -> Plan:
    """How it is started."""
    env = {
        "OPENAI_API_BASE": setup.v1,
        "OPENAI_API_KEY": setup.sent_key,
        "AIDER_OPENAI_API_BASE": setup.v1,
        "AIDER_MODEL": f"openai/{setup.model}",
        "AIDER_WEAK_MODEL": f"openai/{setup.small_model}",
        "AIDER_EDITOR_MODEL": f"openai/{setup.model}",
        "AIDER_MODEL_METADATA_FILE": str(setup.folder / _FILE),
        "AIDER_TIMEOUT": str(TIMEOUT_S),
        "AIDER_CHECK_UPDATE": "false",
        "AIDER_ANALYTICS_DISABLE": "true",
        "AIDER_SHOW_MODEL_WARNINGS": "false",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }
    return Plan(setup.args, env, files={_FILE: pretty(metadata(setup))})


def metadata(setup: Setup) -> dict[str, object]:
    """What it shall know of the models."""
    known = {
        "max_tokens": setup.max_output,
        "max_input_tokens": setup.window,
        "max_output_tokens": setup.max_output,
        "input_cost_per_token": 0,
        "output_cost_per_token": 0,
        "litellm_provider": "openai",
        "mode": "chat",
    }
    return {f"openai/{name}": known for name in dict.fromkeys((setup.model, setup.small_model))}


def edits(setup: Setup) -> tuple[Edit, ...]:
    """Its configuration in the user's home, and what it knows of models."""
    values = {
        "model": f"openai/{setup.model}",
        "weak-model": f"openai/{setup.small_model}",
        "openai-api-base": setup.v1,
        "timeout": TIMEOUT_S,
    }
    if setup.key is None:
        values["openai-api-key"] = setup.sent_key
    known = {(name,): entry for name, entry in metadata(setup).items()}
    return (
        Edit(setup.home / ".aider.conf.yml", lambda text: set_top(text, values)),
        Edit(setup.home / ".aider.model.metadata.json", lambda text: set_values(text, known)),
    )


RECIPE = Recipe(plan, edits, key_variable="OPENAI_API_KEY")
