"""The extension Continue of VS Code and JetBrains: the same configuration as its command line's.

Knows nothing about the server but what a setup says.
"""

from omlx.launch import continue_cli
from omlx.launch.plan import PROVIDER, Recipe, Setup
from omlx.launch.yamltext import set_item, set_top


def says(setup: Setup) -> str:
    """What to put into its configuration."""
    text = set_top("", {"name": PROVIDER, "version": "1.0.0", "schema": "v1"})
    model = continue_cli.model(setup, key=setup.sent_key)
    return (
        "# Continue: merge this into ~/.continue/config.yaml "
        "(omlx launch vscode-continue --write does it).\n"
        f"{set_item(text, 'models', model, by='name').rstrip()}"
    )


RECIPE = Recipe(None, continue_cli.edits, says, continue_cli.RECIPE.key_variable)
